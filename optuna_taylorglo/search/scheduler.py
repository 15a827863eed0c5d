"""What samplers of generations have in common, and which candidate is evaluated next.

A generation starts when every slot of the one before it is closed, except for its first slots where
generations overlap. Slots whose evaluation failed go first.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.logging import get_logger
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from optuna_taylorglo.attributes import GENERATION, WORKER
from optuna_taylorglo.search.generations import (
    MAX_STALE,
    GenerationLog,
    Replay,
    RetryPolicy,
    SearchState,
    Slot,
    check_integer,
)
from optuna_taylorglo.study.optuna_private import FIXED_PARAMS, storage_of, study_id_of, trial_id_of
from optuna_taylorglo.study.queue import Plan, TrialQueue

_logger = get_logger(__name__)


Proposal = tuple[dict[str, float], dict[str, BaseDistribution], dict[str, Any]]
"""Parameters, their distributions and user attributes of a trial."""


class GenerationSampler(BaseSampler):
    """A sampler whose candidates depend on the seed and on results of finished generations only.

    It stores nothing: each process replays the finished generations.
    """

    _replay: Replay

    def __init__(self, seed: int, policy: RetryPolicy) -> None:
        check_integer("seed", seed, 0)
        self.seed, self.policy = seed, policy
        self._others = RandomSampler(seed=seed % 2**32)
        self._start()

    def _start(self, study: Study | None = None) -> None:
        self._study = None if study is None else (storage_of(study), study_id_of(study))
        self._lock = threading.RLock()
        maximize = study is None or study.direction == StudyDirection.MAXIMIZE
        self._replay = self._new_replay(maximize=maximize)
        self._log = GenerationLog(self.policy, self._replay)

    @abstractmethod
    def _new_replay(self, *, maximize: bool) -> Replay:
        """The replay of a search that has not begun."""

    @abstractmethod
    def as_trial(self, candidate: Any) -> Proposal:
        """What a trial with a candidate is made with."""

    @abstractmethod
    def validate(self, enqueued: FrozenTrial) -> str | None:
        """Why the search cannot use a candidate that a user enqueued; None if it can."""

    @abstractmethod
    def suggest(self, trial: Trial) -> Any:
        """The candidate of a trial, as `search.candidates.candidate_loss` takes it."""

    def __getstate__(self) -> dict[str, Any]:
        # cmaes rounds its matrix when pickled; a copy must replay to agree to the last bit.
        own = ("_study", "_log", "_replay", "_lock")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def read(self, study: Study, trials: Sequence[FrozenTrial] | None = None) -> GenerationLog:
        """Bring the search up to date with a study; the slots, which the next call changes."""
        if len(study.directions) > 1:
            problem = f"{study.study_name!r} has {len(study.directions)}."
            raise ValueError(f"study must have one objective, {problem}")
        with self._lock:
            if self._study != (storage_of(study), study_id_of(study)):
                self._start(study)
            self._log.read(study.get_trials(deepcopy=False) if trials is None else trials)
            return self._log

    def search_state(self, study: Study) -> list[SearchState]:
        """Distribution of CMA-ES in each finished generation and in the current one."""
        with self._lock:
            self.read(study)
            return list(self._replay.states)

    def proposal(self, slot: Slot) -> Proposal:
        """What a new trial of a slot is made with."""
        with self._lock:
            return self.as_trial(self._replay.candidate(slot))

    def _candidate_of(self, study: Study, trial: FrozenTrial) -> tuple[Any, Slot]:
        """The candidate of a trial's slot, and the slot."""
        with self._lock:
            slot = self.read(study).slot_of(trial)
            if slot is None:
                raise RuntimeError(f"Trial {trial.number} is not in study {study.study_name!r}.")
            return self._replay.draw(slot.generation, slot.index), slot

    def reseed_rng(self) -> None:
        self._others.reseed_rng()

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
        # Optuna also asks here for a parameter of the candidate that lies outside the range that
        # was asked for. A uniform draw in its place would be a different candidate.
        params, _, _ = self.as_trial(self._candidate_of(study, trial)[0])
        if param_name in params and isinstance(param_distribution, FloatDistribution):
            value = max(params[param_name], param_distribution.low)
            return min(value, param_distribution.high)
        return self._others.sample_independent(study, trial, param_name, param_distribution)


class GenerationScheduler(TrialQueue):
    """Hands out the candidates of a search, generation by generation, without end unless given."""

    def __init__(
        self, study: Study, *, n_generations: int | None = None, **heartbeat: float
    ) -> None:
        if not isinstance(study.sampler, GenerationSampler):
            got = type(study.sampler).__name__
            raise ValueError(f"study must have a TaylorGLOSampler or a GLOSampler, got {got}.")
        super().__init__(study, **heartbeat)
        self.sampler: GenerationSampler = study.sampler
        self.n_generations = n_generations
        self._reported: set[tuple[int, int]] = set()

    def plan(self, trials: Sequence[FrozenTrial]) -> Plan:
        log = self.sampler.read(self.study, trials)
        superfluous = list(log.leftovers)
        if self.n_generations is not None and log.generation >= self.n_generations:
            return Plan(superfluous=superfluous, over=True)
        claimable: list[tuple[tuple[int, bool], FrozenTrial]] = []
        due: list[Slot] = []
        attributes: dict[int, dict[str, Any]] = {}
        for slot in log.open_slots(self.n_generations):
            superfluous += slot.superfluous
            if slot.closed:
                self._report_crashes(slot)
            elif (active := slot.active) is None:
                due.append(slot)
            elif active.state == TrialState.WAITING:
                if GENERATION not in active.user_attrs:
                    if (problem := self.sampler.validate(active)) is not None:
                        _logger.warning(
                            f"Trial {active.number} was enqueued with {problem}; it is left out."
                        )
                        superfluous.append(active)
                        continue
                    attributes[trial_id_of(active)] = slot.attrs()
                is_first = len(slot.trials) == 1
                claimable.append(((slot.generation, is_first), active))
        most_urgent = min((urgency for urgency, _ in claimable), default=None)
        # Failed evaluations first; the others stay in order.
        due.sort(key=lambda slot: not slot.trials)
        return Plan(
            claimable=[trial for urgency, trial in claimable if urgency == most_urgent],
            due=[partial(self._new_trial, slot) for slot in due],
            superfluous=superfluous,
            attributes=attributes,
        )

    def _report_crashes(self, slot: Slot) -> None:
        place = (slot.generation, slot.index)
        if slot.stale > MAX_STALE and slot.result is None and place not in self._reported:
            self._reported.add(place)
            _logger.error(
                f"Candidate {slot.index + 1} of generation {slot.generation + 1} crashed "
                f"{slot.stale} workers, perhaps for lack of memory. It counts as the worst of its "
                "generation."
            )

    def _new_trial(self, slot: Slot) -> FrozenTrial:
        """A trial with the slot's candidate, or with what was evaluated there before."""
        params, distributions, attributes = self.sampler.proposal(slot)
        fixed: dict[str, Any] = {}
        for trial in slot.holders:
            params |= trial.params
            distributions |= trial.distributions
            fixed |= trial.system_attrs.get(FIXED_PARAMS, {})
        if fixed:
            # Optuna takes enqueued parameters as they are, even out of range, but only this way.
            params, distributions, fixed = {}, {}, params | fixed
        return create_trial(
            state=TrialState.WAITING,
            params=params,
            distributions=distributions,
            user_attrs=attributes | slot.attrs(slot.next_attempt) | {WORKER: None},
            system_attrs={FIXED_PARAMS: fixed} if fixed else {},
        )
