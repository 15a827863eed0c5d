"""What overlapping generations save, and what they cost.

    python benchmarks/overlap.py simulated [--seeds 30]
    python benchmarks/overlap.py real [--recipe digits_cnn] [--workers 2] [--data-dir data]

*Simulated*: whole searches on test functions, λ = 16, by the package's own sampler, with the rule
of its early stop. Which candidates are evaluated does not depend on the workers, so each search is
made once, and the clock of any number of workers is worked out from the lengths of its evaluations:
lognormal with a coefficient of variation of 0.3, half as long where a candidate is stopped early.

*Real*: `taylorglo run` with real trainings. The lengths of the trainings are then replayed for
other numbers of workers, which a machine with few cores cannot run side by side.

How good the losses are that overlapping searches find is `search_options.py`'s to say.
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState
from search import BOUND, PROBLEMS, SIGMA

from optuna_taylorglo.attributes import STOPPED
from optuna_taylorglo.recipes.load import find_recipe, load_recipe
from optuna_taylorglo.search.candidates import retry_policy
from optuna_taylorglo.search.generations import GenerationLog, SearchState, Slot, n_known
from optuna_taylorglo.search.sampler import TaylorGLOSampler

POPSIZE = 16
OVERLAPS = (0, POPSIZE // 4, POPSIZE // 2)
WORKERS = (2, 4, 8, 16)
VARIATION = 0.3
NOISE = "nothing but noise"
LIMIT = 8_000
"""Evaluations after which a search has not got there; noise can hold one up for ever."""
SHORT = {"12 generations, none stopped early": (12, False), "20, stopped early": (20, True)}
"""Searches like those of our recipes."""
KEEP = 0.5
"""Of a generation, those that set the pace; who is behind half-way is stopped."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation, in the order of slots.

    Attributes:
        duration: How long it takes.
        on_target: Whether its candidate is as good as asked for.
    """

    duration: float
    on_target: bool = False


def finish_times(
    durations: Sequence[float], *, popsize: int, overlap: int, n_workers: int
) -> list[float]:
    """When each slot's evaluation is finished, if workers take the slots as the scheduler does.

    Slots are started in order. All but the first ``overlap`` of a generation wait for the end of
    the generation before it, those for the end of the one before that.
    """
    free = [0.0] * n_workers
    ends: list[float] = []  # of each generation and all before it
    finished: list[float] = []
    for start in range(0, len(durations), popsize):
        generation = len(ends)
        for index, duration in enumerate(durations[start : start + popsize]):
            awaited = generation - (2 if index < overlap else 1)
            begin = max(heapq.heappop(free), ends[awaited] if awaited >= 0 else 0.0)
            finished.append(begin + duration)
            heapq.heappush(free, finished[-1])
        ends.append(max(finished))
    return finished


def search(
    problem: str, seed: int, overlap: int, *, limit: int = LIMIT, early_stop: bool = True
) -> tuple[list[Evaluation], SearchState]:
    """A search to the end of the generation after the first candidate on target.

    The sampler is told slots directly; a study of thousands of trials would take most of the time.

    Returns:
        All evaluations, and the final distribution.
    """
    function, noise, target = (PROBLEMS | {NOISE: (lambda _: 0.0, 1.0, -math.inf)})[problem]
    dice = np.random.default_rng([seed, 1])
    sampler = TaylorGLOSampler(
        popsize=POPSIZE, sigma=SIGMA, seed=seed, bound=BOUND, overlap=overlap
    )
    replay = sampler._new_replay(maximize=False)
    spread = math.sqrt(math.log(1 + VARIATION**2))
    evaluations: list[Evaluation] = []
    paces: list[float] = []
    end = limit
    while len(evaluations) < end:
        generation, values, slots = len(paces), [], []
        for index in range(POPSIZE):
            theta = replay.draw(generation, index)
            true = function(theta)
            values.append(true + noise * float(dice.standard_normal()))
            duration = float(dice.lognormal(-(spread**2) / 2, spread))
            pacing = n_known(generation, index, sampler.policy.overlap) - 1
            stopped = early_stop and pacing >= 0 and values[-1] > paces[pacing]
            trial = _trial(sampler, theta, values[-1], stopped)
            slots.append(Slot(generation, index, sampler.policy, (trial,)))
            evaluations.append(Evaluation(duration / 2 if stopped else duration, true <= target))
        paces.append(sorted(values)[math.ceil(KEEP * POPSIZE) - 1])
        replay.tell(tuple(slots))
        if end == limit and any(e.on_target for e in evaluations[-POPSIZE:]):
            end = len(evaluations) + POPSIZE
    return evaluations, replay.states[-1]


def _trial(
    sampler: TaylorGLOSampler, theta: list[float], value: float, stopped: bool
) -> FrozenTrial:
    return optuna.create_trial(
        state=TrialState.PRUNED if stopped else TrialState.COMPLETE,
        value=None if stopped else value,
        params=dict(zip(sampler.names, theta, strict=True)),
        distributions=sampler.distributions,
        user_attrs={STOPPED: True} if stopped else {},
        intermediate_values={1: value},
    )


def time_to_target(evaluations: Sequence[Evaluation], overlap: int, n_workers: int) -> float:
    """When the first candidate on target is finished; infinite without one."""
    durations = [evaluation.duration for evaluation in evaluations]
    times = finish_times(durations, popsize=POPSIZE, overlap=overlap, n_workers=n_workers)
    on_target = (t for t, e in zip(times, evaluations, strict=True) if e.on_target)
    return min(on_target, default=math.inf)


def evaluations_to_target(evaluations: Sequence[Evaluation]) -> float:
    """How many evaluations a single worker makes up to the first candidate on target."""
    return next((i for i, e in enumerate(evaluations, start=1) if e.on_target), math.inf)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Geometric mean of paired ratios, with its standard error; of those that got there."""
    pairs = [pair for pair in zip(ours, theirs, strict=True) if math.inf not in pair]
    logs = [math.log(a / b) for a, b in pairs]
    mean = math.exp(statistics.fmean(logs))
    return f"{mean:.2f} ± {mean * statistics.stdev(logs) / math.sqrt(len(logs)):.2f}"


