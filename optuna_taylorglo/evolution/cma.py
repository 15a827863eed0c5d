"""CMA-ES as a function of the results of finished generations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.trial import FrozenTrial

from optuna_taylorglo.evolution.scheduler import Replay, RetryPolicy, SearchState, Slot, n_known
from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.seeds import candidate_seed

Stored = Callable[[FrozenTrial], Sequence[float] | None]

# With half of all draws refused, a thousand refusals in a row have probability 1e-301.
_MAX_REFUSALS = 1000


@dataclass(frozen=True)
class CMASettings:
    """What CMA-ES starts with, in tuples of length n; `TaylorGLOSampler` says what each means."""

    sigma: float
    seed: int
    policy: RetryPolicy
    x0: tuple[float, ...]
    units: tuple[float, ...]
    limits: tuple[tuple[float, float], ...]
    accept: Callable[[Sequence[float]], bool] | None = None


class CMAReplay(Replay):
    """CMA-ES as a function of finished generations.

    Where generations overlap, a second one follows a generation behind, for the candidates that are
    drawn from the older distribution. It is told the same, as cmaes rounds its matrix in a copy.
    """

    def __init__(self, settings: CMASettings, stored: Stored, *, maximize: bool) -> None:
        import cmaes  # type: ignore[import-untyped]  # slow: it imports scipy.stats

        super().__init__(settings.policy)
        self.stored = stored
        self._settings, self._maximize = settings, maximize
        self._units = np.array(settings.units)
        # With two or three candidates the rank-μ update has rate 0, and cmaes divides by it.
        with np.errstate(divide="ignore"):
            self._cma, self._older = (
                cmaes.CMA(
                    mean=np.array(settings.x0) / self._units,
                    sigma=settings.sigma,
                    bounds=np.array(settings.limits) / self._units[:, None],
                    population_size=settings.policy.popsize,
                )
                for _ in range(2)
            )
        self._not_told_older: list[tuple[FloatArray, float]] = []
        self.states = [self._state()]

    def _state(self) -> SearchState:
        # cmaes publishes the mean only; σ and C have no public names.
        stds = self._cma._sigma * np.sqrt(np.diag(self._cma._C)) * self._units
        return SearchState(
            generation=self._cma.generation,
            sigma=float(self._cma._sigma),
            mean=tuple(self._within_limits(self._cma.mean)),
            eigenvalues=tuple(np.linalg.eigvalsh(self._cma._C).tolist()),
            stds=tuple(stds.tolist()),
        )

    def tell(self, slots: tuple[Slot, ...]) -> None:
        """Tell CMA-ES the ranks of the next finished generation."""
        # Equal ones stay in the order of their indices.
        best_first = sorted(slots, key=lambda slot: slot.sort_key(maximize=self._maximize))
        ranked = [
            (np.array(self.candidate(slot)) / self._units, float(rank))
            for rank, slot in enumerate(best_first)
        ]
        if self._settings.policy.overlap and self._not_told_older:
            self._older.tell(self._not_told_older)
        self._not_told_older = ranked
        self._cma.tell(ranked)
        self.states.append(self._state())

    def _within_limits(self, internal: FloatArray) -> list[float]:
        """Parameters in their own units; rounding must not carry one over its limit."""
        ranges = zip((internal * self._units).tolist(), self._settings.limits, strict=True)
        return [min(max(value, low), high) for value, (low, high) in ranges]

    def draw(self, generation: int, index: int) -> list[float]:
        # From the newest distribution or, if the candidate must not depend on the results of the
        # last finished generation, from the one before.
        settings, n_told = self._settings, len(self.states) - 1
        is_early = n_known(generation, index, settings.policy.overlap) < n_told
        cma = self._older if settings.policy.overlap and is_early else self._cma
        cma.reseed_rng(candidate_seed(settings.seed, generation, index))
        for _ in range(_MAX_REFUSALS):
            point = self._within_limits(cma.ask())
            if settings.accept is None or settings.accept(point):
                return point
        refused = (
            f"accept refused {_MAX_REFUSALS} draws in a row for candidate {index} of generation"
        )
        mean = [round(float(m), 3) for m in cma.mean]
        raise RuntimeError(
            f"{refused} {generation}: it leaves nothing to propose around mean {mean}."
        )
