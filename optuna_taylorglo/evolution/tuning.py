"""Known losses, trained at several scales before CMA-ES, which starts at the best one.

A *shape* is (α, β, γ, δ, ε), all parameters of an anchored loss but the logarithm s of its scale.
A good shape carries over to other tasks, its scale does not. The first round trains known shapes
and standard ones at a few scales. The second round trains the best known loss and the best standard
one at scales near theirs. A known loss was good on several tasks, and a few noisy trainings say
little, so a standard loss must be better by more than a standard error.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from optuna_taylorglo.evolution.cma import CMAReplay, CMASettings, Stored
from optuna_taylorglo.evolution.scheduler import Replay, SearchState, Slot
from optuna_taylorglo.recipes.presets import NEIGHBORS, SCALES, STANDARD, Shape

NEAR = 0.4  # width of the window in which trainings at other scales say how good one is


class Known(NamedTuple):
    """A shape at the logarithm of a scale, and its score, greater being better."""

    shape: Shape
    log_scale: float
    score: float


def first_round(shapes: Sequence[Shape], *, scaled: bool) -> list[tuple[Shape, float]]:
    """The shapes and standard losses, each at several scales or, unscaled, as it is."""
    scales = [*((shape, SCALES) for shape in shapes), *STANDARD.items()]
    return [(shape, s) for shape, several in scales for s in (several if scaled else (0.0,))]


class TuningReplay(Replay):
    """Both rounds of known losses, then CMA-ES from the best one."""

    def __init__(
        self, shapes: Sequence[Shape], cma: CMASettings, stored: Stored, *, maximize: bool
    ) -> None:
        super().__init__(cma.policy)
        self.stored = stored
        self._settings, self._maximize = cma, maximize
        self._scaled = len(cma.x0) == 6
        self._points = [self._point(*each) for each in first_round(shapes, scaled=self._scaled)]
        self._told: list[list[Known]] = []  # by round
        self._rivals: list[Known] = []  # the best known loss and the best standard one
        self._cma: CMAReplay | None = None

    @property
    def states(self) -> list[SearchState]:  # type: ignore[override]
        """Distributions of CMA-ES, with the generations of the whole search."""
        states = [] if self._cma is None else self._cma.states
        return [replace(s, generation=len(self._told) + s.generation) for s in states]

    @property
    def start(self) -> list[float] | None:
        """The loss at which CMA-ES starts, which was trained before; None while it is not known."""
        return None if self._cma is None else list(self._cma.states[0].mean)

    def draw(self, generation: int, index: int) -> list[float]:
        if self._cma is not None:
            return self._cma.draw(generation, index)
        if generation != len(self._told):
            due = f"is not known before generation {len(self._told)} is finished"
            advice = "let a GenerationScheduler hand out trials."
            raise RuntimeError(f"Candidate {index} of generation {generation} {due}: {advice}")
        return self._points[index]

    def tell(self, slots: tuple[Slot, ...]) -> None:
        super().tell(slots)
        if self._cma is not None:
            self._cma.tell(slots)
            return
        self._told.append([self._known(slot) for slot in slots])
        if len(self._told) == 1:
            self._rivals = self._best_two()
            steps = NEIGHBORS if self._scaled else (0.0,) * len(NEIGHBORS)
            second = [
                (each.shape, each.log_scale + step) for each in self._rivals for step in steps
            ]
            self._points = [self._point(*each) for each in second]
        else:
            settings = replace(self._settings, x0=tuple(self._best()))
            self._cma = CMAReplay(settings, self.stored, maximize=self._maximize)

    def _point(self, shape: Shape, log_scale: float) -> list[float]:
        """Parameters of a shape at a scale."""
        scale = [log_scale] if self._scaled else []
        ranges = zip([*shape[:4], *scale, shape[4]], self._settings.limits, strict=True)
        return [min(max(value, low), high) for value, (low, high) in ranges]

    def _known(self, slot: Slot) -> Known:
        a, b, c, d, *scale, e = self.candidate(slot)  # a user may have enqueued another one
        score = math.nan if slot.result is None else slot.result.values[0]
        log_scale = scale[0] if self._scaled else 0.0
        return Known((a, b, c, d, e), log_scale, score if self._maximize else -score)

    def _best_two(self) -> list[Known]:
        """The best known loss of the first round, and the best standard one."""
        both = _without_gaps(self._told[0])
        standard = [k for k in both if k.shape in STANDARD]
        known = [k for k in both if k.shape not in STANDARD]
        return [max(each or both, key=attrgetter("score")) for each in (known, standard)]

    def _best(self) -> list[float]:
        """The loss at which CMA-ES starts, at the scale that is best among those near to it."""
        trained = _without_gaps([k for told in self._told for k in told])
        second = trained[len(self._told[0]) :]
        known, standard = ([k.score for k in second if k.shape == r.shape] for r in self._rivals)
        shape = self._rivals[_clearly_better(standard, known)].shape
        of_shape = [k for k in trained if k.shape == shape]

        def smoothed(log_scale: float) -> float:
            weights = [math.exp(-(((k.log_scale - log_scale) / NEAR) ** 2) / 2) for k in of_shape]
            # Rounded, so that equal ones are equal on every machine.
            return round(statistics.fmean((k.score for k in of_shape), weights), 12)

        return self._point(shape, max((k.log_scale for k in of_shape), key=smoothed))


def _without_gaps(trained: Sequence[Known]) -> list[Known]:
    """The same, with those that did not train to the end below the worst, as the best is above."""
    scores = [k.score for k in trained if math.isfinite(k.score)] or [0.0]
    failed = min(scores) - (max(scores) - min(scores) or 1.0)
    return [k if math.isfinite(k.score) else k._replace(score=failed) for k in trained]


def _clearly_better(scores: Sequence[float], others: Sequence[float]) -> bool:
    """Whether a mean is greater by more than a standard error of the difference."""
    if min(len(scores), len(others)) < 2:  # a user enqueued others in their place
        return False
    error = math.hypot(*(statistics.stdev(s) / math.sqrt(len(s)) for s in (scores, others)))
    return statistics.fmean(scores) - statistics.fmean(others) > error
