"""One setting varied: training data, label noise, or the length of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import scipy
from optuna.study import Study

from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.history import ranked_trials, trial_loss
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.output import DataSweep, RankAgreement
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import (
    Runner,
    compared_evolved_loss,
    cross_entropy,
    stage_task,
    value_of_divergence,
)

if TYPE_CHECKING:
    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

DATA_FIELDS = ("fraction", "label_noise")
"""Arguments of the data module that can be swept."""


def sweep_data(
    loss: EvolvedLoss,
    recipe: Recipe,
    field: str,
    values: Sequence[float],
    n_seeds: int,
    run: Runner,
) -> DataSweep:
    """Train an evolved loss and cross-entropy fully at several values of a setting of the data.

    Args:
        loss: The evolved loss.
        recipe: The recipe of its study.
        field: One of `DATA_FIELDS`.
        values: Its values.
        n_seeds: Trainings of a loss at a value.
        run: Gets tasks done.
    """
    if field not in DATA_FIELDS:
        raise UsageError(f"field must be one of {', '.join(DATA_FIELDS)}, not {field!r}.")
    losses = [
        compared_evolved_loss("winner", "evolved loss", Role.EVOLVED, loss),
        cross_entropy(role=Role.REFERENCE),
    ]
    places = [(c, value, seed) for c in losses for value in values for seed in range(n_seeds)]
    results = run(
        [
            stage_task(recipe, c, Stage.SWEEP, seed, on_test_set=True, data_args={field: value})
            for c, value, seed in places
        ]
    )
    divergence = value_of_divergence(results, recipe, loss.n_classes)
    swept = DataSweep(
        {c.label: {value: [] for value in values} for c in losses},
        {c.label: dict.fromkeys(values, 0) for c in losses},
        divergence,
    )
    for (compared, value, _), result in zip(places, results, strict=True):
        counted = divergence if result is None else result
        assert counted is not None
        swept.accuracies[compared.label][value].append(counted)
        swept.diverged[compared.label][value] += result is None
    return swept


def rank_agreement(
    study: Study, recipe: Recipe, lengths: Sequence[int], n_candidates: int, run: Runner
) -> list[RankAgreement]:
    """Does a short evaluation rank candidates as a long one does?

    Args:
        study: A study with complete trials.
        recipe: Its recipe.
        lengths: Lengths of evaluations, in the recipe's unit; all are compared with the longest.
        n_candidates: Candidates to take, evenly over the ranks of the search.
        run: Gets tasks done.

    Returns:
        The agreement of each shorter length with the longest.
    """
    lengths = sorted(set(lengths))
    if len(lengths) < 2:
        raise UsageError(f"lengths must be two or more different numbers, not {lengths}.")
    ranked = ranked_trials(study)
    n = min(n_candidates, len(ranked))
    if n < 3:
        raise UsageError(
            f"a rank correlation needs 3 candidates; asked for {n_candidates}, and study "
            f"{study.study_name!r} has {len(ranked)} complete ones."
        )
    losses = [
        compared_evolved_loss("candidate", f"trial {t.number}", Role.EVOLVED, trial_loss(study, t))
        for t in (ranked[round(i * (len(ranked) - 1) / (n - 1))] for i in range(n))
    ]
    results = run(
        [
            stage_task(recipe, loss, Stage.SWEEP, number, length=length)
            for length in lengths
            for number, loss in enumerate(losses)
        ]
    )
    *shorter, longest = (results[i : i + n] for i in range(0, len(results), n))
    agreements = []
    for length, values in zip(lengths, shorter, strict=False):
        both = zip(values, longest, strict=True)
        pairs = [(a, b) for a, b in both if a is not None and b is not None]
        found = scipy.stats.spearmanr([a for a, _ in pairs], [b for _, b in pairs])
        agreements.append(
            RankAgreement(
                length, lengths[-1], float(found.statistic), float(found.pvalue), len(pairs)
            )
        )
    return agreements
