"""GLO's candidates: a function of seed and results, each function once, then coefficients."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import optuna
import pytest
from chaos_glo import SMALL, likeness
from optuna.trial import Trial, TrialState
from schedulers import take

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX, TREE, WITHDRAWN
from optuna_taylorglo.losses.tree import BAIKAL, tree_from_prefix
from optuna_taylorglo.recipes.settings import CoefficientSettings, GLOSettings
from optuna_taylorglo.search.generations import GenerationLog
from optuna_taylorglo.search.glo import GLOSampler, TreePoint, function_key, stored_point
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.study import queue

GENERATIONS = SMALL.n_generations + SMALL.coefficients.n_generations


def new_scheduler(
    storage: Any = None,
    settings: GLOSettings = SMALL,
    direction: str = "maximize",
    **options: Any,
) -> GenerationScheduler:
    study = optuna.create_study(
        study_name="a",
        storage=storage,
        sampler=GLOSampler(settings, **({"attempts": 2, "max_failures": 30} | options)),
        direction=direction,
        load_if_exists=True,
    )
    generations = settings.n_generations + settings.coefficients.n_generations
    return GenerationScheduler(study, n_generations=generations)


def evaluate(scheduler: GenerationScheduler, trial: Trial) -> None:
    """Aborts and values that follow from the candidate and its seed."""
    point = scheduler.sampler.suggest(trial)
    place = [trial.user_attrs[key] for key in (GENERATION, INDEX, ATTEMPT)]
    dice = random.Random(training_seed(0, *place))
    if dice.random() < 0.1:
        scheduler.finish(trial, state=TrialState.PRUNED)
        return
    sign = 1 if scheduler.study.direction == optuna.study.StudyDirection.MAXIMIZE else -1
    scheduler.finish(trial, sign * (likeness(point) + dice.gauss(0, 0.1)))


def finished(scheduler: GenerationScheduler) -> GenerationScheduler:
    while (trial := scheduler.claim()) is not None:
        evaluate(scheduler, trial)
    return scheduler


def log_of(scheduler: GenerationScheduler) -> GenerationLog:
    return scheduler.sampler.read(scheduler.study)


def points(scheduler: GenerationScheduler) -> list[list[TreePoint | None]]:
    """The candidate of each slot; all trials of one have the same."""
    found = []
    for slots in log_of(scheduler).finished:
        found.append([])
        for slot in slots:
            (point,) = {stored_point(trial) for trial in slot.trials}
            found[-1].append(point)
    return found


@pytest.fixture(scope="module")
def serial() -> GenerationScheduler:
    return finished(new_scheduler())


@pytest.mark.parametrize("seed", range(8))
def test_any_workers_in_any_order_search_as_one(seed: int, serial: GenerationScheduler) -> None:
    dice = random.Random(seed)
    storage = optuna.storages.InMemoryStorage()
    workers = [new_scheduler(storage) for _ in range(dice.choice([2, 4, 20]))]
    busy: list[tuple[GenerationScheduler, Trial]] = []
    while True:
        for worker in workers:
            if all(worker is not one for one, _ in busy) and (trial := worker.claim()) is not None:
                busy.append((worker, trial))
        if not busy:
            break
        worker, trial = busy.pop(dice.randrange(len(busy)))
        fate = dice.random()
        if fate < 0.1:
            worker.finish(trial, state=TrialState.FAIL)
        elif fate < 0.2:
            worker.release(trial)
        elif fate < 0.3:
            workers[workers.index(worker)] = new_scheduler(storage)
            worker.finish(trial, state=TrialState.FAIL)
        else:
            evaluate(worker, trial)
    assert points(workers[0]) == points(serial)


def test_no_function_is_evaluated_twice_and_the_count_says_so(serial: GenerationScheduler) -> None:
    trees = [p.tree for gen in points(serial)[: SMALL.n_generations] for p in gen if p is not None]
    assert len({function_key(tree) for tree in trees}) == len(trees)
    log = log_of(serial)
    assert log.replay.n_reused > 0
    assert len(trees) + log.replay.n_reused == SMALL.popsize * SMALL.n_generations


def test_the_second_stage_varies_the_coefficients_of_the_best_tree(
    serial: GenerationScheduler,
) -> None:
    complete = [t for t in serial.study.trials if t.state == TrialState.COMPLETE]
    first = [t for t in complete if t.user_attrs[GENERATION] < SMALL.n_generations]
    best = max(first, key=lambda t: (t.value, -t.number))
    second = [p for gen in points(serial)[SMALL.n_generations :] for p in gen]
    assert len(second) == 4 * 2
    assert {p.prefix for p in second if p} == {tuple(best.user_attrs[TREE])}
    assert len({p.coefficients for p in second if p}) == 8
    states = serial.sampler.search_state(serial.study)
    assert [state.generation for state in states] == [3, 4, 5]
    assert states[0].mean == (1.0,) * tree_from_prefix(best.user_attrs[TREE]).size


def test_the_best_so_far_stays_in_the_population(serial: GenerationScheduler) -> None:
    """Elites are not evaluated again, so later generations hold their results."""
    replay = log_of(serial).replay
    best, _ = min(replay._known.values(), key=lambda known: known[1])
    assert function_key(best) in {function_key(tree) for tree in replay._population}


def test_minimized_searches_mirror_maximized_ones(serial: GenerationScheduler) -> None:
    assert points(finished(new_scheduler(direction="minimize"))) == points(serial)


def test_another_seed_is_another_search(serial: GenerationScheduler) -> None:
    assert points(finished(new_scheduler(seed=1)))[0] != points(serial)[0]


def test_copies_go_on_alike(serial: GenerationScheduler) -> None:
    half = new_scheduler()
    for _ in range(12):
        evaluate(half, take(half))
    for copied in (copy.deepcopy(half.sampler), pickle.loads(pickle.dumps(half.sampler))):
        slots = copied.read(half.study).current_slots()
        assert len(slots) > 1
        for slot in slots:
            assert copied.candidate(slot) == half.sampler.candidate(slot)


def test_generations_without_a_new_function_end_at_once() -> None:
    """Trees of depth 1 are few: soon all are known, and the search goes on to its second stage."""
    settings = GLOSettings(
        popsize=60,
        n_generations=12,
        max_depth=1,
        coefficients=CoefficientSettings(popsize=3, n_generations=1),
    )
    scheduler = finished(new_scheduler(settings=settings))
    sizes = [len(slots) for slots in log_of(scheduler).finished]
    assert len(sizes) == 13
    assert 0 in sizes[:12]
    assert sizes[-1] == 3
    assert scheduler.over


def test_a_search_without_a_second_stage_ends_after_the_first() -> None:
    settings = SMALL.changed(coefficients=CoefficientSettings(n_generations=0))
    scheduler = finished(new_scheduler(settings=settings))
    assert len(log_of(scheduler).finished) == SMALL.n_generations
    assert scheduler.sampler.search_state(scheduler.study) == []


def test_an_enqueued_tree_takes_a_slot_and_counts_as_what_it_is() -> None:
    scheduler = new_scheduler()
    scheduler.study.enqueue_trial({}, user_attrs={TREE: BAIKAL.to_prefix()})
    trial = take(scheduler)
    assert scheduler.sampler.suggest(trial).tree == BAIKAL
    finished(scheduler)  # the trial in hand is lost
    scheduler.finish(trial, 1.0)
    finished(scheduler)
    assert points(scheduler)[0][0] == TreePoint(tuple(BAIKAL.to_prefix()))
    # Nothing is nearer to Baikal than itself.
    assert scheduler.sampler.best_tree == BAIKAL


@pytest.mark.parametrize(
    ("attributes", "params"),
    [
        ({TREE: ["log"]}, {}),
        ({TREE: ["__import__", "y"]}, {}),
        ({TREE: "y"}, {}),
        ({TREE: [["y"]]}, {}),
        ({TREE: ["log", "y"]}, {"c_0": 1.0}),
        ({TREE: ["log", "y"]}, {"c_0": 1.0, "c_1": float("nan")}),
        ({TREE: ["log", "y"]}, {"c_0": 1.0, "c_1": 1e30}),
        ({TREE: ["+"] * 300 + ["y"] * 301}, {}),
    ],
)
def test_what_is_no_tree_is_left_out(
    attributes: dict[str, Any], params: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "TAKEOVER", (0.0, 0.0))
    scheduler = new_scheduler()
    scheduler.study.enqueue_trial(params, user_attrs=attributes)
    trial = take(scheduler)
    assert trial.number > 0
    withdrawn = scheduler.study.trials[0]
    assert withdrawn.state == TrialState.FAIL
    assert withdrawn.user_attrs[WITHDRAWN]


def test_a_stored_tree_that_is_damaged_is_no_obstacle(serial: GenerationScheduler) -> None:
    """What was drawn takes its place; nothing of the database is ever run."""
    scheduler = new_scheduler()
    trial = take(scheduler)
    trial.set_user_attr(TREE, ["system", "y"])
    scheduler.finish(trial, 0.0)
    finished(scheduler)
    assert scheduler.over
    assert points(scheduler)[0][1:] == points(serial)[0][1:]


def test_a_plain_study_with_one_job_searches_too(serial: GenerationScheduler) -> None:
    study = optuna.create_study(direction="maximize", sampler=GLOSampler(SMALL))

    def objective(trial: Trial) -> float:
        point = study.sampler.suggest(trial)
        place = [trial.user_attrs[key] for key in (GENERATION, INDEX)]
        return likeness(point) + random.Random(training_seed(0, *place, 0)).gauss(0, 0.1)

    study.optimize(objective, n_trials=25)
    log = study.sampler.read(study)
    assert log.generation >= SMALL.n_generations
    coefficients = [stored_point(t).coefficients for t in study.trials]
    assert coefficients[0] == ()
    assert len(coefficients[-1]) > 0


def test_a_trial_of_a_generation_that_nobody_knows_yet_is_refused() -> None:
    study = optuna.create_study(sampler=GLOSampler(SMALL))
    trials = [study.ask() for _ in range(11)]
    with pytest.raises(RuntimeError, match="let a GenerationScheduler hand out trials"):
        study.sampler.suggest(trials[-1])


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_bad_seeds_are_named(seed: Any) -> None:
    with pytest.raises(ValueError, match="seed must be an integer of at least 0"):
        GLOSampler(seed=seed)
