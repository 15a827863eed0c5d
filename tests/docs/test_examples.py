"""The examples: a network and data of one's own, searched by the real command."""

import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import torch
import yaml
from optuna.trial import TrialState
from torch import Tensor, nn

from optuna_taylorglo import load_loss, worker
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.process import DONE, USAGE
from optuna_taylorglo.recipes.load import Recipe, load_recipe
from optuna_taylorglo.recipes.settings import OptimizerSettings
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

ROOT = Path(__file__).parents[2]
OWN_MODEL = ROOT / "docs" / "examples" / "own_model"
RECIPES = ["breast_cancer_mlp", "breast_cancer_lightning"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for somebody who works in the example's folder."""
    monkeypatch.syspath_prepend(OWN_MODEL)


def recipe_of(name: str) -> Recipe:
    return load_recipe(OWN_MODEL / f"{name}.yaml")


def training_of(name: str) -> Training:
    return Training(recipe_of(name), RuntimeConfig(device="cpu", allowed_packages=("tabular",)))


def write_short_recipe(name: str, folder: Path) -> Path:
    """The recipe, cut to two generations of three."""
    recipe = recipe_of(name)
    short = recipe.search.changed(popsize=3, n_generations=2)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe.changed(search=short).to_dict()))
    return path


def work(name: str, folder: Path, *options: str) -> tuple[int, optuna.Study]:
    """A worker's exit code and its study."""
    url = f"sqlite:///{folder / 'study.db'}"
    study = create_study(name, url)
    recipe = write_short_recipe(name, folder)
    words = ["--study-name", name, "--storage", url, "--recipe", str(recipe), "--device", "cpu"]
    return worker.main([*words, *options]), study


def test_one_command_searches_with_an_own_model(tmp_path: Path) -> None:
    recipe = write_short_recipe("breast_cancer_mlp", tmp_path)
    command = [sys.executable, "-m", "optuna_taylorglo.cli", "run", str(recipe)]
    run = subprocess.run(
        [*command, "--allow", "tabular", "--workers", "1", "--storage", "sqlite:///study.db"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{OWN_MODEL}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    loss = load_loss(tmp_path / "best_loss.json")
    assert (len(loss.theta), loss.n_classes) == (8, 2)


@pytest.mark.usefixtures("_importable")
@pytest.mark.parametrize("name", RECIPES)
def test_a_worker_searches_with_an_own_model(name: str, tmp_path: Path) -> None:
    code, study = work(name, tmp_path, "--allow", "tabular")
    assert code == DONE
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 6
    # 0.63 of the patients have the more frequent diagnosis.
    assert study.best_value > 0.8


@pytest.mark.usefixtures("_importable")
def test_a_module_that_nobody_allowed_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code, study = work("breast_cancer_mlp", tmp_path)
    assert (code, study.trials) == (USAGE, [])
    assert "--allow tabular" in caplog.text


@pytest.mark.usefixtures("_importable")
@pytest.mark.parametrize("name", RECIPES)
def test_an_own_model_learns_with_any_criterion_and_repeats_itself(name: str) -> None:
    training = training_of(name)
    assert (training.n_classes, training.steps_per_pass) == (2, 10)
    seen: list[int] = []
    losses = (nn.CrossEntropyLoss(), TaylorLoss.from_cross_entropy())
    accuracies = [
        training.run(loss, seed=1, steps=45, on_validation=lambda step, _: seen.append(step))
        for loss in losses
    ]
    assert min(accuracies) > 0.9
    assert seen == [45, 45]
    # Its reverse drives the network to the wrong class: it is the candidate's loss that trains.
    reverse = TaylorLoss([-value for value in (0.0, -0.5, 0.0, 0.0, 0.0, 2.0, -4.0, 0.0)])
    assert training.run(reverse, seed=1, steps=45) < 0.5
    assert training.run(losses[1], seed=1, steps=45) == accuracies[1]
    assert training.run(losses[1], seed=1, steps=45, on_test_set=True) > 0.9


@pytest.mark.usefixtures("_importable")
def test_who_optimizes() -> None:
    """A plain net is trained by the recipe's optimizer, a LightningModule by its own."""
    untrained = {}
    tiny = OptimizerSettings(name="sgd", lr=1e-9)
    for name in RECIPES:
        machine = RuntimeConfig(device="cpu", allowed_packages=("tabular",))
        training = Training(recipe_of(name).changed(optimizer=tiny), machine)
        untrained[name] = training.run(nn.CrossEntropyLoss(), seed=0, steps=45) < 0.9
    assert untrained == {"breast_cancer_mlp": True, "breast_cancer_lightning": False}
    assert recipe_of("breast_cancer_lightning").optimizer is None


class Clock(nn.Module):
    """Cross-entropy that notes the training progress it is told, as losses in t are."""

    progress: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("progress", torch.zeros(()))
        self.seen: list[float] = []

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self.seen.append(self.progress.item())
        return nn.functional.cross_entropy(logits, target)


@pytest.mark.usefixtures("_importable")
@pytest.mark.parametrize("name", RECIPES)
def test_a_loss_in_t_is_told_how_far_training_is(name: str) -> None:
    clock = Clock()
    training_of(name).run(clock, seed=0, steps=25)
    assert clock.seen[:25] == pytest.approx([step / 25 for step in range(25)])


@pytest.mark.usefixtures("_importable")
def test_a_metric_that_the_module_does_not_log_is_named() -> None:
    recipe = recipe_of("breast_cancer_lightning")
    fitness = recipe.fitness.changed(metric="val_auc")
    machine = RuntimeConfig(device="cpu", allowed_packages=("tabular",))
    training = Training(recipe.changed(fitness=fitness), machine)
    with pytest.raises(RecipeError, match=r"'val_auc' is not logged by LightningMLP.*val_accuracy"):
        training.run(nn.CrossEntropyLoss(), seed=0, steps=2)
