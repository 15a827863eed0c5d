"""A study that meets another recipe: it grows, begins anew, or says which commands help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from searches import small_recipe

from optuna_taylorglo.attributes import (
    CROSS_ENTROPY,
    FIRST_TRIAL,
    GENERATION,
    INDEX,
    SELECTION,
    WITHDRAWN,
)
from optuna_taylorglo.errors import RecipeMismatch
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import make_sampler
from optuna_taylorglo.search.generations import Slot
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.search.study import attach_recipe, check_recipe
from optuna_taylorglo.study import queue
from optuna_taylorglo.study.heartbeat import WorkerProcess
from optuna_taylorglo.study.open import create_evaluation_study, create_study, evaluation_study_name


class Studies:
    """Studies in one file, and recipes for them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def recipe(self, **changes: Any) -> Recipe:
        return load_recipe(small_recipe(self.folder / "recipe.yaml", **changes))

    def searched(self, name: str, recipe: Recipe) -> optuna.Study:
        """Search by a recipe to its end, with a fitness that needs no training."""
        study = create_study(name, self.url)
        recipe = attach_recipe(study, recipe)
        study.sampler = make_sampler(recipe, 10)
        scheduler = GenerationScheduler(study, n_generations=recipe.search.n_generations)
        while (trial := scheduler.claim()) is not None:
            theta = list(trial.params.values())
            scheduler.finish(trial, 1 / (1 + sum(x * x for x in theta)))
        assert scheduler.over
        return study


@pytest.fixture
def studies(tmp_path: Path, sqlite_url: str) -> Studies:
    return Studies(tmp_path, sqlite_url)


def generations(number: int) -> dict[str, Any]:
    return {"search": {"n_generations": number}}


def candidates(study: optuna.Study) -> list[tuple[Any, ...]]:
    return [
        (t.user_attrs[GENERATION], t.user_attrs[INDEX], t.params, t.value) for t in study.trials
    ]


def test_a_search_that_was_made_longer_has_the_candidates_of_a_long_one(studies: Studies) -> None:
    short, long = studies.recipe(**generations(2)), studies.recipe(**generations(4))
    grown = studies.searched("grown", short)
    before = candidates(grown)
    assert SearchHistory(grown, attach_recipe(grown, None)).finished
    grown = studies.searched("grown", long)
    assert attach_recipe(grown, None) == long
    assert candidates(grown)[: len(before)] == before
    assert candidates(grown) == candidates(studies.searched("long", long))
    assert SearchHistory(grown, long).n_finished == 4


def test_workers_with_the_older_file_join_the_longer_search(
    studies: Studies, caplog: pytest.LogCaptureFixture
) -> None:
    optuna.logging.enable_propagation()
    study = studies.searched("s", studies.recipe(**generations(3)))
    assert attach_recipe(study, studies.recipe(**generations(2))).search.n_generations == 3
    assert "has 3 generations, more than the 2 of the file" in caplog.text
    optuna.logging.disable_propagation()


@pytest.mark.parametrize(
    "changes", [generations(3), {"selection": {"candidates": 7}}, {"selection": None}]
)
def test_the_winner_is_chosen_again(studies: Studies, changes: dict[str, Any]) -> None:
    study = studies.searched("s", studies.recipe(selection={"candidates": 3}))
    finalist = {"trial": 5, "parameters": [0.0], "evaluation": 0.5, "values": [], "mean": 0.5}
    study.set_user_attr(SELECTION, {"finalists": [finalist]})
    attach_recipe(study, studies.recipe(**{"selection": {"candidates": 3}} | changes))
    assert study.user_attrs[SELECTION] is None


def test_with_results_the_rest_is_refused_with_the_commands_that_help(studies: Studies) -> None:
    study = studies.searched("my study", studies.recipe())
    create_evaluation_study(study, studies.url)
    with pytest.raises(RecipeMismatch) as caught:
        attach_recipe(study, studies.recipe(optimizer={"lr": 0.7}, **generations(5)))
    text = str(caught.value)
    assert "optimizer.lr: study has 0.05, file has 0.7" in text
    assert "only search.n_generations, to a greater number, and selection may change" in text
    assert "--study-name 'my study-2'" in text
    for name in ("my study", evaluation_study_name("my study")):
        assert f"optuna delete-study --study-name '{name}' --storage {studies.url}" in text
    assert attach_recipe(study, None) == studies.recipe()


