"""The pilot: which length it takes, and that it draws its own candidates."""

import math

import pytest
from verdicts import Recorder

from optuna_taylorglo.search.candidates import candidate_loss, make_sampler
from optuna_taylorglo.search.generations import Slot
from optuna_taylorglo.verdict.selection import Round
from optuna_taylorglo.verdict.sweep import CANDIDATES, Pilot, decide

LENGTHS = {100: "a tenth", 333: "a third", 1000: "the whole"}
GOOD = [0.50 + 0.03 * i for i in range(12)]
SWAPPED = [GOOD[i ^ 1] for i in range(12)]
REVERSED = GOOD[::-1]


def decided(tenth, third, whole=GOOD, other=SWAPPED):
    return decide(LENGTHS, [tenth, third, whole], other, "steps")


def test_the_shortest_that_ranks_like_full_trainings_is_taken():
    assert decided(GOOD, GOOD).length == 100
    assert decided(REVERSED, GOOD).length == 333
    assert decided(REVERSED, REVERSED).length == 1000


def test_a_good_order_of_the_bad_ones_does_not_help_if_the_best_are_missed():
    # Its best three are the fourth to sixth: what it would pick is worse than its correlation.
    fast = GOOD[:6] + GOOD[9:] + GOOD[6:9]
    figures = decided(fast, GOOD).tried[0]
    assert figures.correlation > 0.79
    assert figures.behind > decided(fast, GOOD).noise
    assert decided(fast, GOOD, other=GOOD).length == 333


def test_full_trainings_that_disagree_can_judge_nothing():
    decision = decided(GOOD, GOOD, other=[GOOD[i * 5 % 12] for i in range(12)])
    assert decision.length == 1000
    assert "too differently to judge" in decision.reason


@pytest.mark.parametrize("nothing", [[None] * 12, [0.1] * 12])
def test_without_any_order_evaluations_are_full_trainings(nothing):
    decision = decided(nothing, nothing, nothing, nothing)
    assert decision.length == 1000
    assert "unknown" in decision.reason


def test_failed_trainings_rank_last_and_are_no_noise():
    diverging = [None, None, *GOOD[2:]]
    decision = decided(diverging, diverging, diverging, [None, None, *SWAPPED[2:]])
    assert decision.length == 100
    assert decision.noise == pytest.approx(0.03 / math.sqrt(2))


def test_where_smaller_is_better_the_decision_is_that_of_the_mirrored_values():
    rows = [REVERSED, [None, None, *GOOD[2:]], GOOD, [None, None, *SWAPPED[2:]]]
    mirrored = [[None if value is None else -value for value in row] for row in rows]
    expected = decide(LENGTHS, rows[:3], rows[3], "steps")
    assert decide(LENGTHS, mirrored[:3], mirrored[3], "steps", sign=-1) == expected
    assert decide(LENGTHS, mirrored[:3], mirrored[3], "steps") != expected


def test_the_reason_has_the_figures():
    reason = decided(REVERSED, GOOD).reason
    assert reason.startswith("A third of a full training, 333 steps, is the shortest length")
    assert "a tenth (100 steps) -0.96 and" in reason


@pytest.fixture
def auto(recipe):
    return recipe.changed(budget=recipe.budget.changed(evaluation="auto", full=1000))


def test_what_is_trained(auto):
    pilot = Pilot(auto, 10)
    step = pilot.next_step(lambda tasks: None)
    assert isinstance(step, Round)
    lengths = [task.length for task in step.tasks]
    assert [lengths.count(n) for n in (100, 333, 1000)] == [CANDIDATES, CANDIDATES, 2 * CANDIDATES]
    assert not any(task.on_test_set for task in step.tasks)
    assert len({task.key for task in step.tasks}) == 4 * CANDIDATES
    # The three lengths of a candidate are one training, looked at three times.
    assert len({task.seed for task in step.tasks}) == 2 * CANDIDATES
    assert step == Pilot(auto, 10).next_step(lambda tasks: None)


def test_the_search_does_not_get_the_pilots_candidates(auto):
    tasks = Pilot(auto, 10).next_step(lambda tasks: None).tasks
    piloted = {tuple(task.loss.settings["theta"]) for task in tasks}
    sampler = make_sampler(auto, 10)
    searched = {
        candidate_loss(auto, sampler.candidate(Slot(i, sampler.rules)), 10).theta for i in range(4)
    }
    assert len(piloted) == CANDIDATES
    assert not piloted & searched


def test_a_tiny_training_has_fewer_lengths(auto):
    tiny = auto.changed(budget=auto.budget.changed(full=2))
    do = Recorder(lambda task: 0.5)
    assert Pilot(tiny, 10).next_step(do).length == 2
    assert {task.length for task in do.tasks} == {1, 2}
