"""The verdict: what is compared, and how it ends when trainings crash, are killed or resume."""

import math
import time

import optuna
import pytest
from drawn_studies import searched_study
from optuna.trial import TrialState
from searches import ROOT, load, process, small_recipe, wait_until
from verdicts import Recorder

from optuna_taylorglo import cli, worker
from optuna_taylorglo.attributes import KEY, SELECTION, VERDICT
from optuna_taylorglo.cli import workers
from optuna_taylorglo.errors import OperationError
from optuna_taylorglo.losses.canonical import first_gradient
from optuna_taylorglo.process import BROKEN, DONE
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.seeds import Stage, stage_seed
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.verdict import families, runner
from optuna_taylorglo.verdict.compare import evaluate
from optuna_taylorglo.verdict.families import LearningRates
from optuna_taylorglo.verdict.output import load_verdict
from optuna_taylorglo.verdict.runner import TaskTrainer
from optuna_taylorglo.verdict.selection import FINAL_MEAN, load_selection, selected_loss
from optuna_taylorglo.verdict.statistics import Role


def test_losses_controls_and_budgets(study, recipe):
    run = Recorder(lambda task: 0.9 + task.seed % 97 / 1000)
    against = ("ce", "ce-tuned", "ce-smoothed", "baikal-cma")
    verdict = evaluate(study, recipe, run, seeds=3, against=against)
    names = [sample.name for sample in verdict.samples]
    assert names == ["winner", *against, "winner-normalized", "ce-scaled"]
    tests = [task for task in run.tasks if task.on_test_set]
    assert len(tests) == 3 * 7
    assert {task.length for task in tests} == {recipe.budget.full}
    # All losses start from the same weights, none of which the search or the tuning has seen.
    seeds = {task.seed for task in tests}
    assert len(seeds) == 3
    assert not seeds & {task.seed for task in run.tasks if not task.on_test_set}
    losses = {task.loss.name: task.loss for task in tests}
    theta = losses["winner"].settings["theta"]
    assert theta[2] == 1.0  # the single best trial
    assert verdict.trial == 1
    reduction = recipe.loss.class_reduction
    expected = first_gradient(theta, 10, class_reduction=reduction)
    assert losses["ce-scaled"].scale == pytest.approx(expected)
    normalized = losses["winner-normalized"].settings["theta"]
    assert first_gradient(normalized, 10, class_reduction=reduction) == pytest.approx(1)


def test_tuning_takes_the_best_on_validation_never_on_test(study, recipe):
    def value(task):
        if task.on_test_set:
            return 0.5 + task.seed % 97 / 1e4
        if task.loss.name == "ce-tuned":
            return 1 - abs(math.log(task.loss.learning_rate / (3 * recipe.optimizer.lr)))
        return task.loss.settings["label_smoothing"]

    verdict = evaluate(study, recipe, Recorder(value), seeds=2, against=("ce-tuned", "ce-smoothed"))
    labels = [sample.label for sample in verdict.samples]
    assert f"cross-entropy, learning rate {3 * recipe.optimizer.lr:.3g} (tuned)" in labels
    assert "cross-entropy, label smoothing 0.3 (tuned)" in labels


def test_a_winner_that_is_still_to_be_selected_is_selected_first():
    study = searched_study(selection={"candidates": 4}, budget={"evaluation": 100, "full": 1000})
    recipe = settled_recipe(study)

    def value(task):
        if task.loss.label == FINAL_MEAN:
            return 0.9
        return 0.5 + abs(task.loss.settings.get("theta", [0.0])[0]) % 0.1 + task.seed % 97 / 1e6

    run = Recorder(value)
    verdict = evaluate(study, recipe, run, seeds=2, against=("ce",))
    assert verdict.trial is selected_loss(study).trial is None
    tested = next(task.loss for task in run.tasks if task.on_test_set)
    assert tested.settings["theta"] == list(selected_loss(study).loss.theta)
    assert "Rank correlation of evaluations (100 steps) with full trainings (1000" in verdict.text
    # The test has other seeds than the selection.
    seeds = [{t.seed for t in run.tasks if t.on_test_set == test} for test in (True, False)]
    assert not seeds[0] & seeds[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 1}, "seeds must be at least 2"),
        ({"against": ("ce", "vocal")}, "against has 'vocal'; allowed are ce, ce-tuned"),
    ],
)
def test_senseless_comparisons_are_refused(study, recipe, settings, message):
    with pytest.raises(ValueError, match=message):
        evaluate(study, recipe, Recorder(lambda task: 0.5), **settings)


