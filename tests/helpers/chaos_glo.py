"""A GLO search to be attacked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chaos_jobs import Place, SearchJob
from optuna.trial import FrozenTrial, Trial

from optuna_taylorglo.attributes import TREE
from optuna_taylorglo.evolution.candidates import MAX_FAILURES
from optuna_taylorglo.evolution.glo import GLOSampler, TreePoint, function_key
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.losses.tree import BAIKAL
from optuna_taylorglo.recipes.settings import CoefficientSettings, GLOSettings

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
    """A GLO search with a noisy objective, aborts and several reports an evaluation."""

    settings: GLOSettings = SMALL
    generations: int = SMALL.n_generations + SMALL.coefficients.n_generations

    def sampler(self) -> GLOSampler:
        return GLOSampler(self.settings, attempts=3, max_failures=MAX_FAILURES)

    def is_last(self, place: Place) -> bool:
        last = self.settings.coefficients.popsize - 1
        return place.startswith(f"{self.generations - 1}/{last}/")

    def fitness(self, queue: GenerationScheduler, trial: Trial) -> float:
        return likeness(queue.sampler.suggest(trial))

    def params(self, trial: Trial | FrozenTrial) -> dict[str, Any]:
        return {**trial.params, "tree": " ".join(trial.user_attrs[TREE])}
