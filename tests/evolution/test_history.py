"""A search as its study has it: its recipe, which may grow, and its history."""

import statistics

import optuna
import pytest
from drawn_studies import GENERATIONS, POPULATION, searched_study
from optuna.trial import TrialState
from searches import small_recipe

from optuna_taylorglo.attributes import CROSS_ENTROPY, GENERATION, N_CLASSES, SELECTION
from optuna_taylorglo.errors import RecipeError, RecipeMismatch, StudyError
from optuna_taylorglo.evolution.history import (
    SearchHistory,
    attach_recipe,
    check_recipe,
    ranked_trials,
    read_history,
    trial_loss,
    winner,
)
from optuna_taylorglo.evolution.sampler import THETA_NAMES
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.recipes.load import load_recipe, replace_recipe, settled_recipe
from optuna_taylorglo.recipes.schema import recipe_from_dict
from optuna_taylorglo.study.open import create_evaluation_study, create_study, open_study


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
        assert tuple(trial.params[name] for name in THETA_NAMES) == candidate.parameters
        # Optuna gives a pruned trial its last report as its value.
        complete = trial.state == TrialState.COMPLETE
        assert candidate.fitness == (trial.value if complete else None)
    for generation in history.generations:
        values = [c.fitness for c in generation.candidates if c.fitness is not None]
        assert generation.values == values
        assert generation.best.fitness == max(values)
        assert generation.mean == pytest.approx(statistics.fmean(values))
    assert history.best_of_each == [generation.best for generation in history.generations]
    assert history.last_mean == history.generations[-1].mean


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
    # Trials beyond the last generation fill no slot.
    history = read_history(told(*[0.5] * POPULATION * 2, *[None] * (POPULATION * 2 + 1)))
    assert (history.n_finished, history.n_filled) == (GENERATIONS, history.n_slots)
    # A generation that ended early as a whole has neither best nor mean.
    first, second, third, _ = history.generations
    assert (third.best, third.mean, third.ended_early) == (None, None, POPULATION)
    assert history.best_of_each == [first.best, second.best]
    assert history.last_mean == 0.5


def test_ranks_go_from_best_to_worst_and_ties_to_the_earlier():
    study = told(0.5, 0.9, None, 0.1, 0.9, 0.2)
    history = read_history(study)
    assert [trial.number for trial in ranked_trials(study)] == [1, 4, 0, 5, 3]
    assert history.ranked == ranked_trials(study)
    assert winner(study).number == history.best.number == 1
    assert [best.trial for best in history.best_of_each] == [1]
    study = told(0.5, 0.4, None, 0.5, 0.7, 0.6, 0.8)
    assert [trial.number for trial in read_history(study).new_bests] == [0, 4, 6]


def test_a_complete_trial_without_our_parameters_is_no_candidate():
    study = told(0.5)
    study.add_trial(optuna.trial.create_trial(value=0.9))
    assert [c.trial for c in read_history(study).candidates] == [0]
    with pytest.raises(StudyError, match="trial 1 is no candidate: it does not hold theta_0, "):
        trial_loss(study, study.trials[1])


def test_cross_entropy_has_mean_and_range(study, history):
    fitness = history.cross_entropy
    assert (fitness.low, fitness.mean, fitness.high) == (0.4, 0.5, 0.6)
    assert fitness.by_seed == study.user_attrs[CROSS_ENTROPY]
    assert str(fitness) == "0.5000, mean of 2 seeds (0.4000 to 0.6000)"


def test_a_study_on_which_no_worker_has_begun_has_slots_but_no_history(study, history):
    fresh = optuna.create_study(direction="maximize")
    assert read_history(fresh) is None
    attach_recipe(fresh, history.recipe)
    assert read_history(fresh) is None
    before = SearchHistory(fresh, history.recipe)
    assert (before.n_finished, before.n_filled) == (0, 0)
    assert before.n_slots == POPULATION * GENERATIONS
    assert (before.best, before.last_mean, before.cross_entropy) == (None, None, None)
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


# The recipe of a study


@pytest.fixture
def recipe(tmp_path):
    return lambda **changes: load_recipe(small_recipe(tmp_path / "recipe.yaml", **changes))


def generations(number):
    return {"search": {"n_generations": number}}


def test_the_first_recipe_is_saved_for_workers_that_bring_none(recipe, sqlite_url):
    mine = recipe(fitness={"metric": "val_loss"})
    study = create_study("s", sqlite_url)
    with pytest.raises(StudyError, match=r"'s' has no recipe yet(.|\n)*--recipe "):
        attach_recipe(study, None)
    other = optuna.create_study(direction="minimize")
    with pytest.raises(StudyError, match="has direction minimize, but"):
        attach_recipe(other, mine)
    assert study.user_attrs == other.user_attrs == {}
    assert attach_recipe(study, mine) == mine
    study = open_study("s", sqlite_url)
    assert attach_recipe(study, None) == attach_recipe(study, mine) == mine
    assert study.metric_names == ["val_loss"]


