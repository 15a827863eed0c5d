"""The verdict: full trainings of the winner, of baselines and of controls, and what they say.

Everything that trains is a task of the companion study (`verdict.task_queue`), so any worker can do
it and nothing is done twice. The stages, each waiting for the one before it:

1. Rerank: the best candidates once more, with fresh seeds, because the best of many noisy
   evaluations owes part of its rank to luck.
2. Tune: cross-entropy's learning rate and label smoothing, on validation, with a stated budget.
3. Test: every loss at the recipe's full budget, judged by the test set.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import N_CLASSES
from optuna_taylorglo.losses.taylor_loss import load_loss
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.history import trial_loss
from optuna_taylorglo.seeds import Stage, stage_seed
from optuna_taylorglo.training.run import test_metric
from optuna_taylorglo.verdict.compared_losses import (
    ComparedLoss,
    cross_entropy,
    scale_controls,
    taylor_loss_compared,
)
from optuna_taylorglo.verdict.statistics import Sample, Verdict, contrasts
from optuna_taylorglo.verdict.task_queue import Task

LEARNING_RATE_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SMOOTHINGS = (0.05, 0.1, 0.2, 0.3)
TUNING_SEEDS = 2
RERANK_SEEDS = 5
GUESSING_FACTOR = 1.5
"""An accuracy below this multiple of 1/n counts as guessing."""

BASELINES = ("ce", "ce-tuned", "ce-smoothed", "baikal", "baikal-cma")
DEFAULT_BASELINES = ("ce", "ce-tuned", "ce-smoothed", "baikal-cma")

Do = Callable[[Sequence[Task]], list[float | None]]
"""Does tasks and returns their values in order, None for those that failed."""


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Attributes:
        seeds: Full trainings of each loss.
        against: Names out of `BASELINES`, or paths of loss files.
        rerank: How many of the best candidates are evaluated again before one is chosen; 0 for
            the paper's rule, the single best evaluation.
    """

    seeds: int = 10
    against: tuple[str, ...] = DEFAULT_BASELINES
    rerank: int = 5

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ValueError(f"seeds must be at least 2, not {self.seeds}: one has no spread.")
        if self.rerank < 0:
            raise ValueError(f"rerank must be at least 0, not {self.rerank}.")
        for name in self.against:
            if name not in BASELINES and not Path(name).is_file():
                raise ValueError(
                    f"against has {name!r}; allowed are {', '.join(BASELINES)} and loss files."
                )


def evaluate(study: Study, recipe: Recipe, plan: Plan, do: Do) -> Verdict:
    """Compare a study's winner with baselines and controls.

    Args:
        study: A study with complete trials.
        recipe: Its recipe.
        plan: What to compare.
        do: Does tasks.

    Returns:
        The verdict.

    Raises:
        ValueError: If the study has nothing to evaluate.
    """
    trial = choose_winner(study, recipe, plan.rerank, do)
    loss = trial_loss(study, trial)
    n_classes = study.user_attrs[N_CLASSES]
    losses = [taylor_loss_compared("winner", "evolved loss", loss)]
    losses += [_baseline(name, recipe, do) for name in plan.against]
    losses += scale_controls(loss, n_classes)
    tasks = [
        _task(recipe, loss, Stage.TEST, seed, full=True)
        for loss in losses
        for seed in range(plan.seeds)
    ]
    values = do(tasks)
    samples = tuple(
        _sample(loss, values[i * plan.seeds : (i + 1) * plan.seeds])
        for i, loss in enumerate(losses)
    )
    verdict = Verdict(
        samples, contrasts(samples[0], samples[1:]), "", test_metric(recipe), trial.number
    )
    return replace(verdict, text=words(verdict, n_classes))


