"""The winner of a search: which losses are compared, what is decided, and what is said of it."""

from dataclasses import replace

import pytest
from drawn_studies import made_verdict, searched_study
from optuna.trial import create_trial
from verdicts import Recorder

from optuna_taylorglo.attributes import SELECTION
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.search.candidates import candidate_loss, make_sampler
from optuna_taylorglo.search.history import ranked_trials, winner
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.verdict.output import is_about
from optuna_taylorglo.verdict.selection import WinnerSelection, choose, finalists
from optuna_taylorglo.verdict.winner import (
    FINAL_MEAN,
    Finalist,
    Selection,
    evaluation_advice,
    evaluation_check,
    is_undecided,
    load_selection,
    save_selection,
    selected_loss,
)


def study_with_choice(*trials, candidates=4, **changes):
    return searched_study(*trials, selection={"candidates": candidates}, **changes)


def in_favor_of(name):
    """Does tasks so that one loss is the best."""
    return Recorder(lambda task: 0.9 if task.loss.label == name else 0.5)


def test_contenders_are_the_best_different_candidates_and_the_final_mean():
    study = study_with_choice()
    recipe = settled_recipe(study)
    *candidates, mean = finalists(study, recipe)
    assert len(candidates) == 4
    values = [c.evaluation for c in candidates]
    assert values == sorted(values, reverse=True)
    assert candidates[0].trial == winner(study).number
    expected = make_sampler(recipe, 10).search_state(study)[-1].mean
    assert (mean.trial, mean.parameters, mean.evaluation) == (None, expected, None)
    assert mean.name == FINAL_MEAN


def test_the_same_function_is_a_contender_once():
    study = study_with_choice()
    best = ranked_trials(study)[0]
    # The third parameter does nothing.
    params = best.params | {"theta_2": 7.0}
    value = best.values[0] + 1e-3
    study.add_trial(create_trial(value=value, params=params, distributions=best.distributions))
    found = finalists(study, settled_recipe(study))
    assert best.number not in [c.trial for c in found]
    assert found[0].trial == len(study.trials) - 1


def test_a_candidate_can_win_and_so_can_the_mean():
    for name in (None, FINAL_MEAN):
        study = study_with_choice()
        recipe = settled_recipe(study)
        third = ranked_trials(study)[2].number
        name = name or f"trial {third}"
        assert is_undecided(study, recipe)
        chosen = choose(study, recipe, in_favor_of(name))
        assert chosen.name == name
        assert not is_undecided(study, recipe)
        again = selected_loss(study)
        assert again.name == name
        parameters = load_selection(study).winner.parameters
        assert again.loss.theta == candidate_loss(recipe, parameters, 10).theta
        origin = again.loss.origin
        assert origin.final_mean == (name == FINAL_MEAN)
        assert origin.trial == (None if origin.final_mean else third)
        assert origin.full_validation == pytest.approx(0.9)


def test_the_first_decision_stands():
    study = study_with_choice()
    recipe = settled_recipe(study)
    steps = WinnerSelection(study, recipe)
    first, second = (
        steps.next_step(in_favor_of(name)) for name in (FINAL_MEAN, steps.finalists[1].name)
    )
    assert save_selection(study, first, recipe)
    assert not save_selection(study, second, recipe)
    assert load_selection(study) == first


def test_without_the_field_the_single_best_evaluation_wins():
    study = searched_study()
    recipe = settled_recipe(study)
    nothing = Recorder(lambda task: pytest.fail("nothing is to be trained"))
    chosen = choose(study, recipe, nothing)
    assert chosen.trial.number == winner(study).number
    assert chosen.loss.origin.full_validation is None
    assert SELECTION not in study.user_attrs
    assert not is_undecided(study, recipe)


def test_a_search_under_way_has_a_best_but_no_winner():
    study = study_with_choice(7)
    recipe = settled_recipe(study)
    assert not is_undecided(study, recipe)
    assert selected_loss(study).trial.number == winner(study).number
    with pytest.raises(StudyError, match="has no winner yet"):
        choose(study, recipe, in_favor_of(FINAL_MEAN))
    with pytest.raises(StudyError, match="no complete trial"):
        selected_loss(study_with_choice(0))


def test_trainings_that_all_fail_leave_the_best_evaluation():
    study = study_with_choice()
    recipe = settled_recipe(study)
    assert choose(study, recipe, Recorder(lambda task: None)).trial.number == winner(study).number