def print_simulated(n_seeds: int) -> None:
    """Searches of each problem and overlap, as ratios to those without overlap."""
    print(f"λ = {POPSIZE}, {n_seeds} seeds; ratios to no overlap, ± standard error\n")
    columns = "".join(f" time, {n} workers |" for n in WORKERS)
    print(f"| problem | overlap | got there | evaluations to target | ratio |{columns}")
    print("|---|---|---|---|---|" + "---|" * len(WORKERS))
    for problem in PROBLEMS:
        plain = [search(problem, seed, 0)[0] for seed in range(n_seeds)]
        for overlap in OVERLAPS:
            runs = [search(problem, seed, overlap)[0] for seed in range(n_seeds)]
            counts = [[evaluations_to_target(run) for run in each] for each in (runs, plain)]
            there = [count for count in counts[0] if count < math.inf]
            mean, deviation = statistics.fmean(there), statistics.stdev(there)
            cells = [f"{len(there)}", f"{mean:.0f} ± {deviation:.0f}", ratio(*counts)]
            for n in WORKERS:
                times = [time_to_target(run, overlap, n) for run in runs]
                cells.append(ratio(times, [time_to_target(run, 0, n) for run in plain]))
            print(f"| {problem} | {overlap} | {' | '.join(cells)} |", flush=True)
    for title, (n_generations, early_stop) in SHORT.items():
        print(f"\nValue at the mean after {title}, {4 * n_seeds} seeds:\n")
        print_short(4 * n_seeds, n_generations * POPSIZE, early_stop)
    print_neutral(n_seeds)
    print("\nThe same number of evaluations, 60 generations, none stopped early:\n")
    print(f"| overlap |{columns}")
    print("|---|" + "---|" * len(WORKERS))
    spread = math.sqrt(math.log(1 + VARIATION**2))
    drawn = [np.random.default_rng(s).lognormal(0, spread, 60 * POPSIZE) for s in range(n_seeds)]
    for overlap in OVERLAPS:
        cells = []
        for n in WORKERS:
            ours, theirs = (
                [max(finish_times(d, popsize=POPSIZE, overlap=o, n_workers=n)) for d in drawn]
                for o in (overlap, 0)
            )
            cells.append(ratio(ours, theirs))
        print(f"| {overlap} | {' | '.join(cells)} |")


