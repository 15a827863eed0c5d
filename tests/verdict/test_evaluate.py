"""The verdict: what is compared, and how it ends when trainings crash, are killed or resume."""

import math

import pytest
from drawn_studies import searched_study
from optuna.trial import TrialState
from searches import ROOT, load, process, small_recipe, wait_until
from verdicts import Recorder

from optuna_taylorglo import cli
from optuna_taylorglo.attributes import KEY, SELECTION
from optuna_taylorglo.cli import worker
from optuna_taylorglo.errors import OperationError, UsageError
from optuna_taylorglo.losses.canonical import first_gradient
from optuna_taylorglo.process import BROKEN, DONE
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.report import dashboard
from optuna_taylorglo.seeds import Stage, stage_seed
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.verdict import runner
from optuna_taylorglo.verdict.baselines import LearningRates
from optuna_taylorglo.verdict.compare import evaluate
from optuna_taylorglo.verdict.output import load_verdict
from optuna_taylorglo.verdict.runner import TaskTrainer
from optuna_taylorglo.verdict.selection import FINAL_MEAN, load_selection, selected_loss
from optuna_taylorglo.verdict.statistics import Role


def test_losses_controls_and_budgets(study, recipe):
    run = Recorder(lambda task: 0.9 + task.seed % 97 / 1000)
    against = ("ce", "ce-tuned", "focal", "baikal-cma")
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
    with pytest.raises(UsageError, match="seeds must be at least 2"):
        evaluate(study, recipe, run, seeds=1)
    with pytest.raises(UsageError, match="against has 'vocal'"):
        evaluate(study, recipe, run, against=("ce", "vocal"))


def test_a_rate_that_cannot_be_tuned_is_left_out_and_the_verdict_says_why(study, recipe):
    run = Recorder(lambda task: 0.9 + task.seed % 97 / 1000)
    against = ("ce", "ce-tuned", "label-smoothing", "best-standard")
    obstacle = "that of my.Module cannot be multiplied: no optimizer"
    rates = LearningRates(base=None, obstacle=obstacle)
    verdict = evaluate(study, recipe, run, seeds=2, against=against, rates=rates)
    names = {name for sample in verdict.samples for name in (sample.name, *sample.also)}
    assert {"ce", "label-smoothing", "best-standard"} <= names - {"ce-tuned"} == names
    assert obstacle in verdict.text
    rates_tried = {(t.loss.learning_rate, t.loss.learning_rate_factor) for t in run.tasks}
    assert rates_tried == {(None, None)}


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


def test_losses_that_are_trained_alike_share_a_row(study, recipe, tmp_path):
    """Tuning that kept the recipe's rate, and a file that is the winner's."""
    selected_loss(study).loss.save(tmp_path / "best_loss.json")
    against = ("ce-tuned", "ce", str(tmp_path / "best_loss.json"))

    def value(task):
        rate = task.loss.learning_rate or recipe.optimizer.lr
        return 0.9 - abs(math.log(rate / recipe.optimizer.lr)) + task.seed % 97 / 1e4

    run = Recorder(value)
    verdict = evaluate(study, recipe, run, seeds=3, against=against)
    winner, reference, *controls = verdict.samples
    assert winner.label == f"evolved loss, the same as {tmp_path}/best_loss.json"
    label = f"cross-entropy (learning rate {recipe.optimizer.lr:g}; tuning kept it)"
    assert (reference.label, reference.name, reference.also) == (label, "ce", ("ce-tuned",))
    assert reference.role == Role.REFERENCE
    assert [sample.name for sample in controls] == ["winner-normalized", "ce-scaled"]
    assert len([task for task in run.tasks if task.on_test_set]) == 3 * 4


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
    assert verdict.hardest.name == "ce-tuned"
    assert verdict.lead("ce-tuned").value < -1


SEARCH = ("--study-name", "mine", "--recipe", "mine.yaml")


