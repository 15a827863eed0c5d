"""The winner of a search: which losses are compared, how, and what is decided."""

import itertools
import statistics

import pytest
from drawn_studies import searched_study
from optuna.trial import create_trial
from verdicts import Recorder

from optuna_taylorglo.attributes import SELECTION
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.evolution.candidates import candidate_loss, make_sampler
from optuna_taylorglo.evolution.history import attach_recipe, ranked_trials, winner
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict import selection
from optuna_taylorglo.verdict.tasks import cross_entropy


@pytest.fixture
def searched():
    """A finished search whose winner is to be selected, and its recipe."""
    study = searched_study(selection={"candidates": 4})
    return study, settled_recipe(study)


def in_favor_of(name):
    """Does tasks so that one loss is the best."""
    return Recorder(lambda task: 0.9 if task.loss.label == name else 0.5)


def test_finalists_are_the_best_different_candidates_and_the_final_mean(searched):
    study, recipe = searched
    *candidates, mean = selection.finalists(study, recipe)
    assert len(candidates) == 4
    values = [c.evaluation for c in candidates]
    assert values == sorted(values, reverse=True)
    assert candidates[0].trial == winner(study).number
    expected = make_sampler(recipe, 10).search_state(study)[-1].mean
    assert (mean.trial, mean.parameters, mean.evaluation) == (None, expected, None)
    assert mean.name == selection.FINAL_MEAN


def test_the_same_function_is_a_finalist_once(searched):
    study, recipe = searched
    best = ranked_trials(study)[0]
    params = best.params | {"theta_2": 7.0}  # which does nothing
    value = best.values[0] + 1e-3
    study.add_trial(create_trial(value=value, params=params, distributions=best.distributions))
    found = selection.finalists(study, recipe)
    assert best.number not in [c.trial for c in found]
    assert found[0].trial == len(study.trials) - 1


@pytest.mark.parametrize("place", [2, None])
def test_a_candidate_can_win_and_so_can_the_mean(searched, place):
    study, recipe = searched
    number = None if place is None else ranked_trials(study)[place].number
    name = selection.FINAL_MEAN if number is None else f"trial {number}"
    assert selection.is_undecided(study, recipe)
    assert selection.choose(study, recipe, in_favor_of(name)).name == name
    assert not selection.is_undecided(study, recipe)
    again = selection.selected_loss(study)
    assert again.name == name
    parameters = selection.load_selection(study).winner.parameters
    assert again.loss.theta == candidate_loss(recipe, parameters, 10).theta
    origin = again.loss.origin
    assert (origin.trial, origin.final_mean) == (number, number is None)
    assert origin.full_validation == pytest.approx(0.9)


def test_without_a_selection_the_single_best_evaluation_wins():
    study = searched_study(7, selection={"candidates": 4})
    recipe = settled_recipe(study)
    assert not selection.is_undecided(study, recipe)
    assert selection.selected_loss(study).trial.number == winner(study).number
    with pytest.raises(StudyError, match="has no winner yet"):
        selection.choose(study, recipe, in_favor_of(selection.FINAL_MEAN))
    with pytest.raises(StudyError, match="no complete trial"):
        selection.selected_loss(searched_study(0))
    study = searched_study()
    recipe = settled_recipe(study)
    nothing = Recorder(lambda task: pytest.fail("nothing is to be trained"))
    selected = selection.choose(study, recipe, nothing)
    assert selected.trial.number == winner(study).number
    assert selected.loss.origin.full_validation is None
    assert SELECTION not in study.user_attrs
    assert not selection.is_undecided(study, recipe)


def test_a_longer_search_selects_again(searched):
    study, recipe = searched
    late = selection.select_winner(study, recipe, in_favor_of(selection.FINAL_MEAN))
    selection.choose(study, recipe, in_favor_of(selection.finalists(study, recipe)[0].name))
    assert not selection.save_selection(study, late, recipe), "the first decision stands"
    assert selection.load_selection(study) != late
    longer = recipe.search.changed(n_generations=recipe.search.n_generations + 1)
    grown = attach_recipe(study, recipe.changed(search=longer))
    assert selection.load_selection(study) is None
    assert not selection.is_undecided(study, grown), "the search is not over"
    assert not selection.save_selection(study, late, recipe)


def losses(n):
    return [cross_entropy(str(i), f"loss {i}", scale=1.0 + i) for i in range(n)]


@pytest.mark.parametrize(
    ("n", "trainings"),
    [(1, [4]), (2, [4, 4]), (4, [8, 8, 2, 2]), (11, [8] * 3 + [4] * 3 + [2] * 5)],
)
def test_the_better_half_gets_more_seeds(recipe, n, trainings):
    do = Recorder(lambda task: int(task.loss.name) / 100 + task.seed % 7 * 1e-4)
    ranking = selection.halve(losses(n), recipe, do, Stage.SELECTION)
    assert [ranked.index for ranked in ranking] == list(range(n))[::-1]
    assert [len(ranked.values) for ranked in ranking] == trainings
    assert [r.mean for r in ranking] == [statistics.fmean(r.values) for r in ranking]
    assert {(task.length, task.on_test_set) for task in do.tasks} == {(recipe.budget.full, False)}
    assert len({task.key for task in do.tasks}) == len(do.tasks) == sum(trainings)
    # All losses start from the same weights.
    assert len({task.seed for task in do.tasks}) == trainings[0]


@pytest.mark.parametrize("finished", [0.3, -5.0])
def test_a_diverged_training_is_as_bad_as_the_worst(recipe, finished):
    """Whatever the metric: below an accuracy, and not above a negative number."""
    do = Recorder(lambda task: None if task.loss.name == "0" else finished)
    first, second = selection.halve(losses(2), recipe, do, Stage.SELECTION)
    diverged, trained = sorted((first, second), key=lambda ranked: ranked.index)
    assert set(diverged.values) == {None}
    assert diverged.mean == min(0.0, finished) <= trained.mean == finished
    # Of equal losses the first wins.
    equal = selection.halve(losses(5), recipe, Recorder(lambda task: finished), Stage.SELECTION)
    assert [ranked.index for ranked in equal] == list(range(5))


def test_a_favorite_stays_and_wins_unless_another_is_clearly_better(recipe):
    def ranking(of_favorite):
        noise = itertools.cycle([0.05, -0.05, 0.03, -0.03])
        values = [0.9, 0.8, 0.7, 0.6, 0.5, of_favorite]
        plain = dict(zip("012345", values, strict=True))
        do = Recorder(lambda task: plain[task.loss.name] and plain[task.loss.name] + next(noise))
        return selection.halve(losses(6), recipe, do, Stage.SELECTION, favorite=5)

    assert [ranked.index for ranked in ranking(0.895)[:2]] == [5, 0]
    assert ranking(None)[0].index == 0, "a favorite must not diverge"
    behind = ranking(0.1)
    assert behind[0].index == 0
    assert [len(ranked.values) for ranked in behind if ranked.index == 5] == [8]