def choose_winner(study: Study, recipe: Recipe, rerank: int, do: Do) -> FrozenTrial:
    """The trial to put to the test: the single best, or the best of the best on fresh seeds."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    ranked = sorted(complete, key=lambda trial: (-trial.values[0], trial.number))
    if not ranked:
        raise ValueError(f"study {study.study_name!r} has no complete trial to evaluate yet.")
    if rerank < 2:
        return ranked[0]
    best = ranked[:rerank]
    tasks = [
        _task(
            recipe,
            taylor_loss_compared("candidate", f"trial {t.number}", trial_loss(study, t)),
            Stage.RERANK,
            seed,
        )
        for t in best
        for seed in range(RERANK_SEEDS)
    ]
    means = _means(do(tasks), RERANK_SEEDS)
    return best[max(range(len(best)), key=lambda i: (means[i], -i))]


def words(verdict: Verdict, n_classes: int) -> str:
    """What a verdict says, for a person.

    Args:
        verdict: The verdict, whatever its text.
        n_classes: Number of classes, which tells what guessing comes to.
    """
    winner, *others = verdict.samples
    by_name = {sample.name: sample for sample in others}
    lines = []
    significant = {c.against: c.p_holm < 0.05 and c.difference > 0 for c in verdict.contrasts}
    baselines = [s for s in others if s.name not in ("winner-normalised", "ce-scaled")]
    beaten = [s.label for s in baselines if significant.get(s.name)]
    if baselines and len(beaten) == len(baselines):
        lines.append("The evolved loss is significantly better than every baseline.")
    elif beaten:
        rest = [s.label for s in baselines if not significant.get(s.name)]
        lines.append(
            f"The evolved loss is significantly better than {_list(beaten)}, "
            f"but not than {_list(rest)}."
        )
    else:
        lines.append("The evolved loss is not significantly better than any baseline.")
    lines.append("(One-tailed Welch tests at 5 %, corrected by Holm's method.)")
    if "ce" in by_name and "ce-scaled" in by_name:
        gain = winner.mean - by_name["ce"].mean
        scale = by_name["ce-scaled"].mean - by_name["ce"].mean
        lines.append(
            f"Of its difference of {gain:+.4f} to cross-entropy, {scale:+.4f} is what "
            "cross-entropy gains from the same scale (a larger or smaller first gradient acts as a "
            f"learning rate), and {gain - scale:+.4f} is left for the shape."
        )
    if "ce" in by_name and "winner-normalised" in by_name:
        shape = by_name["winner-normalised"].mean - by_name["ce"].mean
        lines.append(
            f"With its first gradient made as large as cross-entropy's, it differs by {shape:+.4f}."
        )
    guessing = GUESSING_FACTOR / n_classes
    stuck = [(sum(v < guessing for v in s.values), s) for s in verdict.samples]
    if any(count for count, _ in stuck):
        counts = [f"{count} of {len(s.values)} of {s.label}" for count, s in stuck if count]
        lines.append(
            f"Trainings that did not get beyond guessing (below {guessing:.2f}), which the means "
            f"and intervals suffer from: {_list(counts)}."
        )
    failed = [f"{s.failed} of {s.label}" for s in verdict.samples if s.failed]
    if failed:
        lines.append(f"Trainings that failed and are not in the means: {_list(failed)}.")
    return "\n".join(lines)


def _baseline(name: str, recipe: Recipe, do: Do) -> ComparedLoss:
    if name == "ce":
        return cross_entropy()
    if name == "ce-tuned":
        rates = [recipe.optimiser.lr * factor for factor in LEARNING_RATE_FACTORS]
        tried = [
            cross_entropy(
                name, f"cross-entropy, learning rate {rate:.3g} (tuned)", learning_rate=rate
            )
            for rate in rates
        ]
        return _tuned(tried, recipe, do)
    if name == "ce-smoothed":
        tried = [
            cross_entropy(
                name,
                f"cross-entropy, label smoothing {smoothing:g} (tuned)",
                settings={"label_smoothing": smoothing},
            )
            for smoothing in SMOOTHINGS
        ]
        return _tuned(tried, recipe, do)
    if name in ("baikal", "baikal-cma"):
        return ComparedLoss(name, {"baikal": "Baikal", "baikal-cma": "BaikalCMA"}[name], name)
    return taylor_loss_compared(Path(name).stem, name, load_loss(name))


def _tuned(tried: Sequence[ComparedLoss], recipe: Recipe, do: Do) -> ComparedLoss:
    """The loss that is best on validation at the candidates' budget."""
    tasks = [_task(recipe, c, Stage.TUNE, seed) for c in tried for seed in range(TUNING_SEEDS)]
    means = _means(do(tasks), TUNING_SEEDS)
    return tried[max(range(len(tried)), key=lambda i: (means[i], -i))]


def _task(
    recipe: Recipe, loss: ComparedLoss, stage: Stage, seed: int, *, full: bool = False
) -> Task:
    return Task(
        loss=loss,
        # The same seeds for all losses of a stage: they start from the same weights.
        seed=stage_seed(recipe.search.seed, stage, seed),
        length=recipe.budget.full if full else recipe.budget.evaluation,
        unit=recipe.budget.unit,
        on_test_set=full,
        keep_network=full and loss.name == "winner" and seed == 0,
    )


def _means(values: Sequence[float | None], size: int) -> list[float]:
    """Means of consecutive groups; a failed training counts as 0, below any that trained."""
    counted = [0.0 if value is None else value for value in values]
    return [statistics.fmean(counted[i : i + size]) for i in range(0, len(counted), size)]


def _sample(loss: ComparedLoss, values: Sequence[float | None]) -> Sample:
    done = tuple(value for value in values if value is not None)
    return Sample(loss.name, loss.label, done, failed=len(values) - len(done))


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
