"""Which candidate is evaluated next, generation by generation.

A generation starts when every slot of the one before it is closed; slots that were begun and came
to nothing go first.
"""

from __future__ import annotations

from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.attributes import ATTEMPT, GENERATION
from optuna_taylorglo.queue.trial_queue import TrialQueue
from optuna_taylorglo.search.generations import GenerationLog, Slot, slot_attrs
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.storage.optuna_private import FIXED_PARAMS, trial_id_of


class GenerationScheduler(TrialQueue):
    """Hands out the candidates of a search.

    Args:
        study: A study whose sampler is a `TaylorGLOSampler`.
        n_generations: Generations after which the search is over; None for no end.
    """

    def __init__(self, study: Study, *, n_generations: int | None = None) -> None:
        if not isinstance(study.sampler, TaylorGLOSampler):
            raise ValueError(
                f"study must have a TaylorGLOSampler, got {type(study.sampler).__name__}."
            )
        if n_generations is not None and n_generations < 0:
            raise ValueError(f"n_generations must be at least 0, got {n_generations!r}.")
        super().__init__(study)
        self.sampler = study.sampler
        self.n_generations = n_generations
        self._log = GenerationLog(self.sampler.rules)

    def _choose(self) -> FrozenTrial | None:
        log = self._log = self.sampler.read(self.study)
        self.over = self.n_generations is not None and log.generation >= self.n_generations
        if log.leftovers:
            return log.leftovers[0]
        if self.over:
            return None
        idle = [slot for slot in log.current_slots() if not slot.closed and not slot.running]
        slot = min(idle, key=lambda slot: not slot.trials, default=None)
        if slot is None:
            return None
        return slot.waiting[0] if slot.waiting else self._new_trial(slot)

    def _of_what(self) -> str:
        return f" of generation {self._log.generation + 1}"

    def _new_trial(self, slot: Slot) -> FrozenTrial:
        """A trial with the slot's candidate, or with what was evaluated there before."""
        params = dict(zip(self.sampler.names, self.sampler.candidate(slot), strict=True))
        distributions = self.sampler.distributions
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
            user_attrs=slot_attrs(
                slot,
                attempt=slot.next_attempt,
                retry_of=slot.trials[-1] if slot.trials else None,
            ),
            system_attrs={FIXED_PARAMS: fixed} if fixed else {},
        )

    def _admit(self, waiting: FrozenTrial) -> bool:
        slot = _slot_of(waiting, self._log)
        attempt = waiting.user_attrs.get(ATTEMPT)
        if (
            slot is None
            or slot.closed
            or waiting not in slot.made_for_it
            or attempt not in (None, slot.next_attempt)
        ):
            # It was made for another slot, which somebody else took just before, or for an
            # attempt that has its result by now.
            self._withdraw(waiting)
            return False
        if GENERATION not in waiting.user_attrs:
            for key, value in slot_attrs(slot, attempt=0).items():
                self._storage.set_trial_user_attr(trial_id_of(waiting), key, value)
        return True

    def _place_of_late_result(self, given_up: FrozenTrial) -> dict[str, Any] | None:
        slot = _slot_of(given_up, self.sampler.read(self.study))
        if slot is None or slot.closed or slot.running:
            return None
        return slot_attrs(slot, attempt=slot.next_attempt, retry_of=given_up)


def _slot_of(trial: FrozenTrial, log: GenerationLog) -> Slot | None:
    """The slot of a trial, if it is one of the current generation."""
    number = log.slot_number(trial.number)
    return next((slot for slot in log.current_slots() if slot.number == number), None)