def test_trainings_that_diverged_count_as_guessing_or_as_the_worst(study, recipe):
    """Leaving them out would make a loss that mostly diverges look like a good one."""
    seeds = [stage_seed(recipe.search.seed, Stage.TEST, n) for n in range(4)]

    def value(task):
        return None if task.loss.name == "baikal-cma" and task.seed in seeds[1:3] else 0.9

    verdict = evaluate(study, recipe, Recorder(value), seeds=4, against=("baikal-cma",))
    baikal = next(sample for sample in verdict.samples if sample.name == "baikal-cma")
    assert (baikal.diverged, baikal.values) == ((1, 2), (0.9, 0.1, 0.1, 0.9))
    assert "2 of 4 of BaikalCMA" in verdict.text
    assert verdict.divergence == 0.1
    # Guessing is unknown for another metric.
    worst = recipe.changed(fitness=recipe.fitness.changed(metric="val_loss", mode="min"))
    verdict = evaluate(study, worst, Recorder(value), seeds=4, against=("baikal-cma",))
    assert (verdict.divergence, verdict.mode, verdict.test_metric) == (0.9, "min", "test_loss")
    with pytest.raises(OperationError, match="all 8 trainings diverged"):
        evaluate(study, recipe, Recorder(lambda task: None), seeds=2, against=("ce",))


def test_tuning_that_kept_the_recipes_rate_adds_no_row(study, recipe):
    def value(task):
        rate = task.loss.learning_rate or recipe.optimizer.lr
        return 0.9 - abs(math.log(rate / recipe.optimizer.lr)) + task.seed % 97 / 1e4

    run = Recorder(value)
    verdict = evaluate(study, recipe, run, seeds=3, against=("ce-tuned", "ce"))
    _, reference, *controls = verdict.samples
    label = f"cross-entropy (learning rate {recipe.optimizer.lr:g}; tuning kept it)"
    assert (reference.label, reference.name, reference.also) == (label, "ce", ("ce-tuned",))
    assert reference.role == Role.REFERENCE
    assert [sample.role.is_baseline for sample in controls] == [False, False]
    assert len([task for task in run.tasks if task.on_test_set]) == 3 * 4
    assert len(verdict.contrasts) == 3


def test_a_baseline_that_is_the_winner_is_no_row_of_its_own(study, recipe, tmp_path):
    selected_loss(study).loss.save(tmp_path / "best_loss.json")
    against = ("ce", str(tmp_path / "best_loss.json"))
    run = Recorder(lambda task: 0.5 + task.seed % 97 / 1e3)
    verdict = evaluate(study, recipe, run, seeds=2, against=against)
    names = [sample.name for sample in verdict.samples]
    assert names == ["winner", "ce", "winner-normalized", "ce-scaled"]
    assert verdict.samples[0].label == f"evolved loss, the same as {tmp_path}/best_loss.json"


def test_the_best_is_the_smallest_where_smaller_is_better(study, recipe):
    """Tuning, halving and TPE: a loss of 0 at a third of the recipe's rate."""
    best_rate = 0.3 * recipe.optimizer.lr

    def value(task):
        rate = task.loss.learning_rate or recipe.optimizer.lr
        return abs(math.log(rate / best_rate)) + task.seed % 97 / 1e6

    recipe = recipe.changed(
        fitness=recipe.fitness.changed(metric="val_nll", mode="min"),
        search=recipe.search.changed(popsize=8, n_generations=4),
    )
    run = Recorder(value)
    verdict = evaluate(study, recipe, run, seeds=2, against=("ce-tuned", "focal", "best-standard"))
    rates = {task.loss.name: task.loss.learning_rate for task in run.tasks if task.on_test_set}
    assert rates["ce-tuned"] == rates["focal"] == pytest.approx(best_rate)
    assert 0.1 < rates["best-standard"] / best_rate < 10
    assert "not significantly better than any baseline" in verdict.text


SEARCH = ("--study-name", "mine", "--recipe", "mine.yaml", "--allow", "own_optimizers")


