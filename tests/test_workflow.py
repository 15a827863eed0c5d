"""The workflow as functions: what `search` finds, refuses, and shares with other processes."""

from __future__ import annotations

import os
import re
import signal
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import optuna
import own_functions
import pytest
import torch
from optuna.trial import TrialState
from own_functions import EVALUATED, NOISY, X, train, with_adam, without_lr_factor
from searches import descendants_of, load, small_recipe

from optuna_taylorglo import (
    Candidate,
    TaylorGLOSampler,
    cli,
    compare,
    load_loss,
    run_worker,
    search,
    tune_learning_rate,
    visualization,
)
from optuna_taylorglo.attributes import GENERATION, INDEX, LR_FACTOR, STALE
from optuna_taylorglo.errors import OperationError, StorageUnreachable, StudyError, UsageError
from optuna_taylorglo.seeds import Stage, stage_seed
from optuna_taylorglo.verdict.selection import selected_loss

SMALL: dict[str, Any] = {
    "n_classes": 3,
    "n_generations": 2,
    "popsize": 4,
    "settings": {"selection": {"candidates": 1}},
    "progress": False,
}


def outcomes(study: optuna.Study) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Parameters, value and reports of each candidate."""
    return {
        (t.user_attrs[GENERATION], t.user_attrs[INDEX]): (t.params, t.values, t.intermediate_values)
        for t in study.trials
        if t.state == TrialState.COMPLETE
    }


def test_a_function_is_all_it_takes(tmp_path: Path) -> None:
    result = search(train, **SMALL)
    assert len(outcomes(result.study)) == 13 + 8 + 2 * 4, "known losses, then CMA-ES"
    seeds = [stage_seed(0, Stage.SELECTION, number) for number in range(4)]
    values = [train(Candidate(result.best_loss, seed)) for seed in seeds]
    assert result.best_value == pytest.approx(statistics.fmean(values))
    # Reports are those of the function.
    assert result.study.trials[0].intermediate_values == {5: 0.5}
    result.save(tmp_path / "loss.json")
    loss = load_loss(tmp_path / "loss.json")
    assert (loss.n_classes, loss.lr_factor) == (3, None)
    logits = torch.randn(90, 3)
    assert torch.equal(loss(logits, NOISY), result.best_loss(logits, NOISY))
    result.report(tmp_path / "report.html")
    assert "trained by a function in Python" in (tmp_path / "report.html").read_text()
    assert len(visualization.plot_evolution(result.study).data) > 2
    assert str(result).startswith(f"Winner: {selected_loss(result.study).name}\nL = ")
    # Another test function is called, and a broken one before any baseline is tuned.
    for broken, message in ((lambda _: None, "test returned None"), ("test", "must be a function")):
        with pytest.raises(UsageError, match=message):
            result.compare(broken, n_seeds=2)
    with pytest.raises(UsageError, match="neither with the winner nor with cross-entropy"):
        result.compare(lambda candidate: float("nan"), n_seeds=2)
    # Baselines are tuned with the function, at learning rates of its own.
    verdict = result.compare(own_functions.test, n_seeds=2, against=["ce", "ce-tuned"])
    assert [sample.name for sample in verdict.samples][:2] == ["winner", "ce"]
    assert "learning rate ×" in " ".join(sample.label for sample in verdict.samples)
    halved = result.compare(_half_of_the_test_metric, n_seeds=2, against=["ce"])
    assert halved.samples[0].mean == verdict.samples[0].mean / 2


def test_known_losses_alone_are_a_search_that_goes_on_later(sqlite_url: str) -> None:
    there: dict[str, Any] = {"storage": sqlite_url, "study_name": "mine"}
    tuned = search(train, **SMALL | there | {"n_generations": 0})
    assert len(outcomes(tuned.study)) == 13 + 8
    assert "Best known loss: " in str(tuned)
    assert tuned.best_loss.origin is not None
    assert tuned.best_loss.origin.trial is not None
    more = search(train, **SMALL | there)
    assert len(outcomes(more.study)) == 13 + 8 + 2 * 4
    assert outcomes(more.study) == outcomes(search(train, **SMALL).study)


def _half_of_the_test_metric(candidate: Candidate) -> float:
    return own_functions.test(candidate) / 2


def test_a_search_goes_on_where_it_was_interrupted_and_is_not_made_twice(sqlite_url: str) -> None:
    whole = search(train, **SMALL)
    wanted = {"storage": sqlite_url, "study_name": "mine", **SMALL}
    EVALUATED.clear()

    def interrupted(candidate: Candidate) -> float:
        if len(EVALUATED) == 5:
            raise KeyboardInterrupt
        return train(candidate)

    with pytest.raises(KeyboardInterrupt):
        search(interrupted, **wanted)
    assert [t.state for t in load(sqlite_url, "mine").trials][-1] != TrialState.RUNNING
    run_worker(train, storage=sqlite_url, study_name="mine", n_trials=1)
    result = search(train, **wanted)
    assert outcomes(result.study) == outcomes(whole.study)
    assert result.best_loss.settings() == whole.best_loss.settings()
    EVALUATED.clear()
    assert search(train, **wanted).best_value == result.best_value
    assert not EVALUATED


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_killed_workers_change_nothing(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for the logs
    larger = SMALL | {"n_generations": 3, "popsize": 6}
    whole = search(train, **larger)

    def slowly(candidate: Candidate) -> float:  # of a script: sent to the workers by value
        time.sleep(0.2)
        return train(candidate)

    def kill_two() -> None:
        killed: set[int] = set()
        while len(killed) < 2 and not over.wait(0.3):
            for pid in set(descendants_of(os.getpid())) - killed:
                if workers_of(pid) and len(killed) < 2:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                    over.wait(1.0)
        deaths.update(killed)

    def workers_of(pid: int) -> bool:
        study = load(database_url, "mine")
        running = (t.user_attrs.get("taylorglo:worker") for t in study.trials)
        return any(worker and worker["pid"] == pid for worker in running)

    over, deaths = threading.Event(), set[int]()
    killer = threading.Thread(target=kill_two)
    optuna.create_study(study_name="other", storage=database_url)  # makes the tables
    killer.start()
    try:
        result = search(slowly, storage=database_url, study_name="mine", n_workers=2, **larger)
    finally:
        over.set()
        killer.join()
    assert len(deaths) == 2
    assert any(STALE in trial.user_attrs for trial in result.study.trials)
    assert outcomes(result.study) == outcomes(whole.study)
    assert result.best_loss.settings() == whole.best_loss.settings()


def test_where_the_optimizer_undoes_the_scale_the_learning_rate_is_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = []

    def noted(candidate: Candidate) -> float:
        factors.append(candidate.lr_factor)
        return with_adam(candidate)

    result = search(noted, **SMALL | {"progress": True})
    assert "the learning rate is searched in its place" in capsys.readouterr().out
    tried = {t.params["log_scale"] for t in result.study.trials}
    assert len(tried) > 2 * 4, "those of known losses and of CMA-ES"
    assert {round(f, 4) for f in factors} >= {
        round(float(torch.tensor(s, dtype=torch.float64).exp()), 4) for s in tried
    }
    loss = result.best_loss
    assert loss.lr_factor is not None
    assert loss.anchor is not None
    assert loss.anchor.log_scale == 0
    result.save(tmp_path / "loss.json")
    assert load_loss(tmp_path / "loss.json").lr_factor == loss.lr_factor
    assert "acts like a learning rate" not in str(result)
    verdict = result.compare(own_functions.test, n_seeds=2, against=["ce"])
    assert not verdict.scale_acts
    assert "acts as a learning rate" not in verdict.text
    assert "cross-entropy, learning rate × " in " ".join(s.label for s in verdict.samples)


def test_where_nothing_changes_the_pace_it_is_not_searched() -> None:
    result = search(without_lr_factor, **SMALL)
    assert result.study.user_attrs[LR_FACTOR] is False
    assert "log_scale" not in result.study.trials[0].params
    assert result.best_loss.lr_factor == 1.0
    with pytest.raises(
        UsageError, match=r"does not multiply its learning rate by candidate\.lr_factor"
    ):
        tune_learning_rate(without_lr_factor, n_classes=3, progress=False)


def test_the_learning_rate_is_tuned_before_a_search(sqlite_url: str) -> None:
    tuned = tune_learning_rate(
        train, n_classes=3, storage=sqlite_url, study_name="mine", progress=False
    )
    assert sorted(each.rate for each in tuned) == [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
    assert [each.mean for each in tuned] == sorted((each.mean for each in tuned), reverse=True)
    known = tune_learning_rate(train, loss="wrong-labels", n_classes=3, progress=False)
    assert sorted(each.rate for each in known) == [0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    criterion = known[0].loss.criterion()
    assert criterion.theta == load_loss("wrong-labels").theta
    # The search is another study, whose settings are free.
    search(train, storage=sqlite_url, study_name="mine", **SMALL | {"seed": 3})


def _raises(candidate: Candidate) -> float:
    raise LookupError("a bug of mine")


def _gives_one_label_too_many(candidate: Candidate) -> float:
    candidate.loss(torch.nn.Linear(2, 3)(X), NOISY + 1).backward()
    return 0.5


def _is_multi_label(candidate: Candidate) -> float:
    candidate.loss(torch.nn.Linear(2, 3)(X), torch.ones(90, 3)).backward()
    return 0.5


def _forgets_the_loss(candidate: Candidate) -> float:
    torch.nn.functional.cross_entropy(torch.nn.Linear(2, 3)(X), NOISY).backward()
    return 0.5


def _answering(value: Any) -> Any:
    def answer(candidate: Candidate) -> Any:
        train(candidate)
        return value

    return answer


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (_answering(None), UsageError, "train returned None, must return the metric as a number"),
        (_answering(torch.tensor(0.5)), UsageError, r"a Tensor, must .* write \.item\(\)"),
        (_answering("0.5"), UsageError, "train returned a str"),
        (_answering(93.5), UsageError, r"93\.5 as accuracy, which is from 0 to 1"),
        (_answering(float("nan")), UsageError, "no finite number with cross-entropy"),
        (_raises, LookupError, "a bug of mine"),
        (_gives_one_label_too_many, UsageError, "labels that reach from 1 to 3, must be 0 to 2"),
        (_is_multi_label, UsageError, "several labels of one example, and regression"),
        (_forgets_the_loss, UsageError, r"never calls candidate\.loss"),
        (0.5, UsageError, "train is 0.5, must be a function of a candidate, or a recipe"),
    ],
)
def test_a_function_that_cannot_work_is_refused_at_once(
    function: Any, error: type[Exception], message: str, sqlite_url: str
) -> None:
    wanted = {"storage": sqlite_url, "study_name": "mine", **SMALL}
    with pytest.raises(error, match=message):
        search(function, **wanted)
    if callable(function):
        assert not load(sqlite_url, "mine").trials
        # Corrected, it goes on under the same name.
        assert search(train, **wanted).best_value > 0


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_a_function_that_breaks_later_costs_no_result(
    is_in_memory: bool, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = {"storage": sqlite_url, "study_name": "mine", **SMALL}
    EVALUATED.clear()

    def breaks(candidate: Candidate) -> float:
        if len(EVALUATED) >= 7:  # three of them with cross-entropy
            raise LookupError("a bug of mine")
        return train(candidate)

    message = "(?s)3 failed evaluations in a row.*a bug of mine"
    with pytest.raises(OperationError, match=message) as failed:
        search(breaks, **SMALL if is_in_memory else wanted)
    if is_in_memory:  # the error says how to continue
        (advice,) = failed.value.__notes__
        wanted |= dict(re.findall(r"(storage|study_name)='([^']*)'", advice))
    done = outcomes(load(wanted["storage"], wanted["study_name"]))
    assert len(done) == 4
    assert done.items() <= outcomes(search(train, **wanted).study).items()
    # What cannot be saved does not hide the error.
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "taylorglo.log").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    EVALUATED.clear()
    with pytest.raises(OperationError, match=message) as failed:
        search(breaks, **SMALL)
    assert "could not be saved" in failed.value.__notes__[0]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n_classes": None}, UsageError, "n_classes is missing"),
        ({"n_classes": 1}, UsageError, "n_classes: 1 is not allowed"),
        ({"n_workers": 2}, UsageError, "n_workers 2 needs a storage"),
        ({"n_workers": 0}, UsageError, "n_workers is 0"),
        ({"storage": "x.log"}, UsageError, "study_name is missing"),
        ({"storage": 3, "study_name": "a"}, UsageError, "storage is 3, must be a URL"),
        ({"data_dir": "data"}, UsageError, "data_dir: for recipes only"),
        ({"n_worker": 2}, UsageError, "no argument 'n_worker'; did you mean n_workers"),
        ({"direction": "up"}, UsageError, "direction is 'up', must be 'maximize' or 'minimize'"),
        ({"settings": "loss"}, UsageError, "settings is 'loss', must be sections of a recipe"),
        ({"settings": {"budget": {"full": 5}}}, UsageError, "budget: is for recipes"),
        ({"settings": {"loss": {"class_weights": [1, 2]}}}, UsageError, "2 weights, must have one"),
        ({"threads": "2"}, UsageError, "threads is '2'"),
        ({"precision": "fp8"}, UsageError, "precision is 'fp8', must be one of auto"),
        ({"storage": "x.log", "study_name": 3}, UsageError, "study_name is 3, must be text"),
        ({"settings": {"model": {}}}, UsageError, "model: unknown field"),
        ({"metric": "test_accuracy"}, UsageError, "never one of the test set"),
    ],
)
def test_wrong_arguments_are_named(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        search(train, **SMALL | changes)


def test_a_storage_that_is_away_and_a_study_of_another_kind_are_named(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = "postgresql+psycopg://user:secret@127.0.0.1:9/db"
    monkeypatch.setattr("optuna_taylorglo.study.open.PATIENCE", 0.1)
    monkeypatch.setattr("optuna_taylorglo.study.open.open_storage.__kwdefaults__", {"patience": 0})
    with pytest.raises(StorageUnreachable, match=r"user:\*\*\*@127") as refused:
        search(train, storage=away, study_name="mine", **SMALL)
    assert "secret" not in str(refused.value)
    optuna.create_study(study_name="own", storage=sqlite_url).optimize(lambda _: 1.0, n_trials=1)
    with pytest.raises(StudyError, match="not of a TaylorGLO search"):
        search(train, storage=sqlite_url, study_name="own", **SMALL | {"direction": "minimize"})
    search(train, storage=sqlite_url, study_name="mine", **SMALL)
    with pytest.raises(UsageError, match="n_classes: study has 3, not 4"):
        search(train, storage=sqlite_url, study_name="mine", **SMALL | {"n_classes": 4})
    recipe = small_recipe(tmp_path / "tiny.yaml")
    with pytest.raises(StudyError, match="searched with a training function"):
        search(recipe, storage=sqlite_url, study_name="mine", progress=False, device="cpu")


def test_commands_read_such_studies_and_leave_the_trainings_to_python(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, caplog: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTUNA_STORAGE", sqlite_url)
    search(train, storage=sqlite_url, study_name="mine", **SMALL)
    for words in (["status"], ["status", "mine"], ["export", "mine"], ["report", "mine"]):
        assert cli.main(words) == cli.DONE
    assert "4 of 4" in capsys.readouterr().out
    assert load_loss("mine_loss.json").origin.study == "mine"
    for words in (["evaluate", "mine"], ["baseline", "mine"]):
        assert cli.main(words) == cli.USAGE
    assert "searched with a training function in Python" in caplog.text


def test_recipes_are_searched_and_compared_the_same_way(tmp_path: Path, sqlite_url: str) -> None:
    recipe = small_recipe(tmp_path / "tiny.yaml", early_abort=None, early_stop=None)
    machine = {"data_dir": tmp_path, "device": "cpu", "precision": "32-true", "progress": False}
    result = search(recipe, storage=sqlite_url, **machine)
    assert result.study.study_name == "tiny"
    assert len(outcomes(result.study)) == 8
    verdict = compare(result.study, n_seeds=2, against=["ce"], **machine)
    assert verdict.test_metric == "test_accuracy"


def test_losses_are_suggested_in_optunas_own_loop() -> None:
    sampler = TaylorGLOSampler(n_classes=3, popsize=4, seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(
        lambda trial: train(Candidate(sampler.suggest_loss(trial), trial.number)), n_trials=4
    )
    names = ["alpha", "beta", "gamma", "delta", "log_scale", "smoothing"]
    assert list(study.best_params) == names
    assert all(0 <= trial.params["smoothing"] <= 0.9 for trial in study.trials)
    with pytest.raises(ValueError, match="to_loss is missing"):
        TaylorGLOSampler(names=["a"]).suggest_loss(study.ask())