def test_trainings_beside_the_search_are_results_too(studies: Studies) -> None:
    """Their keys do not name the recipe: under another one they would be taken for its own."""
    study = create_study("s", studies.url)
    attach_recipe(study, studies.recipe())
    create_evaluation_study(study, studies.url).add_trial(create_trial(value=0.5))
    with pytest.raises(RecipeMismatch, match="has results"):
        attach_recipe(study, studies.recipe(optimizer={"lr": 0.7}))


def failed_study(studies: Studies) -> optuna.Study:
    """A study all of whose evaluations crashed, with a candidate put in by hand."""
    study = create_study("s", studies.url)
    study.sampler = make_sampler(attach_recipe(study, studies.recipe()), 10)
    scheduler = GenerationScheduler(study)
    for _ in range(9):
        trial = scheduler.claim()
        assert trial is not None
        scheduler.finish(trial, state=TrialState.FAIL)
    trial = scheduler.claim()
    assert trial is not None
    scheduler.release(trial)
    study.set_user_attr(CROSS_ENTROPY, {"1": 0.5})
    return study


def test_a_study_without_a_result_begins_anew_with_the_corrected_recipe(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "TAKEOVER", (0.0, 0.0))
    study = failed_study(studies)
    study.enqueue_trial({"theta_0": 0.125})
    before = len(study.trials)
    other = studies.recipe(search={"sigma": 0.5, "seed": 9}, optimizer={"lr": 0.7})
    assert attach_recipe(study, other) == other
    assert study.user_attrs[CROSS_ENTROPY] == {}
    history = SearchHistory(study, other)
    assert (history.n_filled, history.begun) == (0, False)
    study.sampler = sampler = make_sampler(other, 10)
    scheduler = GenerationScheduler(study)
    first, second = scheduler.claim(), scheduler.claim()
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (before, before + 1)
    places = [(t.user_attrs[GENERATION], t.user_attrs[INDEX]) for t in (first, second)]
    assert places == [(0, 0), (0, 1)]
    assert sampler.suggest(first)[0] == 0.125
    assert list(second.params.values()) == sampler.candidate(Slot(1, sampler.rules))
    assert study.trials[before - 1].user_attrs[WITHDRAWN]


def test_a_finished_search_that_began_anew_is_that_of_a_study_of_its_own(studies: Studies) -> None:
    failed_study(studies)
    other = studies.recipe(search={"sigma": 0.5, "seed": 9})
    study = studies.searched("s", other)
    first = study.user_attrs[FIRST_TRIAL]
    assert first > 0
    own = candidates(studies.searched("own", other))
    assert candidates(study)[first:] == own


def test_while_a_worker_is_at_work_its_recipe_stays(studies: Studies) -> None:
    study = failed_study(studies)
    trial = GenerationScheduler(study).claim()
    assert trial is not None
    with pytest.raises(RecipeMismatch, match=f"worker {WorkerProcess.current()} is at work"):
        attach_recipe(study, studies.recipe(search={"sigma": 0.5}))
    # More generations disturb nobody.
    assert attach_recipe(study, studies.recipe(**generations(9))).search.n_generations == 9


def test_a_worker_notices_that_the_study_began_anew(studies: Studies) -> None:
    study = create_study("s", studies.url)
    mine = attach_recipe(study, studies.recipe())
    check_recipe(study, mine)
    attach_recipe(study, studies.recipe(**generations(9)))
    check_recipe(study, mine)
    attach_recipe(study, studies.recipe(search={"sigma": 0.5}))
    with pytest.raises(RecipeMismatch, match=r"search\.sigma(.|\n)*began anew"):
        check_recipe(study, mine)
