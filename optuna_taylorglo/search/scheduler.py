"""Which candidate is evaluated next, generation by generation.

A generation starts when every slot of the one before it is closed, but for the first ones where
generations overlap; slots that were begun and came to nothing go first.
"""

from __future__ import annotations

from typing import Any

from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, READY, RETRY_OF
from optuna_taylorglo.queue.counted import first_counted
from optuna_taylorglo.queue.trial_queue import LatePlace, Look, TrialQueue
from optuna_taylorglo.search.generation_sampler import GenerationSampler
from optuna_taylorglo.search.generations import GenerationLog, Slot, slot_attrs
from optuna_taylorglo.storage.optuna_private import FIXED_PARAMS
from optuna_taylorglo.storage.transitions import Marks

_logger = get_logger(__name__)

# Generations ahead of the last one seen that a worker takes trials of without a look at the study.
_WINDOW = 20


class GenerationScheduler(TrialQueue):
    """Hands out the candidates of a search.

    Args:
        study: A study whose sampler is a `TaylorGLOSampler` or a `GLOSampler`.
        n_generations: Generations after which the search is over; None for no end.
    """

    def __init__(self, study: Study, *, n_generations: int | None = None) -> None:
        if not isinstance(study.sampler, GenerationSampler):
            raise ValueError(
                f"study must have a TaylorGLOSampler, got {type(study.sampler).__name__}; for "
                "trees a GLOSampler."
            )
        if n_generations is not None and n_generations < 0:
            raise ValueError(f"n_generations must be at least 0, got {n_generations!r}.")
        super().__init__(study)
        self.sampler: GenerationSampler = study.sampler
        self.n_generations = n_generations
        self._log = GenerationLog(self.sampler.rules)
        self._told: set[int] = set()

    def _look(self) -> Look:
        log = self._log = self.sampler.read(self.study)
        self.over = self.n_generations is not None and log.generation >= self.n_generations
        not_ready, due = list(log.leftovers), []
        for slot in () if self.over else log.open_slots(self.n_generations):
            if slot.kills_workers:
                self._tell_of_killer(slot)
            if slot.closed:
                continue
            not_ready += [trial for trial in slot.waiting if not _is_ready(trial, slot)]
            if not slot.waiting and not slot.running:
                due.append(self._new_trial(slot))
        # What was begun and came to nothing goes first; the others stay in order.
        due.sort(key=lambda trial: not self._is_repeat(trial))
        n_trials = max(log.n_trials, first_counted(self.study))
        in_hand = sum(not slot.closed for slot in log.current_slots())
        return Look(n_trials, due, not_ready, results_needed=in_hand, stage=log.generation)

    def _ends_at(self, stage: int) -> bool:
        return self.n_generations is not None and stage >= self.n_generations

    def _is_repeat(self, trial: FrozenTrial) -> bool:
        return RETRY_OF in trial.user_attrs

    def _marks(self) -> Marks:
        if self.n_generations is None:
            return Marks(READY)
        # Others may go on for longer. A look at the study moves the window on.
        first = self._log.generation
        return Marks(READY, GENERATION, range(min(first + _WINDOW, self.n_generations)))

    def _tell_of_killer(self, slot: Slot) -> None:
        if slot.number not in self._told:
            self._told.add(slot.number)
            _logger.error(
                f"Candidate {slot.index + 1} of generation {slot.generation + 1} has cost "
                f"{slot.losses} workers their lives, perhaps for lack of memory. It counts as the "
                "worst of its generation."
            )

    def _of_what(self) -> str:
        return f" of generation {self._log.generation + 1}"

    def _new_trial(self, slot: Slot) -> FrozenTrial:
        """A trial with the slot's candidate, or with what was evaluated there before."""
        proposal = self.sampler.proposal(slot)
        params, distributions = dict(proposal.params), dict(proposal.distributions)
        fixed: dict[str, Any] = {}
        for trial in slot.made_for_it:
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
            user_attrs=proposal.attributes
            | slot_attrs(
                slot,
                attempt=slot.next_attempt,
                retry_of=slot.trials[-1] if slot.trials else None,
            ),
            system_attrs={FIXED_PARAMS: fixed} if fixed else {},
        )

    def _admit(self, waiting: FrozenTrial) -> dict[str, Any] | None:
        slot = _slot_of(waiting, self._log)
        if slot is None or slot.closed or not _is_meant_for(waiting, slot):
            # It was made for another slot, which somebody else took just before, or for an
            # attempt that has its result by now, or it was added twice.
            return None
        if GENERATION in waiting.user_attrs:
            return {}
        if (fault := self.sampler.fault(waiting)) is not None:
            _logger.warning(f"Trial {waiting.number} was enqueued with {fault}; it is left out.")
            return None
        return dict(slot_attrs(slot, attempt=0))

    def _place_of_late_result(self, given_up: FrozenTrial) -> LatePlace | None:
        slot = _slot_of(given_up, self.sampler.read(self.study))
        # A repetition with the same seed may have used up the attempt.
        if slot is None or slot.closed or given_up.user_attrs.get(ATTEMPT) != slot.next_attempt:
            return None
        attrs = slot_attrs(slot, attempt=slot.next_attempt, retry_of=given_up)
        return LatePlace(dict(attrs), [*slot.waiting, *slot.running])


def _slot_of(trial: FrozenTrial, log: GenerationLog) -> Slot | None:
    """The slot of a trial, if it is one of those that can be evaluated now."""
    number = log.slot_number(trial.number)
    return next((slot for slot in log.open_slots() if slot.number == number), None)


def _is_meant_for(waiting: FrozenTrial, slot: Slot) -> bool:
    """Whether a trial that waits is the one to be evaluated next in its slot."""
    if slot.running:
        return False
    meant = (
        trial.number
        for trial in slot.made_for_it
        if trial.state == TrialState.WAITING
        and trial.user_attrs.get(ATTEMPT) in (None, slot.next_attempt)
    )
    return waiting.number == next(meant, None)


def _is_ready(waiting: FrozenTrial, slot: Slot) -> bool:
    return waiting.user_attrs.get(READY) == waiting.number and _is_meant_for(waiting, slot)
