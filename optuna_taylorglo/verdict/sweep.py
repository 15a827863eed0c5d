"""One setting varied: training data, label noise, or the length of an evaluation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import scipy
from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_taylorglo.attributes import EVALUATION_LENGTH
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.losses.load import EvolvedLoss
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import candidate_loss, make_taylor_sampler
from optuna_taylorglo.search.generations import Slot
from optuna_taylorglo.search.history import ranked_trials, trial_loss
from optuna_taylorglo.seeds import Stage, stage_seed
from optuna_taylorglo.verdict.output import Accuracies, DataSweep, RankAgreement
from optuna_taylorglo.verdict.selection import Round
from optuna_taylorglo.verdict.statistics import Role, spearman, value_of_divergence
from optuna_taylorglo.verdict.tasks import (
    ComparedLoss,
    Do,
    Results,
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


CANDIDATES = 12
SHARES = {"a tenth": 1 / 10, "a third": 1 / 3, "the whole": 1.0}
"""Lengths that are tried, as shares of a full training."""

MAX_CORRELATION_LOST = 0.1
"""A shorter length may predict full trainings worse than another full training by this much."""

MIN_RELIABILITY = 0.5
"""Rank correlation of full trainings below which twelve candidates can say nothing."""

N_BEST = 3
"""Among so many of a length's best must be one as good as the best, but for noise."""


@dataclass(frozen=True)
class TriedLength:
    """What a length is worth.

    Attributes:
        share: Its share of a full training, in words.
        length: The length, in the recipe's unit.
        correlation: Rank correlation with full trainings of other seeds; None if there is no order.
        behind: How far the best of its `N_BEST` best is behind the best of all, in those full
            trainings; None if one of the two diverged.
    """

    share: str
    length: int
    correlation: float | None
    behind: float | None


@dataclass(frozen=True)
class EvaluationLength:
    """What a pilot decided.

    Attributes:
        length: Length of an evaluation, in the recipe's unit.
        reason: Why, in words.
        noise: Standard deviation of a full training's metric over seeds, among the better half of
            the candidates; None if it is unknown.
        tried: Lengths from the shortest to the whole.
    """

    length: int
    reason: str
    noise: float | None
    tried: tuple[TriedLength, ...]


class Pilot:
    """The pilot of a recipe whose evaluations have no length yet.

    Args:
        recipe: The recipe.
        n_classes: Number of classes of its data.
    """

    def __init__(self, recipe: Recipe, n_classes: int) -> None:
        self.recipe = recipe
        self.lengths = {
            max(1, round(share * recipe.budget.full)): name for name, share in SHARES.items()
        }
        # The first generation's distribution, with random numbers of the pilot's own.
        seed = stage_seed(recipe.search.seed, Stage.PILOT, 0)
        changed = recipe.changed(search=recipe.search.changed(seed=seed))
        sampler = make_taylor_sampler(changed, n_classes)
        self._losses = [
            compared_evolved_loss(
                "pilot",
                f"candidate {number} of the pilot",
                Role.EVOLVED,
                candidate_loss(recipe, sampler.candidate(Slot(number, sampler.rules)), n_classes),
            )
            for number in range(CANDIDATES)
        ]

    def next_step(self, results: Results) -> Round | EvaluationLength:
        """What to train, or the decision."""
        # Each candidate's lengths with one seed, and a full training with another.
        rows = [(length, 0) for length in self.lengths] + [(self.recipe.budget.full, 1)]
        tasks = [
            self._task(candidate, length, repeat)
            for length, repeat in rows
            for candidate in range(CANDIDATES)
        ]
        values = results(tasks)
        if values is None:
            return Round(1, tasks)
        groups = [values[i : i + CANDIDATES] for i in range(0, len(values), CANDIDATES)]
        sign = self.recipe.fitness.sign
        return decide(self.lengths, groups[:-1], groups[-1], self.recipe.budget.unit, sign)

    def _task(self, candidate: int, length: int, repeat: int) -> Task:
        number = 1 + 2 * candidate + repeat
        return stage_task(self.recipe, self._losses[candidate], Stage.PILOT, number, length=length)


