"""GLO: trees are bred, equal ones recognized, and candidates follow from seed and results."""

import math
from decimal import Decimal
from random import Random

import mpmath
import optuna
import pytest
import torch
from chaos_glo import SMALL, likeness
from optuna.trial import TrialState
from schedulers import finished, place, searched_by_many, take

from optuna_taylorglo.attributes import GENERATION, TREE, WITHDRAWN
from optuna_taylorglo.evolution import glo
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.losses.tree import BAIKAL, MAX_SIZE, OPERATORS, Tree, tree_from_prefix
from optuna_taylorglo.losses.tree_loss import tree_values
from optuna_taylorglo.recipes.settings import CoefficientSettings, GLOSettings
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.study import queue

# Breeding


def leaves_at(tree, depth=0):
    if not tree.children:
        return {depth}
    return set.union(*(leaves_at(operand, depth + 1) for operand in tree.children))


def test_random_trees_are_full_or_of_many_shapes_within_their_depth():
    for depth in (0, 1, 3):
        full = [glo.random_tree(Random(seed), depth, full=True) for seed in range(30)]
        assert all(leaves_at(tree) == {depth} for tree in full)
    grown = [glo.random_tree(Random(seed), 3, full=False) for seed in range(200)]
    assert {tree.depth for tree in grown} == {0, 1, 2, 3}
    assert any(len(leaves_at(tree)) > 1 for tree in grown)
    # Those of the first generation depend on the output, and have every operator.
    drawn = [glo.first_tree(Random(seed), 6) for seed in range(200)]
    assert all(map(glo.depends_on_outputs, drawn))
    assert {tree.depth for tree in drawn} == {*range(glo.FIRST_DEPTH + 1)}
    assert {node.operator for tree in drawn for node in tree.nodes()} == {*OPERATORS}
    assert max(glo.first_tree(Random(s), 1).depth for s in range(50)) == 1


def bred(parents, crossover, max_depth=4):
    for seed in range(200):
        remaining = iter(parents[seed % len(parents) :] + parents * 100)
        yield glo.child(
            Random(seed), lambda r=remaining: next(r), crossover=crossover, max_depth=max_depth
        )


def test_crossover_brings_a_part_of_the_second_parent_and_nothing_else():
    mother, father = BAIKAL, tree_from_prefix(["square", "sqrt", "+", "y", "1"])
    children = {*bred([mother, father], 1.0)}
    assert len(children) > 10
    known = set(mother.to_prefix()) | set(father.to_prefix())
    assert all(set(each.to_prefix()) <= known for each in children)
    # A part at the root, which is the whole of it.
    assert father in children
    # Mutation brings what neither parent has.
    operators = {operator for each in bred([BAIKAL], 0.0) for operator in each.to_prefix()}
    assert operators == {*OPERATORS}


@pytest.mark.parametrize("crossover", [0.0, 1.0])
def test_no_child_is_too_deep_too_large_or_without_the_output(crossover):
    parents = [glo.random_tree(Random(seed), 4, full=True) for seed in range(40)]
    for made in bred([tree for tree in parents if glo.depends_on_outputs(tree)], crossover):
        assert made.depth <= 4
        assert glo.depends_on_outputs(made)
    # Seven levels of products have 255 nodes, all that a tree may have.
    whole = tree_from_prefix(["y"])
    for _ in range(7):
        whole = Tree("*", (whole, whole))
    assert whole.size == MAX_SIZE
    assert all(made.size <= MAX_SIZE for made in bred([whole], crossover, max_depth=17))


# Equal functions


def tree_of(text):
    return tree_from_prefix(text.split())


