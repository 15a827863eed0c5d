"""Studies for tests of figures and report: real searches on a fitness that costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optuna
import yaml
from optuna.trial import Trial
from searches import DIGITS
from verdicts import sample

from optuna_taylorglo.attributes import CROSS_ENTROPY, CURVE, KEY, N_CLASSES
from optuna_taylorglo.evolution.candidates import make_sampler
from optuna_taylorglo.recipes.load import frozen_recipe, replace_recipe
from optuna_taylorglo.recipes.schema import recipe_from_dict
from optuna_taylorglo.study.open import evaluation_study_name
from optuna_taylorglo.verdict.compare import evaluate
from optuna_taylorglo.verdict.output import save_verdict
from optuna_taylorglo.verdict.statistics import Verdict, contrasts
from optuna_taylorglo.verdict.sweep import DataSweep, RankAgreement, SavedSweep, save_sweep
from optuna_taylorglo.verdict.tasks import Task

POPULATION = 6
GENERATIONS = 4


def searched_study(
    trials: int = POPULATION * GENERATIONS, *, name: str = "drawn", **changes: dict[str, Any]
) -> optuna.Study:
    """A study of so many candidates; every seventh is aborted."""
    content = yaml.safe_load(DIGITS.read_text())
    content["search"] |= {"popsize": POPULATION, "n_generations": GENERATIONS}
    content["search"] |= {"space": "theta", "filter": "trainable"}
    content["early_abort"]["attempts"] = 1
    for section, values in changes.items():
        content[section] = (content.get(section) or {}) | values
    recipe = recipe_from_dict(content)
    sampler = make_sampler(recipe, 10)
    study = optuna.create_study(study_name=name, direction="maximize", sampler=sampler)
    replace_recipe(study, recipe)
    study.set_user_attr(N_CLASSES, 10)
    study.set_user_attr(CROSS_ENTROPY, {"11": 0.4, "12": 0.6})

    def fitness(trial: Trial) -> float:
        theta = sampler.suggest(trial)
        if trial.number % 7 == 5:
            trial.report(0.1, 50)
            raise optuna.TrialPruned
        return 1 / (1 + 0.02 * sum((x - 1) ** 2 for x in theta))

    study.optimize(fitness, n_trials=trials)
    return study


def made_verdict() -> Verdict:
    """A verdict with baselines, a control and losses without trainings."""
    samples = (
        sample("winner", "evolved loss", (0.98, 0.99, 0.985, 0.99)),
        sample("ce", "cross-entropy", (0.95, 0.96, 0.955, 0.95)),
        sample("ce-tuned", "cross-entropy, learning rate 0.15 (tuned)", (0.98, 0.985, 0.99, 0.98)),
        sample("baikal-cma", "BaikalCMA", (0.90, 0.91, 0.1, 0.1), diverged=(2, 3)),
        sample("ce-scaled", "cross-entropy, scaled", (0.97, 0.98, 0.975, 0.97)),
    )
    text = "A headline.\nPart of it is scale."
    found = contrasts(samples[0], samples[1:])
    return Verdict(samples, found, text, "test_accuracy", divergence=0.1)


def evaluation_study_of(study: optuna.Study) -> optuna.Study:
    """The evaluation study of a study, created if need be."""
    return optuna.create_study(
        study_name=evaluation_study_name(study.study_name),
        storage=study._storage,
        load_if_exists=True,
    )


def save_sweeps(study: optuna.Study) -> None:
    """Save a sweep over each setting."""
    data = {"evolved loss": {0.0: [0.9, 0.92], 0.4: [0.8]}, "cross-entropy": {0.0: [0.9]}}
    diverged = {label: {0.0: 0, 0.4: 0} for label in data}
    agreements = (RankAgreement(100, 1000, 0.5, 0.1, 8), RankAgreement(500, 1000, 0.9, 0.01, 8))
    for sweep in (
        SavedSweep("fraction", "test_accuracy", DataSweep(data, diverged, None), loss="trial 3"),
        SavedSweep("label_noise", "test_accuracy", DataSweep(data, diverged, 0.1), loss="trial 3"),
        SavedSweep("length", "steps", agreements=agreements),
    ):
        save_sweep(evaluation_study_of(study), sweep)


def verdict_with_curves(
    study: optuna.Study,
    value: Callable[[Task, int], float | None] = lambda task, step: 0.5 + step / 2500,
) -> Verdict:
    """A verdict on a study, saved as `taylorglo evaluate` does; `value` is None without a curve."""
    evaluation_study = evaluation_study_of(study)
    tested: list[Task] = []

    def do(tasks: Sequence[Task]) -> list[float | None]:
        tested.extend(task for task in tasks if task.on_test_set)
        return [0.9 - 0.1 * (t.loss.name != "winner") + 0.001 * (t.seed % 7) for t in tasks]

    verdict = evaluate(study, frozen_recipe(study), do, seeds=3, against=("ce", "ce-tuned", "gce"))
    for task in tested:
        curve = [[step, value(task, step)] for step in (100, 500, 1000)]
        attrs = {KEY: task.key} | ({CURVE: curve} if curve[0][1] is not None else {})
        evaluation_study.add_trial(optuna.create_trial(value=0.9, user_attrs=attrs))
    save_verdict(evaluation_study, verdict)
    return verdict
