"""Cross-entropy at the candidates' own budget: what a search has to beat."""

from __future__ import annotations

import logging
import threading

from optuna.study import Study
from torch import nn

from optuna_taylorglo.attributes import CROSS_ENTROPY
from optuna_taylorglo.errors import Diverged
from optuna_taylorglo.search.candidates import loss_conventions
from optuna_taylorglo.search.objective import check_steps
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.training.run import Training

logger = logging.getLogger(__name__)


def evaluate_cross_entropy(
    study: Study, training: Training, n_seeds: int, stop: threading.Event | None = None
) -> list[float | None]:
    """Train with cross-entropy as candidates are trained, and keep the results in the study.

    The seeds are those of the first candidates, so both start from the same weights.
    Seeds that the study already has a result for are not trained again.

    Args:
        study: The study.
        training: Trains as its recipe says.
        n_seeds: Number of trainings.
        stop: Ends the training in hand when set.

    Returns:
        The fitness for each seed; None where the training diverged, which the log tells and the
        study does not keep.
    """
    recipe = training.recipe
    known: dict[str, float] = dict(study.user_attrs.get(CROSS_ENTROPY, {}))
    policy = recipe.search.seed_policy
    # With common seeds a generation has a single one; the generations after it lend theirs.
    places = [(n, 0) if policy == "common" else (0, n) for n in range(n_seeds)]
    seeds = [training_seed(recipe.search.seed, *place, 0, policy=policy) for place in places]
    for seed in seeds:
        if str(seed) not in known:
            try:
                known[str(seed)] = training.run(
                    nn.CrossEntropyLoss(**loss_conventions(recipe)),
                    seed=seed,
                    steps=training.in_steps(recipe.budget.evaluation_length, recipe.budget.unit),
                    # With fitness.take best, each validation is a chance.
                    check_at=check_steps(training),
                    stop=stop,
                )
            except Diverged as error:
                logger.warning("cross-entropy diverged with seed %d: %s", seed, error)
                continue
            study.set_user_attr(CROSS_ENTROPY, known)
    return [known.get(str(seed)) for seed in seeds]
