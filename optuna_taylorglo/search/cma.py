"""CMA-ES as a function of finished generations: replayed by each process, never stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.trial import FrozenTrial

from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.search.generations import Replay, RetryPolicy, Slot
from optuna_taylorglo.seeds import candidate_seed

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
    lr_adapt: bool = False
    source: Sequence[tuple[Sequence[float], float]] | None = None


@dataclass(frozen=True)
class SearchState:
    """The distribution N(mean, σ²C) after the results of all generations before one.

    Attributes:
        generation: That generation.
        sigma: Step size σ.
        mean: Mean, shape (n,).
        eigenvalues: Eigenvalues of C in ascending order, shape (n,).
        stds: Standard deviation of each parameter in its own units, shape (n,).
    """

    generation: int
    sigma: float
    mean: tuple[float, ...]
    eigenvalues: tuple[float, ...]
    stds: tuple[float, ...]

    @property
    def condition_number(self) -> float:
        """Largest over smallest eigenvalue of C."""
        return self.eigenvalues[-1] / self.eigenvalues[0]


class CMAReplay(Replay):
    """CMA-ES, told one finished generation after the other.

    Where generations overlap, a second one follows a generation behind, for the candidates that are
    drawn from the older distribution. It is told the same, because a copy would not do: cmaes
    rounds its matrix in a copy.

    Args:
        settings: What CMA-ES starts with.
        stored_in: The point that a trial holds, None if it holds none.
        maximize: Whether larger values are better.

    Attributes:
        states: Its distribution before each generation.
    """

    def __init__(
        self,
        settings: CMASettings,
        stored_in: Callable[[FrozenTrial], Sequence[float] | None],
        *,
        maximize: bool,
    ) -> None:
        import cmaes  # type: ignore[import-untyped]  # slow: it imports scipy.stats

        super().__init__(settings.policy.popsize)
        self._settings, self._stored_in, self._maximize = settings, stored_in, maximize
        self._units = np.array(settings.units)
        mean, sigma, cov = np.array(settings.x0) / self._units, settings.sigma, None
        if settings.source is not None:
            sign = -1.0 if maximize else 1.0
            mean, sigma, cov = cmaes.get_warm_start_mgd(
                [(np.array(point) / self._units, sign * value) for point, value in settings.source]
            )
        # With two or three candidates the rank-μ update has rate 0, and cmaes divides by it.
        with np.errstate(divide="ignore"):
            self._cma, self._older = (
                cmaes.CMA(
                    mean=mean,
                    sigma=sigma,
                    bounds=np.array(settings.limits) / self._units[:, None],
                    population_size=settings.policy.popsize,
                    cov=cov,
                    lr_adapt=settings.lr_adapt,
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
            eigenvalues=tuple(float(e) for e in np.linalg.eigvalsh(self._cma._C)),
            stds=tuple(stds.tolist()),
        )

    def tell(self, slots: tuple[Slot, ...]) -> None:
        """Tell CMA-ES the ranks of the next finished generation."""
        # Equal ones stay in the order of their indices.
        best_first = sorted(slots, key=lambda slot: slot.sort_key(maximize=self._maximize))
        ranked = [
            (np.array(self._point_of(slot)) / self._units, float(rank))
            for rank, slot in enumerate(best_first)
        ]
        if self._settings.policy.overlap and self._not_told_older:
            self._older.tell(self._not_told_older)
        self._not_told_older = ranked
        self._cma.tell(ranked)
        self.states.append(self._state())

    def _point_of(self, slot: Slot) -> Sequence[float]:
        """The point that was evaluated in a slot, or would have been.

        A stored point counts more than one drawn here: another processor may draw another one.
        """
        stored = (self._stored_in(trial) for trial in slot.holders)
        point = next((point for point in stored if point is not None), None)
        return self.draw(slot.generation, slot.index) if point is None else point

    def _within_limits(self, internal: FloatArray) -> list[float]:
        """Parameters in their own units; rounding must not carry one over its limit."""
        ranges = zip((internal * self._units).tolist(), self._settings.limits, strict=True)
        return [min(max(value, low), high) for value, (low, high) in ranges]

    def draw(self, generation: int, index: int) -> list[float]:
        """Draw candidate (generation, index).

        Its distribution is the newest or, if it must not depend on the results of the last finished
        generation, the one before.
        """
        settings, n_told = self._settings, len(self.states) - 1
        is_early = settings.policy.n_known(generation, index) < n_told
        cma = self._older if settings.policy.overlap and is_early else self._cma
        cma.reseed_rng(candidate_seed(settings.seed, generation, index))
        for _ in range(_MAX_REFUSALS):
            point = self._within_limits(cma.ask())
            if settings.accept is None or settings.accept(point):
                return point
        raise RuntimeError(
            f"accept refused {_MAX_REFUSALS} draws in a row for candidate {index} of generation "
            f"{generation}: it leaves CMA-ES nothing to propose around mean "
            f"{[round(float(m), 3) for m in cma.mean]}."
        )
