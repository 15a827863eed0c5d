"""A GLO search to be attacked."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from chaos_jobs import Outcome, Place, SearchJob
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_taylorglo.attributes import TREE
from optuna_taylorglo.losses.tree import BAIKAL
from optuna_taylorglo.recipes.settings import CoefficientSettings, GLOSettings
from optuna_taylorglo.search.candidates import MAX_FAILURES
from optuna_taylorglo.search.glo import GLOSampler, TreePoint
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.search.trees import function_key
from optuna_taylorglo.seeds import training_seed

SMALL = GLOSettings(
    popsize=10,
    n_generations=3,
    elite=2,
    coefficients=CoefficientSettings(popsize=4, n_generations=2),
)


def likeness(point: TreePoint) -> float:
    """How near a candidate is to Baikal on the grid, and its coefficients to 1.2."""
    pairs = zip(function_key(point.tree), function_key(BAIKAL), strict=True)
    far = sum(3.0 if a is None or b is None else min(3.0, abs(float(a - b))) for a, b in pairs)
    return -far - sum((c - 1.2) ** 2 for c in point.coefficients)


@dataclass(frozen=True)
class GLOJob(SearchJob):
    """A GLO search with a noisy objective, aborts and several reports an evaluation.

    Attributes:
        settings: Of the search.
    """

    settings: GLOSettings = SMALL
    generations: int = SMALL.n_generations + SMALL.coefficients.n_generations

    def queue(self, storage: Any = None, **heartbeat: float) -> GenerationScheduler:
        study = optuna.create_study(
            study_name=self.study_name,
            storage=storage,
            sampler=GLOSampler(self.settings, attempts=3, max_failures=MAX_FAILURES),
            direction="maximize",
            load_if_exists=True,
        )
        return GenerationScheduler(study, n_generations=self.generations, **heartbeat)

    def slot(self, place: Place) -> int:
        """Any number of its own: which slots there are depends on results."""
        generation, index, _ = map(int, place.split("/"))
        return generation * self.settings.popsize + index

    def outlasts_attacks(self, place: Place) -> bool:
        last = self.settings.coefficients.popsize - 1
        return place.startswith(f"{self.generations - 1}/{last}/")

    def _evaluate(self, queue: GenerationScheduler, trial: Trial, seconds: float) -> Outcome:
        place = self.place(trial)
        assert place is not None
        point = queue.sampler.suggest(trial)
        dice = random.Random(training_seed(0, *map(int, place.split("/"))))
        reports = {step: dice.random() for step in (1, 2, 3)}
        for step, value in reports.items():
            time.sleep(seconds / 3)
            trial.report(value, step)
        aborted = dice.random() < 0.15
        value = likeness(point) + dice.gauss(0, 0.1)
        return Outcome(_held(trial), None if aborted else value, reports)

    def outcomes(self, trials: Sequence[FrozenTrial]) -> dict[Place, list[Outcome]]:
        found: dict[Place, list[Outcome]] = {}
        for trial in trials:
            place = self.place(trial)
            if place is not None and trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
                value = trial.value if trial.state == TrialState.COMPLETE else None
                outcome = Outcome(_held(trial), value, trial.intermediate_values)
                found.setdefault(place, []).append(outcome)
        return found


def _held(trial: Trial | FrozenTrial) -> Mapping[str, Any]:
    """All that makes a trial's candidate: its tree and its coefficients."""
    return {**trial.params, "tree": " ".join(trial.user_attrs[TREE])}
