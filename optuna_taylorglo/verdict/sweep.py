"""One setting varied: training data, label noise, or the length of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import scipy
from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.losses.tree_loss import EvolvedLoss
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.history import ranked_trials, trial_loss
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.output import Accuracies, DataSweep, RankAgreement
from optuna_taylorglo.verdict.statistics import Role, value_of_divergence
from optuna_taylorglo.verdict.tasks import (
    ComparedLoss,
    Do,
    Task,
    compared_evolved_loss,
    cross_entropy,
    stage_task,
)

DATA_FIELDS = ("fraction", "label_noise")
"""Arguments of the data module that can be swept."""


def sweep_data(
    loss: EvolvedLoss, recipe: Recipe, field: str, values: Sequence[float], n_seeds: int, do: Do
) -> DataSweep:
    """Train an evolved loss and cross-entropy fully at several values of a setting of the data.

    Args:
        loss: The evolved loss.
        recipe: The recipe of its study.
        field: One of `DATA_FIELDS`.
        values: Its values.
        n_seeds: Trainings a loss and value.
        do: Does tasks.
    """
    if field not in DATA_FIELDS:
        raise UsageError(f"field must be one of {', '.join(DATA_FIELDS)}, not {field!r}.")
    losses = [
        compared_evolved_loss("winner", "evolved loss", Role.EVOLVED, loss),
        cross_entropy(role=Role.REFERENCE),
    ]
    places = [(c, value, seed) for c in losses for value in values for seed in range(n_seeds)]
    results = do([_data_task(recipe, c, field, value, seed) for c, value, seed in places])
    divergence = value_of_divergence(results, recipe, loss.n_classes) if None in results else None
    accuracies: Accuracies = {c.label: {value: [] for value in values} for c in losses}
    diverged = {c.label: dict.fromkeys(values, 0) for c in losses}
    for (compared, value, _), result in zip(places, results, strict=True):
        diverged[compared.label][value] += result is None
        counted = divergence if result is None else result
        if counted is not None:
            accuracies[compared.label][value].append(counted)
    return DataSweep(accuracies, diverged, divergence)


def rank_agreement(
    study: Study, recipe: Recipe, lengths: Sequence[int], n_candidates: int, do: Do
) -> list[RankAgreement]:
    """Does a short evaluation rank candidates as a long one does?

    Args:
        study: A study with complete trials.
        recipe: Its recipe.
        lengths: Lengths of evaluations, in the recipe's unit; all are compared with the longest.
        n_candidates: Candidates to take, evenly over the ranks of the search.
        do: Does tasks.

    Returns:
        The agreement of each shorter length with the longest.
    """
    if len(set(lengths)) < 2:
        raise UsageError(f"lengths must be two or more different numbers, not {list(lengths)}.")
    chosen = _spread(study, n_candidates)
    tasks = [
        stage_task(
            recipe,
            compared_evolved_loss(
                "candidate", f"trial {t.number}", Role.EVOLVED, trial_loss(study, t)
            ),
            Stage.SWEEP,
            position,
            length=length,
        )
        for length in sorted(set(lengths))
        for position, t in enumerate(chosen)
    ]
    values = do(tasks)
    rows = [values[i : i + len(chosen)] for i in range(0, len(values), len(chosen))]
    *shorter, longest = sorted(set(lengths))
    return [
        _agreement(length, longest, row, rows[-1])
        for length, row in zip(shorter, rows[:-1], strict=True)
    ]


def _data_task(recipe: Recipe, loss: ComparedLoss, field: str, value: float, seed: int) -> Task:
    return stage_task(recipe, loss, Stage.SWEEP, seed, on_test_set=True, data_args={field: value})


def _spread(study: Study, n: int) -> list[FrozenTrial]:
    """Complete trials from the best to the worst, evenly over their ranks."""
    ranked = ranked_trials(study)
    if len(ranked) < 3 or n < 3:
        raise UsageError(
            f"a rank correlation needs 3 candidates; asked for {n}, and study "
            f"{study.study_name!r} has {len(ranked)} complete ones."
        )
    n = min(n, len(ranked))
    return [ranked[round(i * (len(ranked) - 1) / (n - 1))] for i in range(n)]


def _agreement(
    length: int, longest: int, short: Sequence[float | None], long: Sequence[float | None]
) -> RankAgreement:
    pairs = [(a, b) for a, b in zip(short, long, strict=True) if a is not None and b is not None]
    result = scipy.stats.spearmanr([a for a, _ in pairs], [b for _, b in pairs])
    return RankAgreement(length, longest, float(result.statistic), float(result.pvalue), len(pairs))