def new_study(folder, monkeypatch, **changes):
    """The arguments that name the storage of an empty study, with its recipe in the folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests' / 'helpers'}")
    monkeypatch.setattr(runner, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(dashboard, "is_installed", lambda: False)
    settings = {"budget": {"evaluation": 4, "full": 6}, "early_abort": None, "early_stop": None}
    settings["search"] = {"popsize": 2, "n_generations": 1}
    small_recipe(folder / "mine.yaml", **(settings | changes))
    url = f"sqlite:///{folder}/taylorglo.db"
    create_study("mine", url)
    return url, ("--storage", url)


def trials_of_verdict(url, *states):
    try:
        return load(url, "mine-verdict").get_trials(states=states or None)
    except KeyError:
        return []


def test_trainings_that_crash_or_are_refused_decide_nothing(tmp_path, monkeypatch, caplog):
    model = {"class_path": "own_optimizers.Scheduled", "init_args": {}}
    changes = {"optimizer": {"lr": 0.777}, "selection": {"candidates": 2}}  # the rate is ignored
    url, storage = new_study(tmp_path, monkeypatch, model=model, **changes)
    words = [*SEARCH, *storage, "--allow", "own_optimizers"]

    def crash(self, *arguments):
        raise KeyError("a bug of mine")

    with monkeypatch.context() as patch:
        patch.setattr(TaskTrainer, "__call__", crash)
        assert worker.main(words) == BROKEN
    assert "KeyError: 'a bug of mine'" in caplog.text
    assert SELECTION not in load(url, "mine").user_attrs
    # A limit is no decision either; the next worker goes on.
    assert worker.main([*words, "--max-trials", "3"]) == DONE
    assert SELECTION not in load(url, "mine").user_attrs
    assert worker.main(words) == DONE
    assert None not in load_selection(load(url, "mine")).winner.values

    words = ["evaluate", "mine", "--seeds=2", "--against=ce-tuned", "--workers=1", *storage]
    refusal = "model.class_path: 'own_optimizers.Scheduled' lies outside the allowed packages"
    n_trials = len(trials_of_verdict(url))
    caplog.clear()
    assert cli.main(words) == cli.USAGE
    assert refusal in caplog.text
    assert "--allow own_optimizers" in caplog.text
    assert len(trials_of_verdict(url)) == n_trials, "nothing is begun"
    assert not list(tmp_path.glob("*verdict*"))
    # The verdict tells whose optimizer it was.
    assert cli.main([*words, "--allow", "own_optimizers"]) == cli.DONE
    verdict = load_verdict(load(url, "mine-verdict"))
    assert {len(sample.values) for sample in verdict.samples} == {2}
    assert any("learning rate × " in sample.label for sample in verdict.samples)


def test_a_killed_evaluation_resumes_and_trains_nothing_twice(tmp_path, monkeypatch, capsys):
    url, storage = new_study(tmp_path, monkeypatch)
    assert worker.main([*SEARCH, *storage]) == DONE
    words = ["evaluate", "mine", "--seeds=3", "--against=ce", "--workers=1", *storage]
    first = process("optuna_taylorglo.cli", *words, cwd=tmp_path)
    wait_until(lambda: len(trials_of_verdict(url, TrialState.COMPLETE)) >= 5)
    first.kill()
    first.communicate()
    before = {t.number: t.datetime_complete for t in trials_of_verdict(url, TrialState.COMPLETE)}
    # The orphaned worker goes on, as a worker on another machine would.
    assert cli.main(words) == cli.DONE
    trials = trials_of_verdict(url, TrialState.COMPLETE)
    keys = [t.user_attrs[KEY] for t in trials]
    assert len(keys) == len(set(keys))
    assert before.items() <= {t.number: t.datetime_complete for t in trials}.items()
    assert "evolved loss" in capsys.readouterr().out
    for suffix in ("md", "csv", "json"):
        assert (tmp_path / f"mine_verdict.{suffix}").stat().st_size > 100
    count = len(trials_of_verdict(url))
    assert cli.main(words) == cli.DONE
    assert len(trials_of_verdict(url)) == count
