"""CMA-ES as a function of finished generations: replayed by each process, never stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from optuna.trial import FrozenTrial

from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.search.generations import RetryPolicy, Slot, rank
from optuna_taylorglo.seeds import candidate_seed
from optuna_taylorglo.study.optuna_private import FIXED_PARAMS

if TYPE_CHECKING:
    import cmaes  # type: ignore[import-untyped]

# With half of all draws refused, a thousand refusals in a row have probability 1e-301.
_MAX_REFUSALS = 1000

# Numbers that cmaes refuses; whoever enqueues one must not stop the search.
_TOO_LARGE = 1e32


@dataclass(frozen=True)
class SearchState:
    """The distribution N(mean, σ²C) after the results of all generations before one.

    That generation is drawn from it, but for candidates that do not wait for those results.

    Attributes:
        generation: The generation.
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


class CMASettings(Protocol):
    """What CMA-ES starts with; `TaylorGLOSampler` says what each means."""

    @property
    def sigma(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def accept(self) -> Callable[[Sequence[float]], bool] | None: ...
    @property
    def lr_adapt(self) -> bool: ...
    @property
    def units(self) -> tuple[float, ...]: ...
    @property
    def limits(self) -> tuple[tuple[float, float], ...]: ...
    @property
    def x0(self) -> tuple[float, ...]: ...
    @property
    def source(self) -> list[tuple[dict[str, float], float]] | None: ...
    @property
    def rules(self) -> RetryPolicy: ...

    def stored_in(self, trial: FrozenTrial) -> list[float] | None:
        """The point that a trial holds; None if it holds none."""


def stored_params(trial: FrozenTrial, names: Sequence[str]) -> list[float] | None:
    """A trial's parameters, if they are all there and numbers."""
    params = trial.system_attrs.get(FIXED_PARAMS, {}) | trial.params
    values = [params.get(name) for name in names]
    return values if all(isinstance(value, float) for value in values) else None


class CMAReplay:
    """CMA-ES brought to the newest finished generation by telling it the finished ones.

    Where generations overlap, a second one follows a generation behind, for the candidates that are
    drawn from the older distribution. It is told the same, because a copy would not do: cmaes
    rounds its matrix in a copy, too.
    """

    def __init__(self, settings: CMASettings) -> None:
        self._settings = settings
        self._start()

    def _start(self, *, maximize: bool = True) -> None:
        # It imports scipy.stats, for which whoever only reads a study need not wait.
        import cmaes

        settings = self._settings
        self._units = np.array(settings.units)
        mean, sigma, cov = np.array(settings.x0) / self._units, settings.sigma, None
        if settings.source is not None:
            sign = -1.0 if maximize else 1.0
            solutions = [
                (np.array([*params.values()]) / self._units, sign * value)
                for params, value in settings.source
            ]
            mean, sigma, cov = cmaes.get_warm_start_mgd(solutions)

        def first_distribution() -> cmaes.CMA:
            # With two or three candidates the rank-μ update has rate 0, and cmaes divides by it.
            with np.errstate(divide="ignore"):
                return cmaes.CMA(
                    mean=mean,
                    sigma=sigma,
                    bounds=np.array(settings.limits) / self._units[:, None],
                    population_size=settings.rules.popsize,
                    cov=cov,
                    lr_adapt=settings.lr_adapt,
                )

        self._cma = first_distribution()
        self._older = first_distribution() if settings.rules.overlap else None
        self._maximize = maximize
        self._told: list[tuple[Slot, ...]] = []
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

    def follow(self, finished: list[tuple[Slot, ...]], *, maximize: bool) -> None:
        """Tell CMA-ES the finished generations it has not been told yet."""
        if len(finished) < len(self._told) or (
            # The log keeps its slots, so another object means another study.
            self._told and finished[len(self._told) - 1] is not self._told[-1]
        ):
            self._start()
        if maximize != self._maximize:
            self._start(maximize=maximize)
        for slots in finished[len(self._told) :]:
            thetas = [np.array(self._theta(slot)) / self._units for slot in slots]
            ranks = enumerate(rank(slots, maximize=maximize))
            ranked = [(thetas[i], float(place)) for place, i in ranks]
            if self._older is not None:
                if self._told:
                    self._older.tell(self._not_told_older)
                self._not_told_older = ranked
            self._cma.tell(ranked)
            self._told.append(slots)
            self.states.append(self._state())

    def _theta(self, slot: Slot) -> list[float]:
        """What was evaluated in a slot, or would have been if nothing ever was.

        What is stored counts, not what would be drawn here and now: another processor may draw
        something else.
        """
        for trial in [slot.result] if slot.result is not None else slot.made_for_it:
            theta = self._settings.stored_in(trial)
            if theta is not None and all(abs(value) < _TOO_LARGE for value in theta):
                return theta
        return self.draw(slot.generation, slot.index)

    def _within_limits(self, internal: FloatArray) -> list[float]:
        """Parameters in their own units; rounding must not carry one over its limit."""
        values = (internal * self._units).tolist()
        ranges = zip(values, self._settings.limits, strict=True)
        return [min(max(value, low), high) for value, (low, high) in ranges]

    def draw(self, generation: int, index: int) -> list[float]:
        """Draw candidate (generation, index).

        Its distribution is the newest or, if it must not depend on the results of the last finished
        generation, the one before.
        """
        due = self._settings.rules.generations_behind(generation, index)
        cma = self._cma if self._older is None or due >= len(self._told) else self._older
        cma.reseed_rng(candidate_seed(self._settings.seed, generation, index))
        accept = self._settings.accept
        for _ in range(_MAX_REFUSALS):
            theta = self._within_limits(cma.ask())
            if accept is None or accept(theta):
                return theta
        raise RuntimeError(
            f"accept refused {_MAX_REFUSALS} draws in a row for candidate {index} of generation "
            f"{generation}: it leaves CMA-ES nothing to propose around mean "
            f"{[round(float(m), 3) for m in cma.mean]}."
        )
