"""Which candidate is evaluated next, generation by generation.

A generation starts when every slot of the one before it is closed, except for its first slots where
generations overlap. Slots whose evaluation failed go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.attributes import GENERATION, WORKER
from optuna_taylorglo.search.generations import MAX_STALE, Slot
from optuna_taylorglo.search.sampler import GenerationSampler
from optuna_taylorglo.study.optuna_private import FIXED_PARAMS, trial_id_of
from optuna_taylorglo.study.queue import Plan, TrialQueue

_logger = get_logger(__name__)


class GenerationScheduler(TrialQueue):
    """Hands out the candidates of a search.

    Args:
        study: A study whose sampler is a `TaylorGLOSampler` or a `GLOSampler`.
        n_generations: Generations after which the search is over; None for no end.
        heartbeat: Intervals, as `TrialQueue` takes them.
    """

    def __init__(
        self, study: Study, *, n_generations: int | None = None, **heartbeat: float
    ) -> None:
        if not isinstance(study.sampler, GenerationSampler):
            raise ValueError(
                "study must have a TaylorGLOSampler or a GLOSampler, got "
                f"{type(study.sampler).__name__}."
            )
        if n_generations is not None and n_generations < 0:
            raise ValueError(f"n_generations must be at least 0, got {n_generations!r}.")
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
                    attributes[trial_id_of(active)] = dict(slot.attrs())
                is_first = len(slot.trials) == 1
                claimable.append(((slot.generation, is_first), active))
        most_urgent = min((urgency for urgency, _ in claimable), default=None)
        return Plan(
            claimable=[trial for urgency, trial in claimable if urgency == most_urgent],
            # Failed evaluations first; the others stay in order.
            due=[
                partial(self._new_trial, slot)
                for slot in sorted(due, key=lambda slot: not slot.trials)
            ],
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