def choice_of(evaluations, *rows):
    """A selection whose finalists had these evaluations and full trainings."""
    places = enumerate(zip(evaluations, zip(*rows, strict=True), strict=True))
    candidates = [Finalist(i, (0.0,), value, values, 0.0) for i, (value, values) in places]
    return Selection((*candidates, Finalist(None, (0.0,), None, (0.5, 0.5), 0.5)))


ASCENDING = [i / 10 for i in range(10)]
SHUFFLED = [ASCENDING[i] for i in (4, 9, 2, 7, 0, 5, 8, 1, 6, 3)]


OTHERWISE = [ASCENDING[i] for i in (3, 4, 8, 2, 1, 6, 7, 9, 5, 0)]


@pytest.fixture
def recipe():
    return settled_recipe(searched_study(0))


def test_the_check_leaves_out_the_mean_which_has_no_evaluation():
    check = evaluation_check(choice_of(ASCENDING, ASCENDING, ASCENDING))
    assert (check.correlation.value, check.correlation.n, check.among_full) == (1.0, 10, 1.0)


def test_what_diverged_is_the_worst_by_the_check_whichever_way_is_better():
    diverged_first = choice_of(ASCENDING, [None, *ASCENDING[1:]], ASCENDING)
    assert evaluation_check(diverged_first).correlation.value == 1.0
    diverged_last = choice_of(ASCENDING, [*ASCENDING[:-1], None], ASCENDING)
    assert evaluation_check(diverged_last, sign=-1).correlation.value == 1.0
    assert evaluation_check(diverged_last).correlation.value < 1.0


@pytest.mark.parametrize(
    ("evaluations", "first", "second", "said"),
    [
        (ASCENDING, ASCENDING, ASCENDING, "Evaluations are long enough."),
        (ASCENDING, SHUFFLED, SHUFFLED, "by 1.00: evaluations favor other losses"),
        (ASCENDING, SHUFFLED, SHUFFLED, "Make budget.evaluation longer."),
        (ASCENDING, SHUFFLED, OTHERWISE, "the candidates differ less than the seeds"),
        (ASCENDING[:5], [0, 1, 3, 2, 4], [0, 1, 2, 4, 3], "That leaves open"),
        (ASCENDING[:3], ASCENDING[:3], ASCENDING[:3], "Too few candidates that differ"),
    ],
)
def test_the_advice_follows_from_the_correlation(recipe, evaluations, first, second, said):
    assert said in evaluation_advice(choice_of(evaluations, first, second), recipe)


def test_full_evaluations_are_never_too_short(recipe):
    budget = recipe.budget.changed(evaluation=recipe.budget.full)
    text = evaluation_advice(
        choice_of(ASCENDING, SHUFFLED, SHUFFLED), recipe.changed(budget=budget)
    )
    assert "Both are full trainings" in text
    assert "the noise of seeds, which the selection averages out" in text
    assert "n = 10" in text
    assert "longer" not in text


@pytest.mark.parametrize("name", [FINAL_MEAN, None])
def test_a_verdict_is_not_about_the_winner_of_a_longer_search(name):
    study = study_with_choice()
    recipe = settled_recipe(study)
    chosen = choose(study, recipe, in_favor_of(name or f"trial {ranked_trials(study)[2].number}"))
    number = None if chosen.trial is None else chosen.trial.number
    verdict = replace(made_verdict(), trial=number, loss=chosen.loss.settings())
    assert is_about(verdict, selected_loss(study))
    longer = recipe.search.changed(n_generations=recipe.search.n_generations + 1)
    grown = attach_recipe(study, recipe.changed(search=longer))
    assert load_selection(study) is None
    assert not is_undecided(study, grown), "the search is not over"
    assert not is_about(verdict, selected_loss(study))


def test_a_choice_that_was_made_for_a_shorter_search_is_not_kept():
    study = study_with_choice()
    recipe = settled_recipe(study)
    late = WinnerSelection(study, recipe).next_step(in_favor_of(FINAL_MEAN))
    longer = recipe.search.changed(n_generations=recipe.search.n_generations + 1)
    attach_recipe(study, recipe.changed(search=longer))
    assert not save_selection(study, late, recipe)
    assert load_selection(study) is None
