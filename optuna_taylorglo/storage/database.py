"""Optuna's database storage for many workers: patient, and quick where searches are slow."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Container
from typing import Any

import sqlalchemy
from optuna.distributions import (
    BaseDistribution,
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)
from optuna.storages import RDBStorage

# The tables, whose layout Optuna checks against the database when a storage is opened.
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.orm import Session

from optuna_taylorglo.storage.retry import DEFAULT_OUTAGE_LIMIT, retry_during_outage


class PatientRDBStorage(RDBStorage):
    """An RDBStorage whose every call outlasts an outage of the database.

    A call is repeated as a whole. That is harmless for reads and for writes that set something; a
    repeated ``create_new_trial`` whose first try did reach the database leaves a running trial that
    nobody knows of, which gives no signs of life and is given up in time.

    A trial that is created running is born with a sign of life, in the same transaction: its owner
    may be killed at any moment, and Optuna never gives up a trial without one.
    """

    def __init__(self, url: str, *, patience: float = DEFAULT_OUTAGE_LIMIT, **kwargs: Any) -> None:
        self.patience = patience
        self._compatible: set[tuple[int, str, BaseDistribution]] = set()
        super().__init__(url, **kwargs)

    # Optuna calls this method of RDBStorage for every new trial. It has no public name, but it is
    # the only place where a trial and its first sign of life can be one transaction.
    def _create_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None = None
    ) -> FrozenTrial:
        if (
            template_trial is not None
            and template_trial.state == TrialState.RUNNING
            and template_trial.values is None
            and not template_trial.intermediate_values
        ):
            create = functools.partial(self._create_running_trial, study_id, template_trial)
        else:
            create = functools.partial(super()._create_new_trial, study_id, template_trial)
        return retry_during_outage(create, patience=self.patience)

    def _create_running_trial(self, study_id: int, template: FrozenTrial) -> FrozenTrial:
        """Insert a trial and its parameters at once: 8 statements where Optuna needs 35."""
        with _create_scoped_session(self.scoped_session) as session:
            models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
            self._check_distributions(session, study_id, template)
            row: Any = models.TrialModel(
                study_id=study_id, state=template.state, datetime_start=template.datetime_start
            )
            session.add(row)
            session.flush()
            row.number = row.count_past_trials(session)
            trial_id = row.trial_id
            session.add_all(
                models.TrialParamModel(
                    trial_id=trial_id,
                    param_name=name,
                    param_value=template.distributions[name].to_internal_repr(value),
                    distribution_json=distribution_to_json(template.distributions[name]),
                )
                for name, value in template.params.items()
            )
            for model, attrs in (
                (models.TrialUserAttributeModel, template.user_attrs),
                (models.TrialSystemAttributeModel, template.system_attrs),
            ):
                session.add_all(
                    model(trial_id=trial_id, key=key, value_json=json.dumps(value))
                    for key, value in attrs.items()
                )
            session.add(models.TrialHeartbeatModel(trial_id=trial_id))
            created = copy.deepcopy(template)
            created.number = row.number
            created._trial_id = trial_id
        return created

    # Optuna's cache comes here for trials; this method has no public name either. The first read of
    # a long study makes up most of the time that a worker needs to join it.
    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        if states is None and trial_id_greater_than == -1:
            load = functools.partial(self._load_all_trials, study_id)
        else:
            load = functools.partial(
                super()._get_trials, study_id, states, included_trial_ids, trial_id_greater_than
            )
        return retry_during_outage(load, patience=self.patience)

    def _load_all_trials(self, study_id: int) -> list[FrozenTrial]:
        """Load a whole study from plain rows, without an object for each of them."""
        trial, param, value = models.TrialModel, models.TrialParamModel, models.TrialValueModel
        report = models.TrialIntermediateValueModel
        distribution_of = functools.cache(json_to_distribution)
        with _create_scoped_session(self.scoped_session) as session:
            models.StudyModel.find_or_raise_by_id(study_id, session)

            def rows(model: Any, *columns: Any) -> Any:
                query = sqlalchemy.select(model.trial_id, *columns).join(trial)
                # Parameters have an order: the one in which they were suggested.
                by_age = sqlalchemy.inspect(model).primary_key
                return session.execute(query.where(trial.study_id == study_id).order_by(*by_age))

            trial_rows: Any = (
                session.query(trial).filter(trial.study_id == study_id).order_by(trial.trial_id)
            )
            trials = {
                row.trial_id: FrozenTrial(
                    number=row.number,
                    trial_id=row.trial_id,
                    state=row.state,
                    value=None,
                    datetime_start=row.datetime_start,
                    datetime_complete=row.datetime_complete,
                    params={},
                    distributions={},
                    user_attrs={},
                    system_attrs={},
                    intermediate_values={},
                )
                for row in trial_rows
            }
            # A trial may appear between two queries; its rows are left for the next read.
            seen = functools.partial(filter, lambda row: row[0] in trials)
            for trial_id, name, number, text in seen(
                rows(param, param.param_name, param.param_value, param.distribution_json)
            ):
                distribution = distribution_of(text)
                trials[trial_id].distributions[name] = distribution
                trials[trial_id].params[name] = distribution.to_external_repr(number)
            for trial_id, objective, number, kind in seen(
                rows(value, value.objective, value.value, value.value_type)
            ):
                values = trials[trial_id].values or []
                values += [0.0] * (objective + 1 - len(values))
                values[objective] = value.stored_repr_to_value(number, kind)
                trials[trial_id].values = values
            user, system = models.TrialUserAttributeModel, models.TrialSystemAttributeModel
            for trial_id, key, text in seen(rows(user, user.key, user.value_json)):
                trials[trial_id].user_attrs[key] = json.loads(text)
            for trial_id, key, text in seen(rows(system, system.key, system.value_json)):
                trials[trial_id].system_attrs[key] = json.loads(text)
            for trial_id, step, number, kind in seen(
                rows(report, report.step, report.intermediate_value, report.intermediate_value_type)
            ):
                trials[trial_id].intermediate_values[step] = (
                    report.stored_repr_to_intermediate_value(number, kind)
                )
        return list(trials.values())

    def _check_distributions(self, session: Session, study_id: int, template: FrozenTrial) -> None:
        """Refuse parameters that the study knows with another kind of distribution."""
        for name, distribution in template.distributions.items():
            if (study_id, name, distribution) in self._compatible:
                continue
            known = (
                session.query(models.TrialParamModel.distribution_json)
                .join(models.TrialModel)
                .filter(models.TrialModel.study_id == study_id)
                .filter(models.TrialParamModel.param_name == name)
                .first()
            )
            if known is not None:
                check_distribution_compatibility(json_to_distribution(known[0]), distribution)
            self._compatible.add((study_id, name, distribution))


def _make_patient(name: str) -> None:
    method = getattr(RDBStorage, name)

    @functools.wraps(method)
    def wrapper(self: PatientRDBStorage, *args: Any, **kwargs: Any) -> Any:
        return retry_during_outage(lambda: method(self, *args, **kwargs), patience=self.patience)

    setattr(PatientRDBStorage, name, wrapper)


# What Optuna calls on an RDBStorage; those with an underscore are called by the cache that Optuna
# puts before it.
for _name in (
    "_get_best_trial_id",
    "_get_stale_trial_ids",
    "_set_trial_param",
    "create_new_study",
    "create_new_trial",
    "delete_study",
    "get_all_studies",
    "get_all_trials",
    "get_best_trial",
    "get_study_directions",
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_system_attrs",
    "get_study_user_attrs",
    "get_trial",
    "get_trial_id_from_study_id_trial_number",
    "get_trial_param",
    "get_trial_system_attrs",
    "get_trial_user_attrs",
    "record_heartbeat",
    "set_study_system_attr",
    "set_study_user_attr",
    "set_trial_intermediate_value",
    "set_trial_param",
    "set_trial_state_values",
    "set_trial_system_attr",
    "set_trial_user_attr",
):
    _make_patient(_name)