def test_until_a_worker_has_begun_another_recipe_takes_the_place(recipe):
    study = optuna.create_study(direction="maximize")
    mine, other = recipe(), recipe(search={"sigma": 0.5})
    attach_recipe(study, mine)
    assert attach_recipe(study, other) == other
    # A worker that read the first one notices before it evaluates anything.
    with pytest.raises(RecipeMismatch, match=r"search\.sigma(.|\n)*Start the worker again"):
        check_recipe(study, mine)
    study.set_user_attr(N_CLASSES, 10)
    longer = attach_recipe(study, recipe(search={"sigma": 0.5, "n_generations": 9}))
    assert longer.search.n_generations == 9
    check_recipe(study, other)


def test_a_changed_recipe_is_refused_with_the_commands_that_help(recipe, sqlite_url):
    study = create_study("my study", sqlite_url)
    attach_recipe(study, recipe())
    create_evaluation_study(study, sqlite_url)
    changed = recipe(optimizer={"lr": 0.7}, fitness={"metric": "val_loss"}, **generations(5))
    with pytest.raises(RecipeMismatch) as caught:
        attach_recipe(study, changed)
    text = str(caught.value)
    assert "optimizer.lr: study has 0.05, not 0.7" in text
    assert "only search.n_generations, to a greater number, and selection may change" in text
    assert "--study-name 'my study-2'" in text
    for name in ("my study", "my study-verdict"):
        assert f"optuna delete-study --study-name '{name}' --storage {sqlite_url}" in text
    assert attach_recipe(study, None) == recipe()
    assert study.metric_names == ["val_accuracy"]
    for attribute in ((N_CLASSES, 10), (CROSS_ENTROPY, {"1": 0.5})):
        begun = optuna.create_study(direction="maximize")
        attach_recipe(begun, recipe())
        begun.set_user_attr(*attribute)
        with pytest.raises(RecipeMismatch, match="A worker has begun"):
            attach_recipe(begun, recipe(optimizer={"lr": 0.7}))


@pytest.mark.parametrize(
    "changes", [generations(3), {"selection": {"candidates": 7}}, {"selection": None}]
)
def test_after_a_change_the_winner_is_selected_again(recipe, changes, caplog):
    short = recipe(selection={"candidates": 3})
    study = optuna.create_study(direction="maximize")
    attach_recipe(study, short)
    study.set_user_attr(N_CLASSES, 10)
    study.set_user_attr(SELECTION, {"finalists": []})
    changed = recipe(**{"selection": {"candidates": 3}} | changes)
    assert attach_recipe(study, changed) == attach_recipe(study, None) == changed
    assert study.user_attrs[SELECTION] is None
    # A worker with the older file joins the longer search.
    optuna.logging.enable_propagation()
    kept = attach_recipe(study, short).search.n_generations
    optuna.logging.disable_propagation()
    assert kept == changed.search.n_generations
    assert ("keeps its 3 generations, more than the 2 of the file" in caplog.text) == (kept == 3)


def test_a_search_may_start_with_the_winner_of_another_study():
    anchored = {"base": "cross_entropy", "class_reduction": "sum"}
    first = searched_study(
        loss=anchored, search={"space": "canonical", "filter": "steady"} | {"start": "none"}
    )
    storage = first._storage

    def started(study_name):
        study = optuna.create_study(storage=storage, direction="maximize")
        content = settled_recipe(first).to_dict()
        content["search"] |= {"start": {"losses": ["wrong-labels"], "study": study_name}}
        return attach_recipe(study, recipe_from_dict(content)).search.start.shapes[1]

    best = max((t for t in first.trials if t.value is not None), key=lambda t: t.value)
    names = ("alpha", "beta", "gamma", "delta", "smoothing")
    assert started(first.study_name) == pytest.approx([best.params[name] for name in names])
    chosen = next(t for t in first.trials if t.value is not None and t is not best)
    parameters = list(chosen.params.values())
    first.set_user_attr(SELECTION, {"finalists": [{"parameters": parameters}]})
    assert started(first.study_name) == pytest.approx([chosen.params[name] for name in names])
    with pytest.raises(RecipeError, match="'other' is no study of a search"):
        started("other")
    empty = optuna.create_study(study_name="empty", storage=storage, direction="maximize")
    replace_recipe(empty, settled_recipe(first))
    empty.set_user_attr(N_CLASSES, 10)
    with pytest.raises(RecipeError, match="'empty' has no complete candidate yet"):
        started("empty")
