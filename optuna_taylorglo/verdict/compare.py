"""The verdict: full trainings of the winner, of baselines and of controls on the test set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from optuna.study import Study
from optuna.trial import TrialState

from optuna_taylorglo.attributes import CURVE, KEY, N_CLASSES
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.losses.files import load_loss
from optuna_taylorglo.recipes.schema import FunctionRecipe, Recipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.study.queue import counted_trials
from optuna_taylorglo.validation import files_beside, nearest
from optuna_taylorglo.verdict.baselines import BASELINES, DEFAULT_BASELINES, LearningRates, baseline
from optuna_taylorglo.verdict.output import evaluation_advice, verdict_in_words
from optuna_taylorglo.verdict.selection import choose, load_selection
from optuna_taylorglo.verdict.statistics import Role, Sample, Verdict, contrasts
from optuna_taylorglo.verdict.tasks import (
    ComparedLoss,
    Runner,
    Task,
    compared_evolved_loss,
    cross_entropy,
    scale_controls,
    stage_task,
    value_of_divergence,
    with_divergence,
)


def check_comparison(seeds: int, against: Sequence[str]) -> None:
    """Raise `UsageError` for what cannot be compared."""
    if not isinstance(seeds, int) or seeds < 2:
        raise UsageError(f"seeds must be at least 2, not {seeds!r}: one has no spread.")
    if isinstance(against, str) or not isinstance(against, Sequence):
        raise UsageError(f"against is {against!r}, must be a list such as ['ce-tuned'].")
    files = [name for name in against if name not in BASELINES]
    for name in files:
        if not Path(name).is_file():
            hint = nearest(name, [*BASELINES, *files_beside(name, ".json")])
            allowed = f"allowed are {', '.join(BASELINES)} and loss files."
            raise UsageError(f"against has {name!r}; {hint or allowed}")
    for name in files:
        load_loss(name)  # what cannot be read is told before anything is trained


def evaluate(
    study: Study,
    recipe: Recipe,
    run: Runner,
    *,
    seeds: int = 10,
    against: Sequence[str] = DEFAULT_BASELINES,
    rates: LearningRates | None = None,
    test_version: str = "",
) -> Verdict:
    """Compare a study's winner with baselines and controls, by so many full trainings of each.

    `against` has names out of `BASELINES` and paths of loss files. Rates are multiples of the
    recipe's unless given. Results of another version of a test function do not count.
    """
    check_comparison(seeds, against)
    make_task = partial(_task, recipe, test_version=test_version)
    selected = choose(study, recipe, run)
    n_classes = study.user_attrs[N_CLASSES]
    rates = rates or LearningRates.of(recipe)
    winner = compared_evolved_loss("winner", "evolved loss", Role.EVOLVED, selected.loss)
    if isinstance(recipe, FunctionRecipe):
        _try_test(make_task, winner, run)
    tunable = [name for name in against if name != "ce-tuned" or rates.obstacle is None]
    losses = [
        winner,
        *(baseline(name, recipe, run, rates) for name in tunable),
        *scale_controls(selected.loss, n_classes),
    ]
    compared = deduplicate(losses, recipe)
    tasks = [make_task(loss, seed) for loss, _ in compared for seed in range(seeds)]
    results = run(tasks)
    divergence = value_of_divergence(results, recipe, n_classes)
    samples = []
    for i, (loss, also) in enumerate(compared):
        own = slice(i * seeds, (i + 1) * seeds)
        values = tuple(with_divergence(results[own], divergence))
        diverged = tuple(n for n, value in enumerate(results[own]) if value is None)
        keys = tuple(task.key for task in tasks[own])
        samples.append(Sample(loss.name, loss.label, loss.role, values, diverged, also, keys))
    verdict = Verdict(
        tuple(samples),
        contrasts(samples[0], samples[1:], sign=recipe.fitness.sign),
        text="",
        test_metric=recipe.fitness.test_metric,
        trial=None if selected.trial is None else selected.trial.number,
        mode=recipe.fitness.mode,
        divergence=divergence,
        loss=selected.loss.settings(),
        scale_acts=selected.loss.lr_factor is None,
    )
    selection = load_selection(study)
    advice = "" if selection is None else evaluation_advice(selection, recipe)
    words = [verdict_in_words(verdict, n_classes), advice, rates.note]
    return replace(verdict, text="\n".join(filter(None, words)))


def _task(recipe: Recipe, loss: ComparedLoss, seed: int, *, test_version: str = "") -> Task:
    return stage_task(
        recipe,
        loss,
        Stage.TEST,
        seed,
        on_test_set=True,
        save_network=loss.role == Role.EVOLVED and seed == 0,
        test_version=test_version,
    )


def _try_test(
    make_task: Callable[[ComparedLoss, int], Task], winner: ComparedLoss, run: Runner
) -> None:
    """Call a test function for the first time before any baseline is tuned."""
    if all(run([make_task(loss, 0)]) == [None] for loss in (winner, cross_entropy())):
        raise UsageError(
            "test returned no finite number, neither with the winner nor with cross-entropy: it "
            "must return the test metric."
        )


def deduplicate(
    losses: Sequence[ComparedLoss], recipe: Recipe
) -> list[tuple[ComparedLoss, tuple[str, ...]]]:
    """The losses in order, each with its label and the names of those that are trained alike."""
    rates, roles = LearningRates.of(recipe), list(Role)
    groups: dict[str, list[ComparedLoss]] = {}
    for loss in losses:
        plain = replace(loss, learning_rate=None) if loss.learning_rate == rates.base else loss
        smoothing = plain.settings.get("label_smoothing")
        if plain.kind == "cross-entropy" and smoothing == recipe.loss.label_smoothing:
            plain = replace(plain, settings={})
        groups.setdefault(_task(recipe, plain, 0).key, []).append(loss)
    found = []
    for group in groups.values():
        first, *others = sorted(group, key=lambda loss: roles.index(loss.role))
        also = tuple(dict.fromkeys(loss.name for loss in others if loss.name != first.name))
        label = first.label
        if first.role == Role.REFERENCE and "ce-tuned" in also:
            label = f"cross-entropy ({rates.label(rates.start)}; tuning kept it)"
            others = [other for other in others if other.name != "ce-tuned"]
        for other in dict.fromkeys(other.label for other in others if other.label != first.label):
            label += f", the same as {other}"
        found.append((replace(first, label=label), also))
    return found


Curve = tuple[tuple[int, float], ...]
"""Steps of a training, and the validation metric there."""


def learning_curves(evaluation_study: Study, verdict: Verdict) -> list[tuple[Sample, list[Curve]]]:
    """Recorded curves of the evolved loss, cross-entropy and the best other baseline."""
    by_key = {
        trial.user_attrs[KEY]: tuple((int(step), float(value)) for step, value in curve)
        for trial in counted_trials(evaluation_study, (TrialState.COMPLETE,))
        if KEY in trial.user_attrs and (curve := trial.user_attrs.get(CURVE))
    }
    found: dict[Role, tuple[Sample, list[Curve]]] = {}
    for sample in sorted(verdict.samples, key=lambda sample: -verdict.sign * sample.mean):
        if curves := [by_key[key] for key in sample.keys if key in by_key]:
            found.setdefault(sample.role, (sample, curves))
    roles = (Role.EVOLVED, Role.REFERENCE, Role.BASELINE)
    return [found[role] for role in roles if role in found]
