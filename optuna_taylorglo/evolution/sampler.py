"""CMA-ES whose candidates depend on results only, never on workers, order or crashes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from optuna.distributions import FloatDistribution
from optuna.samplers import CmaEsSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from optuna_taylorglo.attributes import GENERATION
from optuna_taylorglo.evolution.cma import CMAReplay, CMASettings
from optuna_taylorglo.evolution.scheduler import (
    LARGEST,
    GenerationSampler,
    Proposal,
    RetryPolicy,
    SearchSpace,
    is_usable,
    params_of,
    stored_params,
)
from optuna_taylorglo.evolution.tuning import TuningReplay
from optuna_taylorglo.losses.canonical import Anchor, Canonical, from_canonical, is_steady
from optuna_taylorglo.recipes.presets import Shape, rounds_of_known
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of

if TYPE_CHECKING:  # these import PyTorch
    from optuna_taylorglo.losses.taylor import TaylorLoss
    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

T = TypeVar("T")

THETA_NAMES = tuple(f"theta_{i}" for i in range(8))

ANCHORED_NAMES = (*Canonical._fields, *Anchor._fields)
"""The parameters of a third-order loss that is anchored at cross-entropy."""
UNSCALED_NAMES = (*Canonical._fields, "smoothing")
"""The same, where the scale is not searched."""

# σ = 1.2 is a factor of 3 on the learning rate, and 0.12 of label smoothing. Below 0, smoothing
# makes cross-entropy unbounded from below, and nearly all trainings on clean labels diverge.
ANCHOR_UNITS = {"log_scale": 1.0, "smoothing": 0.1}
ANCHOR_LIMITS = {"log_scale": (-10.0, 10.0), "smoothing": (0.0, 0.9)}


class TaylorGLOSampler(GenerationSampler, CmaEsSampler):
    """CMA-ES in raw parameter units for any number of workers.

    The k-th trial of a study belongs to slot k, and (generation, index) = divmod(k, popsize).
    Candidate (generation, index) is a pure function of the seed and of the results of the
    generations before it: mean 0 and σ from the very first trial, exactly ``popsize`` evaluations
    per update, none of them ignored. Only three small numbers per trial are stored.

    With :class:`~optuna_taylorglo.evolution.scheduler.GenerationScheduler`, any number of workers,
    crashes and restarts gives exactly the candidates of a serial run. In a plain
    ``study.optimize(..., n_jobs=4)`` a trial whose previous generation is unfinished is drawn from
    the newest finished distribution, and one that stays RUNNING keeps its generation open.

    CMA-ES is told ranks: complete trials by value, below them pruned ones by their best last
    report, below them failed ones. Enqueued trials take the next slots and count as they are.

    By default it searches for losses that are anchored at cross-entropy, which `suggest_loss` makes
    of a trial. With ``names`` it searches any other parameters.

    Limits: one objective. Parameters other than ``names`` are drawn independently at random. A
    parameter suggested in a narrower range is clipped to it.

    Args:
        names: Names of the parameters to search, in order; None: those of an anchored loss.
        n_classes: Number of classes, for anchored losses: those that would not train are drawn
            again, and suggested losses refuse logits of another number.
        popsize: Candidates per generation (λ).
        sigma: Initial standard deviation of every parameter.
        seed: Seed of the search.
        attempts: Evaluations an aborted (pruned) candidate gets; the paper's "tried again up to two
            more times" is 3. More than 1 needs the scheduler.
        max_failures: Failed evaluations of a candidate that are repeated; more than 0 needs the
            scheduler.
        overlap: First candidates of each generation that are drawn from the distribution one
            generation older, so that they can be evaluated while that one is finished.
        accept: Tells whether a candidate is worth evaluating; others are drawn again.
        bound: Parameters lie in [−bound, bound]; the default is practically unbounded.
        units: Of some parameters, what counts as 1 for CMA-ES: they start with the standard
            deviation ``sigma`` times their unit.
        limits: Of some parameters, a range in place of ±``bound``; draws beyond it are repeated.
        x0: Of some parameters, where the search starts in place of 0.
        known: Losses, as (α, β, γ, δ, ε), that are trained first at several scales, with some
            standard ones, in two rounds before CMA-ES starts at the best. Needs the scheduler, and
            the parameters of an anchored loss.
        to_loss: What makes the loss of `suggest_loss` of parameters, with ``names``.

    Examples:
        >>> import optuna, torch
        >>> from optuna_taylorglo import TaylorGLOSampler
        >>> logits, labels = torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([0])
        >>> sampler = TaylorGLOSampler(n_classes=3, popsize=8, seed=0)
        >>> def objective(trial):
        ...     loss = sampler.suggest_loss(trial)  # in the place of nn.CrossEntropyLoss()
        ...     return loss(logits, labels).item()  # train with it here, and return how good it is
        >>> study = optuna.create_study(sampler=sampler)
        >>> study.optimize(objective, n_trials=80)
        >>> study.best_value < min(trial.value for trial in study.trials[:8])
        True
    """

    def __init__(
        self,
        *,
        names: Sequence[str] | None = None,
        n_classes: int | None = None,
        popsize: int = 28,
        sigma: float = 1.2,
        seed: int = 0,
        attempts: int = 1,
        max_failures: int = 0,
        overlap: int = 0,
        accept: Callable[[Sequence[float]], bool] | None = None,
        bound: float = 1000.0,
        units: Mapping[str, float] | None = None,
        limits: Mapping[str, tuple[float, float]] | None = None,
        x0: Mapping[str, float] | None = None,
        known: Sequence[Shape] = (),
        to_loss: Callable[[Sequence[float]], EvolvedLoss] | None = None,
    ) -> None:
        if names is None:
            names = ANCHORED_NAMES
            units, limits = {**ANCHOR_UNITS, **(units or {})}, {**ANCHOR_LIMITS, **(limits or {})}
            to_loss = to_loss or partial(anchored_loss, n_classes=n_classes)
            if n_classes is not None and accept is None:
                accept = partial(_is_steady, n_classes=n_classes)
        elif n_classes is not None:
            raise ValueError(f"n_classes {n_classes} is for the default names; use accept instead.")
        self._to_loss = to_loss
        if isinstance(names, str) or not names or len(set(names)) != len(names):
            raise ValueError(f"names must be one or more different names, got {names!r}.")
        if not 0 < sigma < math.inf:
            raise ValueError(f"sigma must be a positive number, got {sigma!r}.")
        if not sigma < bound < math.inf:
            raise ValueError(f"bound must be finite and larger than sigma {sigma}, got {bound!r}.")
        self.names = tuple(names)
        if known and self.names not in (ANCHORED_NAMES, UNSCALED_NAMES):
            raise ValueError(f"known needs the names {', '.join(ANCHORED_NAMES)}, got {names!r}.")
        self.known = tuple(known)
        scaled = self.names == ANCHORED_NAMES
        rounds = rounds_of_known(len(known), scaled=scaled) if known else ()
        policy = RetryPolicy(popsize, attempts, max_failures, overlap, rounds)
        self.settings = CMASettings(
            sigma=float(sigma),
            seed=seed,
            policy=policy,
            x0=_by_name("x0", x0, self.names, 0.0),
            units=_by_name("units", units, self.names, 1.0),
            limits=_by_name("limits", limits, self.names, (-float(bound), float(bound))),
            accept=accept,
        )
        if not all(0 < unit < math.inf for unit in self.settings.units):
            raise ValueError(f"units must be positive numbers, got {units!r}.")
        ranges = zip(self.names, self.settings.x0, self.settings.limits, strict=True)
        for name, start, (low, high) in ranges:
            if not -math.inf < low < high < math.inf:
                raise ValueError(f"limits has {name} ({low!r}, {high!r}); the first must be less.")
            if not low <= start <= high:
                raise ValueError(f"x0 has {name} {start:g}, which is not in [{low:g}, {high:g}].")
        GenerationSampler.__init__(self, seed, policy)
        CmaEsSampler.__init__(
            self, n_startup_trials=0, warn_independent_sampling=False, seed=seed % 2**32
        )

    def _new_replay(self, *, maximize: bool) -> CMAReplay | TuningReplay:
        def stored(trial: FrozenTrial) -> Sequence[float] | None:
            return stored_params(trial, self.names)

        if self.known:
            return TuningReplay(self.known, self.settings, stored, maximize=maximize)
        return CMAReplay(self.settings, stored, maximize=maximize)

    def start(self, study: Study) -> list[float] | None:
        """The best known loss, at which CMA-ES starts; None without one, or before it is known."""
        with self._lock:
            self.read(study)
            return self._replay.start if isinstance(self._replay, TuningReplay) else None

    @property
    def distributions(self) -> SearchSpace:
        """The search space: every parameter within its limits."""
        limits = zip(self.names, self.settings.limits, strict=True)
        return {name: FloatDistribution(*ends) for name, ends in limits}

    def suggest(self, trial: Trial) -> list[float]:
        """The candidate of a trial, parameter by parameter."""
        limits = zip(self.names, self.settings.limits, strict=True)
        return [trial.suggest_float(name, *ends) for name, ends in limits]

    def suggest_loss(self, trial: Trial) -> EvolvedLoss:
        """The loss of a trial, to train with in the place of `nn.CrossEntropyLoss`."""
        if self._to_loss is None:
            raise ValueError("to_loss is missing: a sampler with names of its own needs it.")
        return self._to_loss(self.suggest(trial))

    def as_trial(self, candidate: Sequence[float]) -> Proposal:
        return dict(zip(self.names, candidate, strict=True)), self.distributions, {}

    def validate(self, enqueued: FrozenTrial) -> str | None:
        params = params_of(enqueued)
        bad = (name for name in self.names if name in params and not is_usable(params[name]))
        return next((f"{n} {params[n]!r}, no number of at most {LARGEST:g}" for n in bad), None)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> SearchSpace:
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: SearchSpace
    ) -> dict[str, Any]:
        # The parent's answer would unpickle attributes from the database.
        others = {
            name: self._others.sample_independent(study, trial, name, distribution)
            for name, distribution in search_space.items()
            if name not in self.names
        }
        if len(others) == len(search_space) or all(name in trial.params for name in self.names):
            return others
        candidate, slot = self._candidate_of(study, trial)
        if GENERATION not in trial.user_attrs:
            # As Optuna's own samplers do: there is no public way to annotate a trial.
            for key, value in slot.attrs().items():
                storage_of(study).set_trial_user_attr(trial_id_of(trial), key, value)
        params, _, _ = self.as_trial(candidate)
        return others | {name: params[name] for name in search_space if name in params}


def anchored_loss(parameters: Sequence[float], n_classes: int | None = None) -> TaylorLoss:
    """The loss with these `ANCHORED_NAMES`, summed over classes."""
    from optuna_taylorglo.losses.taylor import TaylorLoss

    theta, anchor = _theta_and_anchor(parameters)
    loss = TaylorLoss(theta, base="cross_entropy", class_reduction="sum", **anchor._asdict())
    loss.n_classes = n_classes
    return loss


def _is_steady(parameters: Sequence[float], n_classes: int) -> bool:
    theta, anchor = _theta_and_anchor(parameters)
    return is_steady(theta, n_classes, anchor=anchor, class_reduction="sum")


def _theta_and_anchor(parameters: Sequence[float]) -> tuple[tuple[float, ...], Anchor]:
    n_shape = len(Canonical._fields)
    return from_canonical(parameters[:n_shape]), Anchor(*parameters[n_shape:])


def _by_name(
    argument: str, given: Mapping[str, T] | None, names: Sequence[str], default: T
) -> tuple[T, ...]:
    """A value for each name."""
    if unknown := [name for name in given or {} if name not in names]:
        raise ValueError(f"{argument} has {unknown[0]!r}; the parameters are {', '.join(names)}.")
    return tuple((given or {}).get(name, default) for name in names)