def print_short(n_seeds: int, limit: int, early_stop: bool) -> None:
    """What searches of so many evaluations come to."""
    print(f"| problem |{''.join(f' overlap {overlap} |' for overlap in OVERLAPS[1:])}")
    print("|---|" + "---|" * len(OVERLAPS[1:]))
    for problem, (function, _, _) in PROBLEMS.items():
        values = {
            overlap: [
                function(search(problem, s, overlap, limit=limit, early_stop=early_stop)[1].mean)
                for s in range(n_seeds)
            ]
            for overlap in OVERLAPS
        }
        cells = [ratio(values[overlap], values[0]) for overlap in OVERLAPS[1:]]
        print(f"| {problem} | {' | '.join(cells)} |", flush=True)


def print_neutral(n_seeds: int) -> None:
    """How far a distribution narrows that is told random ranks."""
    print("\nStandard deviation after 60 generations of nothing but noise, ratio to the first:\n")
    print("| overlap | geometric mean of all directions |\n|---|---|")
    for overlap in OVERLAPS:
        spreads = []
        for seed in range(n_seeds):
            _, state = search(NOISE, seed, overlap, limit=60 * POPSIZE, early_stop=False)
            spreads.append(state.sigma * statistics.geometric_mean(state.eigenvalues) ** 0.5)
        print(f"| {overlap} | {ratio(spreads, [SIGMA] * n_seeds)} |", flush=True)


def run_for_real(recipe: Path, overlap: int, n_workers: int, data_dir: Path) -> list[float]:
    """A search by worker processes; returns the lengths of its evaluations, prints its time."""
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    content["search"]["overlap"] = overlap
    content.pop("selection", None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "overlap.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        url = f"sqlite:///{folder}/overlap.db"
        words = ["run", str(file), "--storage", url, "--workers", str(n_workers), "--quiet"]
        words += ["--data-dir", str(data_dir.resolve()), "--output", f"{folder}/best.json"]
        command = [sys.executable, "-m", "optuna_taylorglo.cli", *words]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
        study = optuna.load_study(study_name="overlap", storage=url)
        trials = study.get_trials(deepcopy=False)
        log = GenerationLog(retry_policy(load_recipe(file)))
        log.read(trials)
        slots = [slot for generation in log.finished for slot in generation]
    starts = [t.datetime_start for t in trials if t.datetime_start]
    ends = [t.datetime_complete for t in trials if t.datetime_complete]
    seconds = (max(ends) - min(starts)).total_seconds()
    durations = [
        sum((t.datetime_complete - t.datetime_start).total_seconds() for t in slot.trials)
        for slot in slots
    ]
    busy = sum(durations) / (n_workers * seconds)
    best = study.best_value
    print(f"| {overlap} | {seconds:.1f} s | {busy:.0%} | {best:.4f} |", flush=True)
    return durations


def print_real(recipe: Path, n_workers: int, data_dir: Path) -> None:
    """Real searches without and with overlap, then their trainings on other numbers of workers."""
    popsize = load_recipe(recipe).search.popsize
    overlaps = (0, popsize // 4, popsize // 2)
    print(f"{recipe.stem}, λ = {popsize}, {n_workers} workers\n")
    print("| overlap | wall time | workers busy | best fitness |\n|---|---|---|---|")
    runs = {o: run_for_real(recipe, o, n_workers, data_dir) for o in overlaps}
    print("\nThe trainings of the search without overlap, replayed: time as a ratio to it\n")
    print(f"| overlap |{''.join(f' {n} workers |' for n in WORKERS)}")
    print("|---|" + "---|" * len(WORKERS))
    for overlap in overlaps:
        cells = []
        for n in WORKERS:
            ours, theirs = (
                max(finish_times(runs[0], popsize=popsize, overlap=o, n_workers=n))
                for o in (overlap, 0)
            )
            cells.append(f"{ours / theirs:.2f}")
        print(f"| {overlap} | {' | '.join(cells)} |")


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["simulated", "real"])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--recipe", type=Path, default=Path("digits_cnn"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if arguments.what == "simulated":
        print_simulated(arguments.seeds)
    else:
        print_real(find_recipe(arguments.recipe), arguments.workers, arguments.data_dir)


if __name__ == "__main__":
    main()