def decide(
    lengths: dict[int, str],
    by_length: Sequence[Sequence[float | None]],
    other_full: Sequence[float | None],
    unit: str,
    sign: int = 1,
) -> EvaluationLength:
    """The shortest length that ranks candidates like full trainings.

    It must predict full trainings of other seeds as well as a full training does, but for
    `MAX_CORRELATION_LOST`, and one of its `N_BEST` best must be within one standard deviation of
    noise of the best.

    Args:
        lengths: Names of the lengths, from the shortest to the whole.
        by_length: Metric of each candidate at each of them; None for a training that diverged.
        other_full: Metric of each after a full training with another seed.
        unit: Unit of the lengths.
        sign: 1 where greater is better, -1 where smaller is.
    """
    judge = [_goodness(value, sign) for value in other_full]
    tried = []
    for (length, share), row in zip(lengths.items(), by_length, strict=True):
        measured = [_goodness(value, sign) for value in row]
        best = sorted(range(len(row)), key=lambda i: (-measured[i], i))[:N_BEST]
        behind = max(judge) - max(judge[i] for i in best)
        tried.append(
            TriedLength(share, length, _finite(spearman(measured, judge)), _finite(behind))
        )
    noise = _noise(by_length[-1], other_full, sign)
    whole = tried[-1]
    if whole.correlation is None or whole.correlation < MIN_RELIABILITY:
        reason = (
            f"Two full trainings of {len(other_full)} candidates rank them too differently to "
            f"judge a shorter length by (rank correlation {_shown(whole.correlation, '.2f')}), so "
            "evaluations are full trainings; more search.repeats may be needed."
        )
        return EvaluationLength(whole.length, reason, noise, tuple(tried))
    least = whole.correlation - MAX_CORRELATION_LOST
    chosen = next(
        length
        for length in tried
        if length is whole
        or (
            length.correlation is not None
            and length.correlation >= least
            and length.behind is not None
            and length.behind <= (noise or 0.0)
        )
    )
    figures = "; ".join(
        f"{each.share} ({each.length} {unit}) {_shown(each.correlation, '.2f')} and "
        f"{_shown(each.behind, '.4f')}"
        for each in tried
    )
    reason = (
        f"{chosen.share.capitalize()} of a full training, {chosen.length} {unit}, is the shortest "
        f"length that ranks {len(other_full)} candidates like full trainings. Rank correlation "
        f"with full trainings of other seeds, and how far the best of the first {N_BEST} is behind "
        f"the best: {figures}. Allowed: at least {least:.2f}, and at most {noise or 0.0:.4f}, "
        "the standard deviation over seeds among the better half."
    )
    return EvaluationLength(chosen.length, reason, noise, tuple(tried))


def save_evaluation_length(study: Study, decision: EvaluationLength) -> None:
    """Keep the decision in the study, unless there is one."""
    # Two workers that get here at once write the same decision.
    if study.user_attrs.get(EVALUATION_LENGTH) is None:
        study.set_user_attr(EVALUATION_LENGTH, asdict(decision))


def _noise(a: Sequence[float | None], b: Sequence[float | None], sign: int) -> float | None:
    """Standard deviation of a training's metric over seeds, from pairs of trainings.

    It is that of the better half: a bad loss may train with one seed and not with another, and
    would hide what is lost among the good ones.
    """
    both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    better = sorted(both, key=lambda pair: sign * sum(pair), reverse=True)[
        : math.ceil(len(both) / 2)
    ]
    squares = [(x - y) ** 2 for x, y in better]
    return math.sqrt(statistics.fmean(squares) / 2) if squares else None


def _goodness(value: float | None, sign: int) -> float:
    return -math.inf if value is None else sign * value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shown(value: float | None, format_: str) -> str:
    return "unknown" if value is None else format(value, format_)