EQUAL = (("+ x y", "+ y x"), ("+ + x y 1", "+ x + y 1"), ("- y -1", "+ y 1"), ("+ y - 1 1", "y"))
EQUAL += (("* * -1 -1 y", "y"), ("/ y * y y", "/ 1 y"), ("log square y", "+ log y log y"))
EQUAL += (("sqrt square y", "y"), ("log * y / 1 y", "- x x"), ("/ y - x x", "log - 1 + 1 1"))
# x and its square are equal for hard labels, but not for soft ones. Half is not between any two
# outputs on one side of it.
OTHER = (("- x y", "- y x"), ("/ x y", "/ y x"), ("y", "square y"), ("x", "square x"))
OTHER += (("sqrt square - y x", "- y x"), ("log y", "log + y y"), ("* y + 1 1", "y"))
OTHER += (("/ y x", "/ 1 x"), ("sqrt square - y / 1 + 1 1", "- / 1 + 1 1 y"))


def test_equal_functions_have_one_key_and_others_another():
    for pairs, are_equal in ((EQUAL, True), (OTHER, False)):
        for pair in pairs:
            one, other = (glo.function_key(tree_of(text)) for text in pair)
            assert (one == other) == are_equal, pair
    constant = ["x", "1", "- y y", "/ y y", "log x", "* x log * y / 1 y"]
    assert not any(glo.depends_on_outputs(tree_of(text)) for text in constant)
    varying = ["y", "* x log y", "sqrt - y x", "/ y x", "+ 1 * x y"]
    assert all(glo.depends_on_outputs(tree_of(text)) for text in varying)


def test_values_are_those_that_a_loss_has():
    """Torch's, where they are finite; where they are not, neither is the key."""
    x, y = (torch.tensor([float(p[i]) for p in glo._GRID], dtype=torch.float64) for i in (0, 1))
    finite = 0
    for seed in range(300):
        drawn = glo.random_tree(Random(seed), 4, full=seed % 2 == 0)
        values = tree_values(drawn, x, y).tolist()
        for value, known in zip(values, glo.function_key(drawn), strict=True):
            if known is None:
                # Torch's rounding may leave a little of what is 0, and divide by it.
                assert not math.isfinite(value) or abs(value) > 1e6, drawn
            elif abs(known) < 1e12 and math.isfinite(value):
                finite += 1
                assert value == pytest.approx(float(known), rel=1e-6, abs=1e-6), drawn
    assert finite > 2000


def test_baikal_has_the_key_that_every_machine_computes():
    """Another one would let workers disagree on which trees are new."""
    with mpmath.workdps(60):
        expected = [
            Decimal(mpmath.nstr(mpmath.log(y) - x / y, 12, strip_zeros=False))
            for x, y in (map(mpmath.mpf, map(str, point)) for point in glo._GRID)
        ]
    assert list(glo.function_key(BAIKAL)) == expected


# The search


def new_scheduler(storage=None, settings=SMALL, direction="maximize", **options):
    study = optuna.create_study(
        study_name="a",
        storage=storage,
        sampler=glo.GLOSampler(settings, **({"attempts": 2, "max_failures": 30} | options)),
        direction=direction,
        load_if_exists=True,
    )
    generations = settings.n_generations + settings.coefficients.n_generations
    return GenerationScheduler(study, n_generations=generations)


def evaluate(scheduler, trial):
    """Aborts and values that follow from the candidate and its seed."""
    point = scheduler.sampler.suggest(trial)
    dice = Random(training_seed(0, *place(trial)))
    if dice.random() < 0.1:
        scheduler.finish(trial, state=TrialState.PRUNED)
        return
    sign = 1 if scheduler.study.direction == optuna.study.StudyDirection.MAXIMIZE else -1
    scheduler.finish(trial, sign * (likeness(point) + dice.gauss(0, 0.1)))


def log_of(scheduler):
    return scheduler.sampler.read(scheduler.study)


def points(scheduler):
    """The candidate of each slot; all trials of one have the same."""
    found = []
    for slots in log_of(scheduler).finished:
        candidates = [{glo.stored_point(trial) for trial in slot.trials} for slot in slots]
        found.append([point for (point,) in candidates])
    return found


@pytest.fixture(scope="module")
def serial():
    return finished(new_scheduler(), evaluate)


@pytest.mark.parametrize("n_workers", [2, 4, 20])
def test_any_workers_in_any_order_search_as_one(n_workers, serial):
    storage, dice = optuna.storages.InMemoryStorage(), Random(n_workers)
    searched_by_many(lambda: new_scheduler(storage), evaluate, n_workers, dice)
    assert points(new_scheduler(storage)) == points(serial)


