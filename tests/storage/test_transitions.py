"""Changes of trials in a database agree with what Optuna reads from it."""

from __future__ import annotations

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.storage.open_storage import open_storage
from optuna_taylorglo.storage.optuna_private import new_trial, study_id_of, trial_id_of
from optuna_taylorglo.storage.transitions import Marks, add_waiting, glance, look_and_take, take


@pytest.fixture(params=["sqlite_url", "postgresql_url", "mariadb_url"])
def study(request: pytest.FixtureRequest) -> optuna.Study:
    url = request.getfixturevalue(request.param)
    return optuna.create_study(study_name="a", storage=open_storage(url))


def waiting(number: int) -> FrozenTrial:
    return create_trial(
        state=TrialState.WAITING,
        # Not in the order of the alphabet, and one that float32 would change.
        params={"theta_b": 0.1 + number, "theta_a": -1e-300, "n": 3, "kind": "x"},
        distributions={
            "theta_b": FloatDistribution(-1, 100),
            "theta_a": FloatDistribution(-1, 1),
            "n": IntDistribution(1, 9),
            "kind": CategoricalDistribution(["y", "x"]),
        },
        user_attrs={"ready": number, "nested": {"a": [1, None, "ü"]}},
        system_attrs={"fixed_params": {"theta_a": 0.5}},
    )


def test_a_trial_that_is_taken_is_the_one_that_optuna_reads(study: optuna.Study) -> None:
    storage, study_id = study._storage, study_id_of(study)
    ids = add_waiting(storage, study_id, [waiting(0), waiting(1), waiting(2)], 0)
    by_query = look_and_take(storage, study_id, "look", Marks("ready"), {"worker": {"pid": 1}})[1]
    by_id = take(storage, ids[2], {"worker": {"pid": 2}})
    for taken, number in ((by_query, 0), (by_id, 2)):
        assert taken is not None
        stored = storage.get_trial(ids[number])
        # MariaDB keeps whole seconds.
        assert abs((taken.datetime_start - stored.datetime_start).total_seconds()) < 1
        taken.datetime_start = stored.datetime_start
        assert taken == stored
        assert list(taken.params) == list(stored.params)
        assert taken.number == number
        assert trial_id_of(taken) == ids[number]
        assert taken.user_attrs["worker"] == {"pid": number or 1}
    assert take(storage, ids[2], {}) is None


def test_work_goes_on_with_what_was_read(study: optuna.Study) -> None:
    storage, study_id = study._storage, study_id_of(study)
    add_waiting(storage, study_id, [waiting(0)], 0)
    taken = look_and_take(storage, study_id, "look", Marks("ready"), {})[1]
    assert taken is not None
    trial = new_trial(study, taken)
    assert trial.params == waiting(0).params
    trial.set_user_attr("more", 1)
    trial.report(0.5, 1)
    assert trial.suggest_float("new", 0, 1) == trial.params["new"]
    study.tell(trial, 0.25)
    (stored,) = study.trials
    assert stored.state == TrialState.COMPLETE
    assert stored.intermediate_values == {1: 0.5}
    assert stored.user_attrs["more"] == 1
    assert set(stored.params) == {*waiting(0).params, "new"}


def test_a_glance(study: optuna.Study) -> None:
    storage, study_id = study._storage, study_id_of(study)
    assert glance(storage, study_id, "look") == ({}, None)
    add_waiting(storage, study_id, [waiting(0), waiting(1)], 0)
    assert glance(storage, study_id, "look") == ({TrialState.WAITING: 2}, None)
    study.set_user_attr("look", [3, 1])
    look_and_take(storage, study_id, "look", Marks("ready"), {})
    expected = {TrialState.WAITING: 1, TrialState.RUNNING: 1}
    assert glance(storage, study_id, "look") == (expected, [3, 1])
    # Whoever has something else to do first takes nothing, and is told the same.
    seen, taken = look_and_take(storage, study_id, "look", Marks("ready"), {}, lambda counts: True)
    assert (seen, taken) == ((expected, [3, 1]), None)
