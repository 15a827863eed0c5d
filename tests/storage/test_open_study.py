"""Opening a study: only one that a search, and nothing else, lives in."""

from __future__ import annotations

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from optuna_taylorglo.attributes import COMPANION_OF, GENERATION, RECIPE
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.open_study import (
    Direction,
    create_command,
    create_companion,
    create_study,
    open_study,
)


def test_a_study_is_created_once_and_maximises(sqlite_url: str) -> None:
    first = create_study("s", sqlite_url)
    first.set_user_attr("mark", 1)
    assert create_study("s", sqlite_url).user_attrs == {"mark": 1}
    assert open_study("s", sqlite_url).direction == optuna.study.StudyDirection.MAXIMIZE


def test_a_missing_study_comes_with_the_command_that_creates_it(sqlite_url: str) -> None:
    with pytest.raises(StudyError, match="there is no study 'my study'") as caught:
        open_study("my study", sqlite_url)
    assert "--study-name 'my study' --storage sqlite:///" in str(caught.value)
    with pytest.raises(StudyError, match="--direction minimize"):
        open_study("my study", sqlite_url, direction="minimize")
    assert "secret" not in create_command("s", "postgresql://me:secret@host/db")


@pytest.mark.parametrize(("there", "asked"), [("minimize", "maximize"), ("maximize", "minimize")])
def test_the_other_direction_is_refused(sqlite_url: str, there: str, asked: Direction) -> None:
    optuna.create_study(study_name="s", storage=open_storage(sqlite_url), direction=there)
    with pytest.raises(StudyError, match=f"has direction {there}, but") as caught:
        create_study("s", sqlite_url, direction=asked)
    assert f"--direction {asked} --study-name s --storage sqlite:///" in str(caught.value)


def test_several_objectives_are_refused(sqlite_url: str) -> None:
    directions = ["maximize", "maximize"]
    optuna.create_study(study_name="s", storage=open_storage(sqlite_url), directions=directions)
    for open_ in (open_study, create_study):
        with pytest.raises(StudyError, match="has direction maximize, maximize, but"):
            open_("s", sqlite_url)


def test_a_study_that_minimises_has_a_companion_that_does(sqlite_url: str) -> None:
    study = create_study("s", sqlite_url, direction="minimize")
    assert create_companion(study, sqlite_url).direction == study.direction
    assert create_companion(study, sqlite_url).direction == study.direction


def test_strangers_are_trials_that_ran_without_a_generation(sqlite_url: str) -> None:
    study = create_study("s", sqlite_url)
    study.enqueue_trial({"theta_0": 1.0})
    study.add_trial(create_trial(value=1.0, user_attrs={GENERATION: 0}))
    open_study("s", sqlite_url)
    study.add_trial(create_trial(state=TrialState.FAIL))
    with pytest.raises(StudyError, match="not of a TaylorGLO search") as caught:
        open_study("s", sqlite_url)
    assert "--study-name s-taylorglo" in str(caught.value)
    study.set_user_attr(RECIPE, {})
    open_study("s", sqlite_url)


def test_the_companion_is_created_once_and_knows_its_study(sqlite_url: str) -> None:
    study = create_study("s", sqlite_url)
    companion = create_companion(study, sqlite_url)
    companion.add_trial(create_trial(value=1.0))
    again = create_companion(study, sqlite_url)
    assert (again.study_name, len(again.trials)) == ("s-verdict", 1)
    assert again.user_attrs == {COMPANION_OF: "s"}
    # Its trials have no generation, and are no strangers.
    assert open_study("s-verdict", sqlite_url).direction == study.direction


def test_a_foreign_companion_is_refused_and_left_alone(sqlite_url: str) -> None:
    study = create_study("s", sqlite_url)
    foreign = create_study("s-verdict", sqlite_url)
    foreign.add_trial(create_trial(value=1.0))
    with pytest.raises(StudyError, match=r"'s-verdict' in .* is not the companion of 's'"):
        create_companion(study, sqlite_url)
    assert foreign.user_attrs == {}
    others = create_study("t-verdict", sqlite_url)
    others.set_user_attr(COMPANION_OF, "somebody")
    with pytest.raises(StudyError, match="is not the companion of 't'"):
        create_companion(create_study("t", sqlite_url), sqlite_url)
    assert others.user_attrs == {COMPANION_OF: "somebody"}


def test_a_companion_that_minimises_is_refused_before_anything_is_trained(sqlite_url: str) -> None:
    optuna.create_study(study_name="s-verdict", storage=sqlite_url, direction="minimize")
    with pytest.raises(StudyError, match="'s-verdict' has direction minimize"):
        create_companion(create_study("s", sqlite_url), sqlite_url)
