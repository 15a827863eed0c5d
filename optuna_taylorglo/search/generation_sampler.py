"""What a search asks of its sampler, whichever candidates it proposes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial

from optuna_taylorglo.search.cma_replay import SearchState
from optuna_taylorglo.search.generations import GenerationLog, Rules, Slot
from optuna_taylorglo.study.queue import counted_trials

LARGEST = 1e6
"""Largest parameter that may be enqueued; far greater ones make CMA-ES's numbers overflow."""


@dataclass(frozen=True)
class Proposal:
    """What a new trial is made with.

    Attributes:
        params: Its parameters.
        distributions: Their ranges.
        attributes: What it holds besides.
    """

    params: dict[str, float]
    distributions: dict[str, BaseDistribution]
    attributes: dict[str, Any] = field(default_factory=dict)


class GenerationSampler(ABC):
    """A sampler whose candidates depend on the seed and on results of finished generations only.

    It stores nothing: each process replays the finished generations for itself.

    Attributes:
        rules: How trials fill the slots of generations.
    """

    rules: Rules
    _ledger: GenerationLog
    _lock: threading.RLock

    def _start(self) -> None:
        self._begin()
        self._lock = threading.RLock()

    @abstractmethod
    def _begin(self) -> None:
        """Make a log and what is replayed, before the first generation."""

    @abstractmethod
    def _take_in(self, trials: Sequence[FrozenTrial], *, maximize: bool) -> None:
        """Bring both up to date with all trials of a study."""

    @abstractmethod
    def _states(self) -> list[SearchState]:
        """Distributions of CMA-ES so far."""

    @abstractmethod
    def proposal(self, slot: Slot) -> Proposal:
        """What a new trial of a slot is made with."""

    @abstractmethod
    def fault(self, enqueued: FrozenTrial) -> str | None:
        """What the search could not digest in a candidate that somebody enqueued."""

    @abstractmethod
    def suggest(self, trial: Trial) -> Any:
        """The candidate of a trial, as `search.candidates.candidate_loss` takes it."""

    def __getstate__(self) -> dict[str, Any]:
        # cmaes rounds its matrix when pickled; a copy must replay to agree to the last bit.
        return {k: v for k, v in self.__dict__.items() if k not in ("_ledger", "_replay", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def read(self, study: Study) -> GenerationLog:
        """Read a study's trials and bring the search up to date with them.

        Returns:
            The slots, for reading only; valid until the next call.
        """
        return self.follow(study, counted_trials(study))

    def follow(self, study: Study, trials: Sequence[FrozenTrial]) -> GenerationLog:
        """Bring the search up to date with a study's trials, as `read` does."""
        if len(study.directions) > 1:
            raise ValueError(
                f"study must have one objective, {study.study_name!r} has {len(study.directions)}."
            )
        with self._lock:
            self._take_in(trials, maximize=study.direction == StudyDirection.MAXIMIZE)
            return self._ledger

    def search_state(self, study: Study) -> list[SearchState]:
        """Distribution of CMA-ES in each finished generation and in the current one."""
        with self._lock:
            self.read(study)
            return self._states()

    def _slot_of(self, study: Study, trial: FrozenTrial) -> Slot:
        slot = self.read(study).slot_of(trial)
        if slot is None:
            raise RuntimeError(f"Trial {trial.number} is not in study {study.study_name!r}.")
        return slot


def fault_in_number(name: str, value: object) -> str | None:
    """Why a parameter that somebody enqueued cannot be taken; None if it can."""
    if isinstance(value, int | float) and abs(value) <= LARGEST:
        return None
    return f"{name} {value!r}, which is no number of at most {LARGEST:g}"
