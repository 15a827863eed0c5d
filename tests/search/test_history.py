"""The history of a search against its trials."""

from __future__ import annotations

import statistics
import subprocess
import sys

import optuna
import pytest
from drawn_studies import GENERATIONS, POPULATION, searched_study
from optuna.trial import TrialState

from optuna_taylorglo.attributes import CROSS_ENTROPY, GENERATION, N_CLASSES
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.recipes.load import frozen_recipe, replace_recipe
from optuna_taylorglo.search.history import (
    CrossEntropy,
    SearchHistory,
    ranked_trials,
    read_history,
    trial_loss,
    winner,
)
from optuna_taylorglo.search.scheduler import GenerationScheduler


@pytest.fixture(scope="module")
def study():
    return searched_study()


@pytest.fixture(scope="module")
def history(study):
    return read_history(study)


def told(*values):
    """A study with a recipe whose candidates have these values, None for aborted ones."""
    study = searched_study(0)
    for value in values:
        trial = study.ask()
        study.sampler.suggest(trial)
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        study.tell(trial, value, state=state)
    return study


def test_generations_hold_the_trials_that_were_made_for_them(study, history):
    assert history.finished
    assert len(history.generations) == GENERATIONS
    assert len(history.candidates) == POPULATION * GENERATIONS
    for candidate in history.candidates:
        trial = study.trials[candidate.trial]
        assert trial.user_attrs[GENERATION] == candidate.generation
        assert tuple(trial.params[name] for name in history.names) == candidate.parameters
        # Optuna gives a pruned trial its last report as its value.
        complete = trial.state == TrialState.COMPLETE
        assert candidate.fitness == (trial.value if complete else None)


def test_best_and_mean_of_a_generation_are_of_those_that_trained(history):
    for generation in history.generations:
        values = [c.fitness for c in generation.candidates if c.fitness is not None]
        assert generation.values == values
        assert generation.best.fitness == max(values)
        assert generation.mean == pytest.approx(statistics.fmean(values))
        assert generation.ended_early == POPULATION - len(values)
    assert history.best_of_each == [generation.best for generation in history.generations]
    assert history.last_mean == history.generations[-1].mean


def test_a_generation_that_ended_early_as_a_whole_has_neither():
    history = read_history(told(*[0.5] * POPULATION, *[None] * POPULATION))
    first, second = history.generations
    assert (second.best, second.mean, second.ended_early) == (None, None, POPULATION)
    assert history.best_of_each == [first.best]
    assert history.last_mean == 0.5


def test_counts_and_slots_of_a_search_under_way():
    study = searched_study(POPULATION + 2)
    study.ask()
    history = read_history(study)
    assert not history.finished
    assert history.n_finished == 1
    assert (history.n_filled, history.n_slots) == (POPULATION + 2, POPULATION * GENERATIONS)
    assert [c.generation for c in history.candidates[POPULATION:]] == [1, 1]
    assert {state: n for state, n in history.counts.items() if n} == {
        TrialState.RUNNING: 1,
        TrialState.COMPLETE: POPULATION + 1,
        TrialState.PRUNED: 1,
    }


def test_results_of_the_next_generation_count_where_generations_overlap():
    study = searched_study(POPULATION, search={"overlap": 2})
    scheduler = GenerationScheduler(study)
    trials = [scheduler.claim() for _ in range(POPULATION + 2)]
    for trial in trials[1:]:
        scheduler.finish(trial, 0.5)
    history = read_history(study)
    assert (history.n_finished, history.n_filled) == (1, 2 * POPULATION + 1)
    places = [c.generation for c in history.candidates[POPULATION:]]
    assert places == [1] * (POPULATION - 1) + [2] * 2


def test_trials_beyond_the_last_generation_fill_no_slot():
    history = read_history(told(*[0.5] * (POPULATION * GENERATIONS + 1)))
    assert (history.n_finished, history.n_filled) == (GENERATIONS, history.n_slots)


def test_ranks_go_from_best_to_worst_and_ties_to_the_earlier():
    study = told(0.5, 0.9, None, 0.1, 0.9)
    assert [trial.number for trial in ranked_trials(study)] == [1, 4, 0, 3]
    assert read_history(study).ranked == ranked_trials(study)
    assert winner(study).number == read_history(study).best.number == 1


def test_among_equals_the_best_of_a_generation_is_the_earliest():
    study = told(0.5, 0.9, None, 0.1, 0.9, 0.2)
    assert [best.trial for best in read_history(study).best_of_each] == [1]


def test_new_bests_surpass_all_before_them():
    study = told(0.5, 0.4, None, 0.5, 0.7, 0.6, 0.8)
    assert [trial.number for trial in read_history(study).new_bests] == [0, 4, 6]


def test_a_complete_trial_without_our_parameters_is_no_candidate():
    study = told(0.5)
    study.add_trial(optuna.trial.create_trial(value=0.9))
    history = read_history(study)
    assert [c.trial for c in history.candidates] == [0]
    with pytest.raises(StudyError, match="trial 1 is no candidate: it does not hold theta_0, "):
        trial_loss(study, study.trials[1])


def test_cross_entropy_has_mean_range_and_words(study, history):
    fitness = history.cross_entropy
    assert (fitness.low, fitness.mean, fitness.high) == (0.4, 0.5, 0.6)
    assert fitness.by_seed == study.user_attrs[CROSS_ENTROPY]
    assert str(fitness) == "0.5000, mean of 2 seeds (0.4000 to 0.6000)"
    assert str(CrossEntropy({"1": 0.25})) == "0.2500, mean of 1 seed (0.2500 to 0.2500)"
    untrained = searched_study(0)
    untrained.set_user_attr(CROSS_ENTROPY, {})
    assert read_history(untrained).cross_entropy is None


def test_a_study_nobody_has_begun_has_slots_but_no_history(study):
    fresh = optuna.create_study(direction="maximize")
    assert read_history(fresh) is None
    recipe = frozen_recipe(study)
    replace_recipe(fresh, recipe)
    assert read_history(fresh) is None
    history = SearchHistory(fresh, recipe)
    assert (history.n_finished, history.n_filled) == (0, 0)
    assert history.n_slots == POPULATION * GENERATIONS
    assert (history.best, history.last_mean, history.cross_entropy) == (None, None, None)
    assert winner(fresh) is None
    with pytest.raises(StudyError, match="no worker has begun"):
        trial_loss(fresh, study.trials[0])
    fresh.set_user_attr(N_CLASSES, 10)
    assert read_history(fresh).n_classes == 10


def test_the_loss_of_a_trial_knows_where_it_comes_from(study):
    best = winner(study)
    loss = trial_loss(study, best)
    assert loss.theta == tuple(best.params[f"theta_{i}"] for i in range(8))
    assert (loss.origin.study, loss.origin.trial) == ("drawn", best.number)
    assert loss.origin.validation_accuracy == best.value
    assert loss.n_classes == 10


def test_looking_at_a_search_does_not_load_torch():
    # `taylorglo run` looks once per second, in a process that never trains.
    code = "import sys, optuna_taylorglo.cli.run; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
