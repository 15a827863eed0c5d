"""One setting varied: training data, label noise, or the length of an evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING

import scipy
from optuna.study import Study
from pydantic import TypeAdapter

from optuna_taylorglo.attributes import SWEEP
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.evolution.history import ranked_trials, trial_loss
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.text import counted
from optuna_taylorglo.verdict.statistics import NaNFloat, Role
from optuna_taylorglo.verdict.tasks import (
    Runner,
    compared_evolved_loss,
    cross_entropy,
    stage_task,
    value_of_divergence,
    with_divergence,
)

if TYPE_CHECKING:
    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

DATA_FIELDS = ("fraction", "label_noise")  # arguments of the data module that can be swept
SETTINGS = (*DATA_FIELDS, "length")


@dataclass(frozen=True)
class DataSweep:
    """Test results and numbers of trainings that diverged, by label of the loss and value."""

    accuracies: dict[str, dict[float, list[float]]]
    diverged: dict[str, dict[float, int]]
    divergence: float | None  # what a training that diverged counts as, if one did


@dataclass(frozen=True)
class RankAgreement:
    """How well evaluations of one length rank candidates as the longest ones do."""

    length: int
    longest: int
    spearman: NaNFloat  # rank correlation over the candidates; NaN if all are equal
    p_value: NaNFloat
    n_candidates: int  # that trained at both lengths


@dataclass(frozen=True)
class SavedSweep:
    """The result of a sweep over one of `SETTINGS`."""

    over: str
    measured: str  # the metric, or the unit of lengths
    data: DataSweep | None = None
    agreements: tuple[RankAgreement, ...] = ()  # over lengths
    loss: str = ""  # name of the evolved loss, if it was trained


def save_sweep(evaluation_study: Study, sweep: SavedSweep) -> None:
    """Store a sweep in place of an older one over the same setting."""
    plain = json.loads(json.dumps(asdict(sweep)), parse_constant=lambda _: None)
    evaluation_study.set_user_attr(SWEEP + sweep.over, plain)


def load_sweeps(evaluation_study: Study) -> list[SavedSweep]:
    """The newest sweep over each setting."""
    contents = (evaluation_study.user_attrs.get(SWEEP + over) for over in SETTINGS)
    adapter = TypeAdapter(SavedSweep)
    return [adapter.validate_python(content) for content in contents if content is not None]


def sweep_data(
    loss: EvolvedLoss,
    recipe: Recipe,
    field: str,
    values: Sequence[float],
    n_seeds: int,
    run: Runner,
) -> DataSweep:
    """Train an evolved loss and cross-entropy fully at several values of one of `DATA_FIELDS`."""
    losses = [
        compared_evolved_loss("winner", "evolved loss", Role.EVOLVED, loss),
        cross_entropy(role=Role.REFERENCE),
    ]
    places = product(losses, values, range(n_seeds))
    tasks = [
        stage_task(recipe, c, Stage.SWEEP, seed, on_test_set=True, data_args={field: value})
        for c, value, seed in places
    ]
    results = run(tasks)
    divergence = value_of_divergence(results, recipe, loss.n_classes)
    swept = DataSweep({c.label: {} for c in losses}, {c.label: {} for c in losses}, divergence)
    rest = iter(results)
    for c, value in product(losses, values):
        own = [next(rest) for _ in range(n_seeds)]
        swept.accuracies[c.label][value] = with_divergence(own, divergence)
        swept.diverged[c.label][value] = own.count(None)
    return swept


def rank_agreement(
    study: Study, recipe: Recipe, lengths: Sequence[int], n_candidates: int, run: Runner
) -> list[RankAgreement]:
    """Compare evaluations of several lengths with the longest, on candidates of all ranks."""
    lengths = sorted(set(lengths))
    if len(lengths) < 2:
        raise UsageError(f"lengths must be two or more different numbers, not {lengths}.")
    ranked = ranked_trials(study)
    n = min(n_candidates, len(ranked))
    if n < 3:
        raise UsageError(
            f"a rank correlation needs 3 candidates; asked for {n_candidates}, and study "
            f"{study.study_name!r} has {counted(len(ranked), 'complete candidates')}."
        )
    spread = (ranked[round(i * (len(ranked) - 1) / (n - 1))] for i in range(n))
    losses = [
        compared_evolved_loss("candidate", f"trial {t.number}", Role.EVOLVED, trial_loss(study, t))
        for t in spread
    ]
    tasks = [
        stage_task(recipe, loss, Stage.SWEEP, number, length=length)
        for length, (number, loss) in product(lengths, enumerate(losses))
    ]
    results = run(tasks)
    *shorter, longest = (results[i : i + n] for i in range(0, len(results), n))
    agreements = []
    for length, values in zip(lengths, shorter, strict=False):
        both = zip(values, longest, strict=True)
        pairs = [(a, b) for a, b in both if a is not None and b is not None]
        found = scipy.stats.spearmanr([a for a, _ in pairs], [b for _, b in pairs])
        spearman, p_value = float(found.statistic), float(found.pvalue)
        agreements.append(RankAgreement(length, lengths[-1], spearman, p_value, len(pairs)))
    return agreements
