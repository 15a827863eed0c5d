"""One judge for every attack: is all as if nothing had happened?"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import optuna
from chaos_attacks import Attack
from chaos_crew import ACKNOWLEDGED, CLAIMED, FINISHED, RAISED, Crew, Event, LogReader
from chaos_jobs import Job, Outcome, Place, SearchJob, Storage


@dataclass(frozen=True)
class Judgment:
    """What became of a job under attack.

    Attributes:
        differences: How what is stored, or was evaluated, differs from serial work.
        lost: Finished evaluations whose place had no result after they had been handed over, or
            whose worker failed to hand them over though nobody killed it.
        repeated: Evaluations made though their place had been finished before, or that were stored
            twice. The work of a worker that was killed while it handed over, or suspended or cut
            off for longer than the grace, may be made a second time.
        overtaken: Evaluations made twice, and results dropped, for that last reason.
        left: Trials that still run or wait.
        orphans: Processes that outlasted the job.
        errors: How workers died by themselves.
        standstill: Longest time, in seconds, without an evaluation finished.
    """

    attacks: int
    over: bool
    generations: int
    differences: list[str]
    lost: list[str]
    repeated: list[str]
    overtaken: list[str]
    left: list[str]
    orphans: int
    errors: list[str]
    standstill: float
    seconds: float

    @property
    def identical(self) -> bool:
        return self.over and not self.differences

    def assert_flawless(self) -> None:
        """Nothing but time was lost."""
        assert self.over, f"not over after {self.seconds:.0f} s, errors: {self.errors[-1:]}"
        assert not self.differences, self.differences[:3]
        assert not self.lost, self.lost[0]
        assert not self.repeated, self.repeated[0]
        assert not self.left, self.left[0]
        assert self.orphans == 0
        assert not self.errors, self.errors[-1]


def attacked(
    job: Job, storage: Storage, attack: Attack, *, workers: int, directory: Path, limit: float
) -> Judgment:
    """Let a crew do a job under attack, for `limit` seconds at most, and judge."""
    expected = job.expected()
    began = time.monotonic()
    crew = Crew(job, storage, workers, directory)
    log = LogReader(crew.log)
    over = False
    try:
        while time.monotonic() - began < limit:
            if not crew.replace_the_dead():
                over = all(seat.process.exitcode == 0 for seat in crew.seats)
                break
            # Not the acknowledged: a worker killed before it can log that never does, and the job's
            # end would wait for attacks that wait for the job.
            done = {event.place for event in log.read() if event.what == FINISHED}
            progress = len(done) / len(expected)
            attack.step(crew, progress)
            over = attack.done >= attack.total
            behind = attack.holds_up and attack.done < attack.total * progress
            crew.board.attacks_behind.value, crew.board.attacks_over.value = behind, over
            time.sleep(0.002)
    finally:
        attack.end(crew)
        crew.close()
    seconds = time.monotonic() - began
    study = optuna.load_study(study_name=job.study_name, storage=storage.open())
    trials = study.get_trials(deepcopy=False)
    stored = job.stored(study)
    evaluations = _evaluations(log.read())
    waste = _waste(evaluations, stored, crew)
    finishes = [began, *(e.finished for e in evaluations if e.finished is not None)]
    return Judgment(
        attacks=attack.done + sum(event.what == RAISED for event in log.events),
        over=over,
        generations=_generations(job, stored, expected),
        differences=_differences(evaluations, stored, expected),
        lost=waste.lost,
        repeated=waste.repeated,
        overtaken=waste.overtaken,
        left=[str(trial) for trial in trials if not trial.state.is_finished()],
        orphans=crew.orphans(),
        errors=crew.errors,
        standstill=max(
            b - a for a, b in zip(finishes, [*finishes[1:], began + seconds], strict=True)
        ),
        seconds=seconds,
    )


@dataclass
class Evaluation:
    """One evaluation as its worker saw it, with times; None for what it was killed before."""

    worker: int
    place: Place
    claimed: float
    outcome: Outcome | None = None
    finished: float | None = None
    acknowledged: float | None = None
    stored: bool = False
    dropped: bool = False


def _evaluations(events: Sequence[Event]) -> list[Evaluation]:
    found: dict[tuple[int, int], Evaluation] = {}
    for event in events:
        key = (event.worker, event.evaluation)
        if event.what == CLAIMED:
            found[key] = Evaluation(event.worker, event.place, event.when)
        elif event.what == FINISHED:
            params, value, reports = event.facts["outcome"]
            reports = {int(step): report for step, report in reports.items()}
            found[key].outcome = Outcome(params, value, reports)
            found[key].finished = event.when
        elif event.what == ACKNOWLEDGED:
            found[key].acknowledged = event.when
            found[key].stored = event.facts["stored"]
            found[key].dropped = event.facts["dropped"]
    return sorted(found.values(), key=lambda e: e.finished or e.claimed)


class Waste(NamedTuple):
    """Evaluations that came to nothing, in words."""

    lost: list[str]
    repeated: list[str]
    overtaken: list[str]


def _waste(
    evaluations: Sequence[Evaluation], stored: Mapping[Place, Sequence[Outcome]], crew: Crew
) -> Waste:
    twice = [f"{p} stored {len(found)} times" for p, found in stored.items() if len(found) > 1]
    waste = Waste([], twice, [])
    by_place: dict[Place, list[Evaluation]] = defaultdict(list)
    for evaluation in evaluations:
        if evaluation.finished is None:
            continue
        if evaluation.acknowledged is None:
            # One killed while it handed over may or may not have got through.
            if evaluation.worker not in crew.killed:
                waste.lost.append(f"never handed over: {evaluation}")
            continue
        if evaluation.dropped and _cut_off([evaluation], crew):
            # Too late: its trial had failed as stale, and is made again.
            waste.overtaken.append(f"dropped {evaluation}")
            continue
        if evaluation.dropped or not evaluation.stored:
            waste.lost.append(f"handed over, not stored: {evaluation}")
        by_place[evaluation.place].append(evaluation)
    for same in by_place.values():
        for number, later in enumerate(same[1:], start=1):
            excused = _cut_off(same, crew) and not any(
                _knowable(earlier, later, crew) for earlier in same[:number]
            )
            made = waste.overtaken if excused else waste.repeated
            made.append(f"made {later} after {same[:number]}, silences {crew.suspensions}")
    return waste


def _cut_off(same: Sequence[Evaluation], crew: Crew) -> bool:
    """Whether a worker of them wrote no heartbeat for longer than the grace."""
    return any(
        end - begin > crew.storage.grace
        and begin < (evaluation.acknowledged or evaluation.claimed)
        and end > evaluation.claimed
        for evaluation in same
        for begin, end in _silences(evaluation.worker, crew)
    )


def _silences(worker: int, crew: Crew) -> list[tuple[float, float]]:
    return [(b, e) for asleep, b, e in crew.suspensions if asleep == worker] + crew.outages


def _knowable(earlier: Evaluation, later: Evaluation, crew: Crew) -> bool:
    """Whether an evaluation was begun though another had been finished, and was not asleep."""
    assert earlier.finished is not None
    # A claim that an outage held up was not decided before the outage's end.
    held_up = [e for b, e in crew.outages if b <= later.claimed <= e]
    claimed = max([later.claimed, *held_up])
    handing_over = (earlier.finished, earlier.acknowledged or earlier.finished)
    asleep = any(
        worker == earlier.worker and begin <= handing_over[1] and end >= handing_over[0]
        for worker, begin, end in crew.suspensions
    )
    return claimed > (handing_over[1] if asleep else handing_over[0])


def _differences(
    evaluations: Sequence[Evaluation],
    stored: Mapping[Place, Sequence[Outcome]],
    expected: Mapping[Place, Outcome],
) -> list[str]:
    found = [
        f"{e.place}: evaluated {e.outcome}, serial {expected.get(e.place)}"
        for e in evaluations
        if e.outcome is not None and e.outcome != expected.get(e.place)
    ]
    for place in sorted(stored.keys() | expected.keys()):
        ours, serial = stored.get(place, []), expected.get(place)
        if not ours or any(outcome != serial for outcome in ours):
            found.append(f"{place}: stored {list(ours)}, serial {serial}")
    return found


def _generations(
    job: Job, stored: Mapping[Place, Sequence[Outcome]], expected: Mapping[Place, Outcome]
) -> int:
    if not isinstance(job, SearchJob):
        return 0
    missing = [place for place in expected if place not in stored]
    return min((int(place.split("/")[0]) for place in missing), default=job.generations)
