"""The examples: each is checked, and learns its task; one is searched."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml
from optuna.trial import TrialState
from searches import ROOT

from optuna_taylorglo import TaylorLoss
from optuna_taylorglo.cli import main, worker
from optuna_taylorglo.process import DONE
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

pytestmark = pytest.mark.pages

EXAMPLES = ROOT / "docs" / "examples"


class Example(NamedTuple):
    """A recipe of an example, and the test metric that only a network that learns reaches."""

    folder: str
    name: str
    learned: float
    module: str

    @property
    def path(self) -> Path:
        return EXAMPLES / self.folder / f"{self.name}.yaml"


TASKS = {
    task.name: task
    for task in (
        Example("own_model", "breast_cancer_mlp", 0.9, "tabular"),  # most frequent class: 0.63
        Example("own_model", "breast_cancer_lightning", 0.9, "tabular"),
        Example("lightning_module", "adamw_warmup", 0.7, "adamw_warmup"),  # one class: 0.1
        Example("text", "sentiment", 0.8, "sentiment"),
        Example("imbalanced", "rare_faults", 0.5, "rare_faults"),  # "fine" for all: 0.32
        Example("fine_tuning", "fine_tuning", 0.7, "fine_tuning"),
        Example("segmentation", "shapes", 0.5, "shapes"),  # background everywhere: 0.31
    )
}
each_task = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))


@pytest.fixture(scope="module", autouse=True)
def _examples_can_be_imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("examples"))
        for task in TASKS.values():
            patch.syspath_prepend(EXAMPLES / task.folder)
        tuning = importlib.import_module("fine_tuning")
        tuning.pretrain(tuning.CHECKPOINT)
        yield


def test_every_example_is_in_the_readme_and_here() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert folders == {task.folder for task in TASKS.values()}
    readme = (EXAMPLES / "README.md").read_text()
    assert [folder for folder in sorted(folders) if f"]({folder})" not in readme] == []


@each_task
def test_check_finds_nothing_wrong(task: Example, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(task.path), "--allow", task.module, "--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith("OK: the recipe works.\n")


@each_task
def test_the_task_is_learned_as_the_recipe_says(task: Example) -> None:
    runtime = RuntimeConfig(Path("data"), "cpu", allowed_packages=(task.module,))
    training = Training(load_recipe(task.path), runtime)
    settings, budget = training.recipe.loss, training.recipe.budget
    weights = settings.class_weights
    loss = TaylorLoss(
        [0.0] * 8,
        class_reduction="sum",
        base="cross_entropy",
        weight=None if weights is None else torch.tensor(weights),
        ignore_index=settings.ignore_index,
    )
    steps = training.in_steps(budget.full, budget.unit)
    assert training.run(loss, seed=0, steps=steps, on_test_set=True) > task.learned


def test_a_search_of_an_example_comes_to_its_end(tmp_path: Path) -> None:
    task = TASKS["rare_faults"]
    recipe = load_recipe(task.path)
    short = recipe.changed(
        search=recipe.search.changed(popsize=4, n_generations=1),
        budget=recipe.budget.changed(evaluation=1),
        selection=None,
    )
    path = tmp_path / "short.yaml"
    path.write_text(yaml.safe_dump(short.to_dict()))
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = create_study(task.name, url)
    words = ["--study-name", task.name, "--storage", url, "--recipe", str(path), "--device", "cpu"]
    assert worker.main([*words, "--allow", task.module]) == DONE
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * (13 + 8 + 4)
