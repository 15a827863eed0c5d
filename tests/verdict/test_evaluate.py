"""The verdict: what is compared, what resumes, what the words say."""

import math
import time

import optuna
import pytest
from drawn_studies import searched_study
from optuna.trial import TrialState
from searches import load, process, small_recipe, wait_until
from verdicts import Recorder

from optuna_taylorglo import cli, worker
from optuna_taylorglo.attributes import KEY
from optuna_taylorglo.losses.canonical import gradient_scale
from optuna_taylorglo.recipes.in_study import settled_recipe
from optuna_taylorglo.verdict.choice import FINAL_MEAN, chosen_loss
from optuna_taylorglo.verdict.compared_losses import ScaledLoss
from optuna_taylorglo.verdict.evaluate import Plan, evaluate


def test_losses_controls_and_budgets(study, recipe):
    do = Recorder(lambda task: 0.9 + task.seed % 97 / 1000)
    against = ("ce", "ce-tuned", "ce-smoothed", "baikal-cma")
    verdict = evaluate(study, recipe, Plan(seeds=3, against=against), do)
    names = [sample.name for sample in verdict.samples]
    assert names[:1] == ["winner"]
    assert names[-2:] == ["winner-normalised", "ce-scaled"]
    assert names[1:-2] == list(against)
    tests = [task for task in do.tasks if task.on_test_set]
    assert len(tests) == 3 * 7
    assert {task.length for task in tests} == {recipe.budget.full}
    # All losses start from the same weights, none of which the search or the tuning has seen.
    seeds = {task.seed for task in tests}
    assert len(seeds) == 3
    assert not seeds & {task.seed for task in do.tasks if not task.on_test_set}
    scaled = next(t.loss for t in tests if t.loss.name == "ce-scaled")
    theta = tests[0].loss.settings["theta"]
    assert theta[2] == 1.0  # the single best trial
    assert verdict.trial == 1
    expected = gradient_scale(theta, 10, class_reduction=recipe.loss.class_reduction)
    assert scaled.scale == pytest.approx(expected)
    normalised = next(t.loss for t in tests if t.loss.name == "winner-normalised")
    assert gradient_scale(
        normalised.settings["theta"], 10, class_reduction=recipe.loss.class_reduction
    ) == pytest.approx(1)
    assert isinstance(scaled.criterion(), ScaledLoss)


def test_tuning_takes_the_best_on_validation_never_on_test(study, recipe):
    def value(task):
        if task.on_test_set:
            return 0.5
        if task.loss.name == "ce-tuned":
            return 1 - abs(math.log(task.loss.learning_rate / (3 * recipe.optimiser.lr)))
        return task.loss.settings["label_smoothing"]

    do = Recorder(value)
    plan = Plan(seeds=2, against=("ce-tuned", "ce-smoothed"))
    verdict = evaluate(study, recipe, plan, do)
    labels = [sample.label for sample in verdict.samples]
    assert f"cross-entropy, learning rate {3 * recipe.optimiser.lr:.3g} (tuned)" in labels
    assert "cross-entropy, label smoothing 0.3 (tuned)" in labels


def test_a_winner_that_is_still_to_be_chosen_is_chosen_first():
    study = searched_study(choice={"candidates": 4}, budget={"evaluation": 100, "full": 1000})
    recipe = settled_recipe(study)

    def value(task):
        if task.loss.label == FINAL_MEAN:
            return 0.9
        return 0.5 + abs(task.loss.settings.get("theta", [0.0])[0]) % 0.1 + task.seed % 97 / 1e6

    do = Recorder(value)
    verdict = evaluate(study, recipe, Plan(seeds=2, against=("ce",)), do)
    assert verdict.trial is None
    assert chosen_loss(study).trial is None
    tested = next(task.loss for task in do.tasks if task.on_test_set)
    assert tested.settings["theta"] == list(chosen_loss(study).loss.theta)
    assert "Rank correlation of evaluations (100 steps) with full trainings (1000" in verdict.text
    # What chose the winner says nothing about it: the test has other seeds.
    seeds = [{t.seed for t in do.tasks if t.on_test_set == test} for test in (True, False)]
    assert not seeds[0] & seeds[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 1}, "seeds must be at least 2"),
        ({"against": ("ce", "vocal")}, "against has 'vocal'; allowed are ce, ce-tuned"),
    ],
)
def test_senseless_plans_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Plan(**settings)