@pytest.fixture
def own_study(tmp_path, monkeypatch):
    """Storage of an empty study, and the recipe of a module with its own optimizer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests' / 'helpers'}")
    small_recipe(
        tmp_path / "mine.yaml",
        model={"class_path": "own_optimizers.Scheduled", "init_args": {}},
        optimizer={"lr": 0.777},  # which the module ignores
        budget={"evaluation": 4, "full": 6},
        early_abort=None,
        early_stop=None,
        search={"popsize": 2, "n_generations": 1},
        selection={"candidates": 2},
    )
    url = f"sqlite:///{tmp_path}/taylorglo.db"
    create_study("mine", url)
    return url


def test_a_selection_whose_trainings_crash_is_not_made(own_study, monkeypatch, caplog):
    monkeypatch.setattr(runner, "IDLE_SECONDS", 0.0)
    words = [*SEARCH, "--storage", own_study]

    def crash(self, *arguments):
        raise KeyError("a bug of mine")

    with monkeypatch.context() as patch:
        patch.setattr(TaskTrainer, "__call__", crash)
        assert worker.main(words) == BROKEN
    assert "every evaluation fails with the same exception" in caplog.text
    assert "KeyError: 'a bug of mine'" in caplog.text
    assert SELECTION not in load(own_study, "mine").user_attrs
    # A limit is no decision either; the next worker goes on.
    assert worker.main([*words, "--max-trials", "3"]) == DONE
    assert SELECTION not in load(own_study, "mine").user_attrs
    assert worker.main(words) == DONE
    selection = load_selection(load(own_study, "mine"))
    assert selection is not None
    assert None not in selection.winner.values


def test_a_verdict_whose_trainings_cannot_run_says_why_and_leaves_nothing(
    own_study, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(runner, "IDLE_SECONDS", 0.0)
    assert worker.main([*SEARCH, "--storage", own_study]) == DONE
    words = ["evaluate", "mine", "--seeds", "2", "--against", "ce,ce-tuned", "--workers", "1"]
    words += ["--storage", own_study]
    refusal = "model.class_path: 'own_optimizers.Scheduled' lies outside the allowed packages"
    n_trials = len(load(own_study, "mine-verdict").trials)
    caplog.clear()
    assert cli.main(words) == cli.USAGE
    assert refusal in caplog.text
    assert "--allow own_optimizers" in caplog.text
    assert len(load(own_study, "mine-verdict").trials) == n_trials, "nothing is begun"
    # And if a worker is the first to find out, on a machine of its own:
    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(workers, "dry_run", lambda *args: None)
        patch.setattr(families, "find_learning_rates", lambda *args: LearningRates(None))
        assert cli.main(words) == cli.USAGE
    assert refusal in caplog.text
    assert not list(tmp_path.glob("verdict*"))
    assert VERDICT not in load(own_study, "mine-verdict").user_attrs
    # Verdict and report tell whose optimizer it was.
    assert cli.main([*words, "--allow", "own_optimizers"]) == cli.DONE
    verdict = load_verdict(load(own_study, "mine-verdict"))
    assert verdict is not None
    assert {len(sample.values) for sample in verdict.samples} == {2}
    assert any("learning rate × " in sample.label for sample in verdict.samples)
    assert verdict.loss is not None
    assert (tmp_path / "verdict.csv").is_file()
    assert cli.main(["report", "mine", "--storage", own_study, "-o", "page.html"]) == cli.DONE
    page = (tmp_path / "page.html").read_text()
    assert "The optimizer is the module's own" in page
    assert "learning rate 0.777" not in page


def test_a_killed_evaluation_resumes_and_trains_nothing_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small_recipe(
        tmp_path / "tiny.yaml",
        budget={"evaluation": 4, "full": 6},
        early_abort=None,
        search={"popsize": 3, "n_generations": 1},
    )
    url = f"sqlite:///{tmp_path}/taylorglo.db"
    optuna.create_study(study_name="tiny", storage=url, direction="maximize")
    common = ["--storage", url]
    search = ["--study-name", "tiny", "--recipe", "tiny.yaml", *common]
    assert worker.main(search) == DONE
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
    """The server is pulled for 20 seconds and more while trainings of `evaluate` are claimed."""
    small_recipe(
        tmp_path / "tiny.yaml",
        # Long enough that each worker holds a training when the server goes, and finishes it
        # while it is away.
        budget={"evaluation": 50, "full": 300},
        early_abort=None,
        early_stop=None,
        search={"popsize": 2, "n_generations": 1},
    )
    url = own_postgresql.new_database()
    create_study("tiny", url)
    search = ["--study-name", "tiny", "--storage", url, "--recipe", str(tmp_path / "tiny.yaml")]
    assert worker.main([*search, "--data-dir", str(tmp_path / "data")]) == DONE
    words = ("evaluate", "tiny", "--seeds", "2", "--against", "ce")
    verdict = process("optuna_taylorglo.cli", *words, "--workers", "2", cwd=tmp_path, storage=url)

    def two_are_running():
        states = [trial.state for trial in verdict_trials(url)]
        return states.count(TrialState.RUNNING) == 2

    wait_until(two_are_running)
    own_postgresql.stop()
    logs = tmp_path / "taylorglo-logs" / "tiny-verdict"
    missed = "Storage unavailable, retrying"
    wait_until(lambda: sum(missed in log.read_text() for log in logs.iterdir()) >= 2)
    time.sleep(20)  # in which they try again, in vain, and trainings come to their end
    own_postgresql.start()
    output, _ = verdict.communicate()
    assert verdict.returncode == cli.DONE, output
    trials = verdict_trials(url)
    # Every training once, none failed, given up or repeated.
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    keys = [trial.user_attrs[KEY] for trial in trials]
    assert len(keys) == len(set(keys)) == 2 * 4
    assert "Traceback" not in output + "".join(log.read_text() for log in logs.iterdir())