def test_no_function_is_evaluated_twice_and_the_count_says_so(serial):
    trees = [p.tree for gen in points(serial)[: SMALL.n_generations] for p in gen if p is not None]
    assert len({glo.function_key(tree) for tree in trees}) == len(trees)
    replay = log_of(serial).replay
    assert replay.n_reused > 0
    assert len(trees) + replay.n_reused == SMALL.popsize * SMALL.n_generations
    # Elites are not evaluated again, so later generations hold their results.
    best, _ = min(replay._known.values(), key=lambda known: known[1])
    assert glo.function_key(best) in {glo.function_key(tree) for tree in replay._population}


def test_the_second_stage_varies_the_coefficients_of_the_best_tree(serial):
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


def test_candidates_follow_from_the_seed_and_not_from_the_direction(serial):
    assert points(finished(new_scheduler(direction="minimize"), evaluate)) == points(serial)
    assert points(finished(new_scheduler(seed=1), evaluate))[0] != points(serial)[0]


@pytest.mark.parametrize("n_generations", [0, 1])
def test_generations_without_a_new_function_end_at_once(n_generations):
    """Trees of depth 1 are few: soon all are known, and the search goes on to its second stage."""
    stage = CoefficientSettings(popsize=3, n_generations=n_generations)
    settings = GLOSettings(popsize=60, n_generations=12, max_depth=1, coefficients=stage)
    scheduler = finished(new_scheduler(settings=settings), evaluate)
    sizes = [len(slots) for slots in log_of(scheduler).finished]
    assert 0 in sizes[:12]
    assert sizes[12:] == [3] * n_generations
    assert len(scheduler.sampler.search_state(scheduler.study)) == (2 if n_generations else 0)
    assert scheduler.over


def test_an_enqueued_tree_takes_a_slot_and_counts_as_what_it_is():
    scheduler = new_scheduler()
    scheduler.study.enqueue_trial({}, user_attrs={TREE: BAIKAL.to_prefix()})
    trial = take(scheduler)
    assert scheduler.sampler.suggest(trial).tree == BAIKAL
    finished(scheduler, evaluate)
    scheduler.finish(trial, 1.0)
    finished(scheduler, evaluate)
    assert points(scheduler)[0][0] == glo.TreePoint(tuple(BAIKAL.to_prefix()))
    # Nothing is nearer to Baikal than itself.
    assert scheduler.sampler.best_tree == BAIKAL


def test_invalid_trees_are_left_out(monkeypatch):
    monkeypatch.setattr(queue, "TAKEOVER", (0.0, 0.0))
    scheduler = new_scheduler()
    invalid = [
        (["log"], {}),
        ("y", {}),
        ([["y"]], {}),
        (["log", "y"], {"c_0": 1.0}),
        (["log", "y"], {"c_0": 1.0, "c_1": 1e30}),
        (["+"] * 300 + ["y"] * 301, {}),
    ]
    for stored, params in invalid:
        scheduler.study.enqueue_trial(params, user_attrs={TREE: stored})
    assert take(scheduler).number >= len(invalid)
    withdrawn = scheduler.study.trials[: len(invalid)]
    assert all(t.state == TrialState.FAIL and t.user_attrs[WITHDRAWN] for t in withdrawn)


def test_a_plain_study_with_one_job_searches_too():
    sampler = glo.GLOSampler(SMALL)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(lambda trial: likeness(sampler.suggest(trial)), n_trials=25)
    assert sampler.read(study).generation >= SMALL.n_generations
    coefficients = [glo.stored_point(t).coefficients for t in study.trials]
    assert coefficients[0] == ()
    assert len({*coefficients}) > 2
    # A generation that is not known yet has no candidates.
    unknown = optuna.create_study(sampler=sampler)
    trials = [unknown.ask() for _ in range(11)]
    with pytest.raises(RuntimeError, match="let a GenerationScheduler hand out trials"):
        sampler.suggest(trials[-1])