def test_failed_trainings_are_reported_not_dropped(study, recipe):
    do = Recorder(lambda task: None if task.loss.name == "baikal-cma" else 0.9)
    verdict = evaluate(study, recipe, Plan(seeds=3, against=("baikal-cma",)), do)
    baikal = next(sample for sample in verdict.samples if sample.name == "baikal-cma")
    assert (baikal.values, baikal.failed) == ((), 3)
    assert "3 of BaikalCMA" in verdict.text


def test_a_killed_evaluation_resumes_and_trains_nothing_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small_recipe(
        tmp_path / "tiny.yaml",
        budget={"evaluation": 4, "full": 6},
        early_abort=None,
        search={"population": 3, "generations": 1},
    )
    url = f"sqlite:///{tmp_path}/taylorglo.db"
    optuna.create_study(study_name="tiny", storage=url, direction="maximize")
    common = ["--storage", url]
    search = ["--study-name", "tiny", "--recipe", "tiny.yaml", *common]
    assert worker.main(search) == worker.DONE
    words_ = ["evaluate", "tiny", "--seeds", "3", "--against", "ce,ce-tuned"]
    words_ += ["--workers", "1", *common]
    first = process("optuna_taylorglo.cli", *words_, cwd=tmp_path)

    def done():
        try:
            return load(url, "tiny-verdict").get_trials(states=(TrialState.COMPLETE,))
        except KeyError:
            return []

    wait_until(lambda: len(done()) >= 8)
    first.kill()
    first.communicate()
    before = {t.number: t.datetime_complete for t in done()}
    # The orphaned worker goes on, as a worker on another machine would, and nobody minds.
    assert cli.main(words_) == cli.DONE
    trials = load(url, "tiny-verdict").get_trials(states=(TrialState.COMPLETE,))
    keys = [t.user_attrs[KEY] for t in trials]
    assert len(keys) == len(set(keys))
    assert before.items() <= {t.number: t.datetime_complete for t in trials}.items()
    out = capsys.readouterr().out
    assert "evolved loss" in out
    for suffix in ("md", "csv", "json"):
        assert (tmp_path / f"verdict.{suffix}").stat().st_size > 100
    count = len(load(url, "tiny-verdict").trials)
    assert cli.main(words_) == cli.DONE
    assert len(load(url, "tiny-verdict").trials) == count


def verdict_trials(url):
    try:
        return load(url, "tiny-verdict").trials
    except KeyError:
        return []


def test_an_outage_during_a_verdict_loses_nothing(own_postgresql, tmp_path):
    """The server is pulled for 20 seconds while trainings of `evaluate` are claimed."""
    small_recipe(
        tmp_path / "tiny.yaml",
        # Long enough that each worker holds a training when the server goes, and finishes it
        # while it is away.
        budget={"evaluation": 100, "full": 800},
        early_abort=None,
        early_stop=None,
        search={"population": 2, "generations": 1},
    )
    url = own_postgresql.new_database()
    search = process("optuna_taylorglo.cli", "run", "tiny.yaml", cwd=tmp_path, storage=url)
    output, _ = search.communicate()
    assert search.returncode == cli.DONE, output
    words = ("evaluate", "tiny", "--seeds", "2", "--against", "ce")
    verdict = process("optuna_taylorglo.cli", *words, "--workers", "2", cwd=tmp_path, storage=url)

    def two_are_running():
        states = [trial.state for trial in verdict_trials(url)]
        return states.count(TrialState.RUNNING) == 2

    wait_until(two_are_running)
    own_postgresql.stop()
    time.sleep(20)
    own_postgresql.start()
    output, _ = verdict.communicate()
    assert verdict.returncode == cli.DONE, output
    trials = verdict_trials(url)
    # Every training once, none failed, given up or repeated.
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    keys = [trial.user_attrs[KEY] for trial in trials]
    assert len(keys) == len(set(keys)) == 2 * 4
    logs = "".join(path.read_text() for path in tmp_path.glob("taylorglo-logs/tiny-verdict/*"))
    assert "Database unavailable, trying again" in logs
    assert "Traceback" not in logs + output
