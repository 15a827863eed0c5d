"""What is done to a crew at work, each attack again and again until the job is done.

Attacks keep pace with the job: half of them come before half of its evaluations are done, however
fast or slow a machine is. The job waits for kills and suspensions that are behind, or they would
all hit its last evaluations; and its end waits for the last attack of any kind.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Sequence
from typing import Any

from chaos_crew import Crew, Phase, Seat
from databases import cut_connections

_ANYWHERE = (Phase.STARTING, Phase.CLAIMING, Phase.EVALUATING, Phase.FINISHING, None)


class Attack:
    """Something that goes wrong so many times; victims are aimed at in one of some phases."""

    holds_up = False  # whether the job waits for it
    aimed_at: Sequence[Phase | None] = _ANYWHERE

    def __init__(self, total: int, seed: int = 0) -> None:
        self.total, self.done = total, 0
        self.dice = random.Random(seed)

    def step(self, crew: Crew, progress: float) -> None:
        """Attack if it is time to; `progress` is the share of the job that is done."""
        if self.done < min(self.total, 1 + 1.1 * self.total * progress):
            self.done += self.strike(crew)

    def strike(self, crew: Crew) -> int:
        """Attack once; returns how often it really happened."""
        raise NotImplementedError

    def end(self, crew: Crew) -> None:
        """Take back what would outlast the job."""

    def victim(self, crew: Crew) -> Seat | None:
        """A worker in a phase chosen at random, or any if none comes into it soon."""
        wanted = self.dice.choice(self.aimed_at)
        deadline = time.monotonic() + 0.05
        while wanted is not None and time.monotonic() < deadline:
            seats = zip(crew.seats, crew.board.phases, strict=True)
            found = [seat for seat, phase in seats if phase == wanted and seat.alive]
            if found:
                # Anywhere in the phase, not at its beginning.
                time.sleep(self.dice.uniform(0, 0.02))
                return self.dice.choice(found)
            time.sleep(0.0005)
        alive = [seat for seat in crew.seats if seat.alive]
        return self.dice.choice(alive) if alive else None


class Kill(Attack):
    """SIGKILL, also in the middle of claims and of results being written."""

    holds_up = True

    def strike(self, crew: Crew) -> int:
        victim = self.victim(crew)
        if victim is None or not victim.alive:
            return 0
        crew.kill(victim)
        return 1


class Suspend(Attack):
    """SIGSTOP for longer than the grace, then SIGCONT; some `together`, as by a batch system."""

    holds_up = True
    aimed_at = (Phase.EVALUATING, Phase.EVALUATING, Phase.CLAIMING, Phase.FINISHING)

    def __init__(self, total: int, seed: int = 0, together: int = 1) -> None:
        super().__init__(total, seed)
        self.together = together
        self._asleep: dict[int, tuple[Seat, float, float]] = {}

    def step(self, crew: Crew, progress: float) -> None:
        now = time.monotonic()
        for worker, (seat, since, until) in list(self._asleep.items()):
            if now >= until:
                del self._asleep[worker]
                crew.resume(seat, since)
        # Few at a time: while a suspended claim holds up all others, their heartbeats count.
        if len(self._asleep) + self.together <= max(self.together, len(crew.seats) // 4):
            super().step(crew, progress)

    def strike(self, crew: Crew) -> int:
        return sum(self._suspend(crew) for _ in range(self.together))

    def _suspend(self, crew: Crew) -> int:
        victim = self.victim(crew)
        if victim is None or not victim.alive or victim.worker in self._asleep:
            return 0
        now = time.monotonic()
        os.kill(victim.process.pid, signal.SIGSTOP)
        longer = crew.storage.grace + self.dice.uniform(0.5, 2.0)
        self._asleep[victim.worker] = (victim, now, now + longer)
        return 1

    def end(self, crew: Crew) -> None:
        for seat, since, _ in self._asleep.values():
            crew.resume(seat, since)


class Cut(Attack):
    """The server ends some of the connections."""

    def strike(self, crew: Crew) -> int:
        time.sleep(self.dice.uniform(0, 0.03))
        return cut_connections(crew.storage.url, self.dice.randint(1, 3))


class Outage(Attack):
    """The server stops at once and is started later, every third time after `seconds` more."""

    def __init__(self, total: int, server: Any, seconds: float, seed: int = 0) -> None:
        super().__init__(total, seed)
        self._server = server
        self._more = itertools.cycle((0.0, 0.0, seconds))

    def strike(self, crew: Crew) -> int:
        time.sleep(self.dice.uniform(0, 0.3))
        began = time.monotonic()
        self._server.stop()
        time.sleep(self.dice.uniform(0.3, 1.0) + next(self._more))
        self._server.start()
        crew.outages.append((began, time.monotonic()))
        return 1
