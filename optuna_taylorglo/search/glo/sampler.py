"""GLO as an Optuna sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from optuna_taylorglo.attributes import TREE
from optuna_taylorglo.losses.tree import Tree
from optuna_taylorglo.recipes.settings import GLOSettings
from optuna_taylorglo.search.cma import SearchState
from optuna_taylorglo.search.generations import RetryPolicy, Slot, slot_attrs
from optuna_taylorglo.search.glo.replay import (
    BOUND,
    GLOReplay,
    TreeLog,
    TreePoint,
    coefficient_names,
    stored_point,
)
from optuna_taylorglo.search.sampler import (
    GenerationSampler,
    Proposal,
    fault_in_number,
)
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of


class GLOSampler(GenerationSampler, BaseSampler):
    """Genetic programming over trees, then CMA-ES over the coefficients of the best one.

    A candidate is a pure function of the seed and of the results of the generations before it, as
    with `TaylorGLOSampler`: any number of workers, crashes and restarts gives the candidates of a
    serial run. A trial holds its tree as the attribute ``taylorglo:tree`` and, in the second stage,
    the coefficients as parameters ``c_0``, ``c_1`` …, one for each node in prefix order.

    Trees that are the same function are evaluated once; a generation has as many trials as it has
    functions that are new. A tree enqueued with ``enqueue_trial({}, user_attrs={TREE: [...]})``
    takes the next slot and counts as what it is.

    Limits: one objective. Without a `GenerationScheduler` one trial at a time, as in
    ``study.optimize`` with one job: which trees there are depends on the generation before.

    Args:
        settings: Sizes of the stages, and how trees are bred; None for the paper's sizes.
        seed: Seed of the search.
        attempts: Evaluations an aborted (pruned) candidate gets; more than 1 needs the scheduler.
        max_failures: Failed evaluations of a candidate that are repeated; more than 0 needs the
            scheduler.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo import GLOSampler
        >>> from optuna_taylorglo.attributes import TREE
        >>> sampler = GLOSampler(seed=0)
        >>> study = optuna.create_study(direction="minimize", sampler=sampler)
        >>> def nodes(trial):  # the smallest tree wins
        ...     return len(sampler.suggest(trial).prefix)
        >>> study.optimize(nodes, n_trials=20)
        >>> study.best_trial.user_attrs[TREE]
        ['y']
    """

    _ledger: TreeLog

    def __init__(
        self,
        settings: GLOSettings | None = None,
        *,
        seed: int = 0,
        attempts: int = 1,
        max_failures: int = 0,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got {seed!r}.")
        self.settings = GLOSettings() if settings is None else settings
        self.seed = seed
        self.rules = RetryPolicy(self.settings.popsize, attempts, max_failures)
        self._others = RandomSampler(seed=seed % 2**32)
        self._start()

    def _begin(self, *, maximize: bool = True) -> None:
        replay = GLOReplay(self.settings, self.rules, self.seed, maximize=maximize)
        self._ledger = TreeLog(self.rules, replay)

    def _take_in(self, trials: Sequence[FrozenTrial], *, maximize: bool) -> None:
        if maximize != self._ledger.replay.maximize:
            self._begin(maximize=maximize)
        self._ledger.read(trials)

    def _states(self) -> list[SearchState]:
        return self._ledger.replay.states

    @property
    def best_tree(self) -> Tree | None:
        """The tree whose coefficients are searched, when last read; None in the first stage."""
        return self._ledger.replay.best_tree

    def candidate(self, slot: Slot) -> TreePoint:
        """Candidate of a slot of the current generation, as it was when last read."""
        with self._lock:
            return self._ledger.replay.candidate(slot.generation, slot.index)

    def proposal(self, slot: Slot) -> Proposal:
        """What a new trial of a slot is made with."""
        stored = (stored_point(trial) for trial in slot.made_for_it)
        point = next((p for p in stored if p is not None), None) or self.candidate(slot)
        names = coefficient_names(len(point.coefficients))
        return Proposal(
            dict(zip(names, point.coefficients, strict=True)),
            {name: FloatDistribution(-BOUND, BOUND) for name in names},
            {TREE: list(point.prefix)},
        )

    def fault(self, enqueued: FrozenTrial) -> str | None:
        """What the search could not digest in a candidate that somebody enqueued."""
        if TREE not in enqueued.user_attrs:
            return None
        point = stored_point(enqueued)
        if point is None:
            return f"{TREE} {enqueued.user_attrs[TREE]!r:.60}, which with its parameters is no tree"
        named = zip(coefficient_names(len(point.coefficients)), point.coefficients, strict=True)
        return next((fault for n, v in named if (fault := fault_in_number(n, v))), None)

    def suggest(self, trial: Trial) -> TreePoint:
        """The candidate of a trial."""
        storage, trial_id = storage_of(trial.study), trial_id_of(trial)
        frozen = storage.get_trial(trial_id)
        point = stored_point(frozen)
        if point is None:
            with self._lock:
                slot = self._slot_of(trial.study, frozen)
                point = self.candidate(slot)
            for key, value in slot_attrs(slot, attempt=0).items():
                trial.set_user_attr(key, value)
            trial.set_user_attr(TREE, list(point.prefix))
        names = coefficient_names(len(point.coefficients))
        return point._replace(
            coefficients=tuple(trial.suggest_float(name, -BOUND, BOUND) for name in names)
        )

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        with self._lock:
            coefficients = self.candidate(self._slot_of(study, trial)).coefficients
        own = dict(zip(coefficient_names(len(coefficients)), coefficients, strict=True))
        if param_name in own:
            return own[param_name]
        return self._others.sample_independent(study, trial, param_name, param_distribution)
