"""Baselines of a module with its own optimizer: rates are factors, or the verdict says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from searches import load, small_recipe
from trainings import cpu
from verdicts import Recorder

from optuna_taylorglo import cli, worker
from optuna_taylorglo.attributes import OPTIMIZER
from optuna_taylorglo.process import DONE
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.verdict.baselines import GRID_FACTORS, LEARNING_RATE_FACTORS, baseline
from optuna_taylorglo.verdict.compare import Plan, evaluate
from optuna_taylorglo.verdict.families import LearningRates, find_learning_rates
from optuna_taylorglo.verdict.runner import TaskRunner
from optuna_taylorglo.verdict.tasks import Task, cross_entropy

MODULES_OWN = LearningRates(base=None)
STUCK = LearningRates(base=None, obstacle="my.Module cannot be multiplied: it has no optimizer")


def own_recipe(folder: Path, name: str = "Scheduled", **changes: Any) -> Path:
    settings = {"model": {"class_path": f"own_optimizers.{name}"}, "optimizer": None}
    return small_recipe(folder / f"{name}.yaml", **(settings | changes))


def test_the_tuned_rates_of_an_own_module_are_different_trainings(tmp_path: Path) -> None:
    """Six identical ones were called tuned before."""
    recipe = load_recipe(own_recipe(tmp_path))
    runner = TaskRunner(recipe, cpu(tmp_path, "own_optimizers"))
    found: list[tuple[float, ...]] = []

    def do(tasks: list[Task]) -> list[float | None]:
        values: list[float | None] = []
        for task in tasks[::2]:  # of the two seeds one
            values += [runner(task, lambda m: found.append(tuple(m.net[1].bias.tolist())))] * 2
        return values

    best = baseline("ce-tuned", recipe, do, MODULES_OWN)
    assert len(set(found)) == len(found) == len(LEARNING_RATE_FACTORS)
    assert best.label.startswith("cross-entropy, learning rate × ")


def test_rates_are_factors_on_the_modules_own(recipe: Any) -> None:
    recipe = recipe.changed(optimizer=None)
    do = Recorder(lambda task: -abs((task.loss.learning_rate_factor or 1) - 3))
    best = baseline("ce-tuned", recipe, do, MODULES_OWN)
    assert best.label == "cross-entropy, learning rate × 3 (tuned)"
    assert (best.learning_rate, best.learning_rate_factor) == (None, 3.0)
    tried = {task.loss.learning_rate_factor for task in do.tasks}
    assert tried == {None, *LEARNING_RATE_FACTORS} - {1.0}
    do.tasks.clear()
    smoothed = baseline("label-smoothing", recipe, do, MODULES_OWN)
    assert len({task.key for task in do.tasks}) == 4 * len(GRID_FACTORS)
    assert "at learning rate × 3 (best of 20)" in smoothed.label


def test_the_equal_budget_varies_the_modules_own_rate(recipe: Any) -> None:
    recipe = recipe.changed(
        optimizer=None, search=recipe.search.changed(popsize=8, n_generations=4)
    )
    do = Recorder(lambda task: 0.5)
    baseline("best-standard", recipe, do, MODULES_OWN)
    factors = {task.loss.learning_rate_factor for task in do.tasks}
    assert len(factors) > 20
    assert all(0.01 <= factor <= 10 for factor in factors if factor is not None)
    assert {task.loss.learning_rate for task in do.tasks} == {None}


def test_a_factor_is_part_of_what_a_training_is(recipe: Any) -> None:
    keys = {
        Task(cross_entropy(learning_rate_factor=factor), 1, 5, "steps", True).key
        for factor in (None, 0.3, 3.0)
    }
    assert len(keys) == 3


def test_a_rate_that_cannot_be_tuned_is_left_out_and_the_verdict_says_why(
    study: Any, recipe: Any
) -> None:
    do = Recorder(lambda task: 0.9 + task.seed % 97 / 1000)
    plan = Plan(seeds=2, against=("ce", "ce-tuned", "label-smoothing", "best-standard"))
    verdict = evaluate(study, recipe, plan, do, STUCK)
    names = [name for sample in verdict.samples for name in (sample.name, *sample.also)]
    assert "ce-tuned" not in names
    assert {"ce", "label-smoothing", "best-standard"} <= set(names)
    assert "my.Module cannot be multiplied: it has no optimizer" in verdict.text
    assert {task.loss.learning_rate_factor for task in do.tasks} == {None}
    assert {task.loss.learning_rate for task in do.tasks} == {None}
    assert "No learning rate was tuned" not in evaluate(study, recipe, plan, do).text


@pytest.mark.parametrize(
    ("name", "obstacle"),
    [("Scheduled", None), ("WithoutRate", "RatelessOptimizer has no learning rate")],
)
def test_a_module_is_asked_whether_its_rate_can_be_varied(
    tmp_path: Path, name: str, obstacle: str | None
) -> None:
    """Also where the recipe of an earlier version has an optimizer that nobody uses."""
    study, machine = optuna.create_study(), cpu(tmp_path, "own_optimizers")
    recipe = load_recipe(own_recipe(tmp_path, name, optimizer={"lr": 0.1}))
    rates = find_learning_rates(study, recipe, machine)
    assert rates.base is None
    assert (rates.obstacle or "").endswith(obstacle or "")
    assert (rates.obstacle is None) == (obstacle is None)
    assert study.user_attrs[OPTIMIZER] == "module"


def test_plain_nets_keep_the_rates_of_their_recipe(tmp_path: Path, recipe: Any) -> None:
    study = optuna.create_study()
    bundled = find_learning_rates(study, recipe, cpu(tmp_path))
    assert bundled == LearningRates(recipe.optimizer.lr)
    own = recipe.changed(model=recipe.model.changed(class_path="own_nets.DigitsCNN"))
    study.set_user_attr(OPTIMIZER, "recipe")
    assert find_learning_rates(study, own, cpu(tmp_path)) == bundled


def test_a_search_its_verdict_and_its_report_tell_whose_optimizer_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    helpers = Path(__file__).parents[1] / "helpers"
    monkeypatch.setenv("PYTHONPATH", f"{Path(cli.__file__).parents[2]}:{helpers}")
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'study.db'}"
    create_study("own", url)
    recipe = own_recipe(
        tmp_path, optimizer={"lr": 0.777}, search={"popsize": 2, "n_generations": 1}
    )
    machine = ["--data-dir", str(tmp_path), "--device", "cpu", "--allow", "own_optimizers"]
    words = ["--study-name", "own", "--storage", url, "--recipe", str(recipe)]
    assert worker.main([*words, *machine]) == DONE
    assert load(url, "own").user_attrs[OPTIMIZER] == "module"
    options = ["--storage", url, "--workers", "1", "--seeds", "2", "--against", "ce,ce-tuned"]
    assert cli.main(["evaluate", "own", *options, *machine]) == cli.DONE
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert any("learning rate × " in sample["label"] for sample in verdict["samples"])
    assert cli.main(["report", "own", "--storage", url, "-o", "page.html"]) == cli.DONE
    page = (tmp_path / "page.html").read_text()
    assert "with its own optimizer and batches of" in page
    assert "It was found with the optimizer of own_optimizers.Scheduled" in page
    assert "learning rate 0.777" not in page
