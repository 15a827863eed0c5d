"""Modules and data of `lightning` and of `pytorch_lightning` work alike, and together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning
from searches import load, results, small_recipe
from torch import nn
from trainings import cpu

from optuna_taylorglo import worker
from optuna_taylorglo.process import DONE
from optuna_taylorglo.recipes.class_paths import (
    data_module_class,
    data_module_for,
    imported_lightnings,
)
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.training.training import Training

pytest.importorskip("lightning")

CE = nn.CrossEntropyLoss()
OWN = ("Lightning", "PytorchLightning")
DIGITS = "lightning_modules.data.Digits"


def recipe_file(folder: Path, model: str, data: str, **changes: Any) -> Path:
    return small_recipe(
        folder / f"{model}-{data}.yaml",
        model={"class_path": f"two_lightnings.{model}"},
        data={"class_path": data if "." in data else f"two_lightnings.{data}"},
        **changes,
    )


def training_of(folder: Path, model: str, data: str, **changes: Any) -> Training:
    recipe = load_recipe(recipe_file(folder, model, data, **changes))
    return Training(recipe, cpu(folder, "two_lightnings"))


def test_the_same_module_gives_the_same_search_bit_for_bit(tmp_path: Path) -> None:
    found = {}
    for name in OWN:
        recipe = recipe_file(
            tmp_path, f"{name}Module", f"{name}Data", optimizer=None, search={"popsize": 3}
        )
        url = f"sqlite:///{tmp_path / name}.db"
        create_study("search", url)
        words = ["--study-name", "search", "--storage", url, "--recipe", str(recipe)]
        options = ["--device", "cpu", "--allow", "two_lightnings", "--data-dir", str(tmp_path)]
        assert worker.main([*words, *options]) == DONE
        found[name] = results(load(url, "search"))
    assert len(found["Lightning"]) >= 6
    assert found["Lightning"] == found["PytorchLightning"]
    # They were trained: candidates differ in what they reached.
    assert len({value for _, _, value, _ in found["Lightning"].values()}) > 2


@pytest.mark.parametrize("data", ["LightningData", "PytorchLightningData", DIGITS])
@pytest.mark.parametrize("model", ["LightningModule", "PytorchLightningModule", "PlainNet"])
def test_models_and_data_of_different_ones_work_together(
    tmp_path: Path, model: str, data: str
) -> None:
    training = training_of(tmp_path, model, data)
    modules: list[Any] = []
    value = training.run(CE, seed=3, steps=25, check_at=[5], on_trained=modules.append)
    assert value > 0.5
    if model != "PlainNet":
        assert modules[0].steps_taken == 25
    other = data.replace("PytorchLightning", "Lightning")
    assert value == training_of(tmp_path, model, other).run(CE, seed=3, steps=25, check_at=[5])
    assert training.run(CE, seed=3, steps=25, on_test_set=True) > 0.3


@pytest.mark.parametrize("model", ["LightningModule", "PlainNet"])
@pytest.mark.parametrize("callback", ["LightningCounter", "PytorchLightningCounter"])
def test_callbacks_of_either_are_called(
    tmp_path: Path, model: str, callback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import two_lightnings

    counter = getattr(two_lightnings, callback)
    monkeypatch.setattr(counter, "batches", 0)
    trainer = {"callbacks": [{"class_path": f"two_lightnings.{callback}"}]}
    training_of(tmp_path, model, "LightningData", trainer=trainer).run(CE, seed=0, steps=7)
    assert counter.batches == 7


def test_hooks_that_a_data_module_did_not_write_stay_those_of_the_trainers_lightning() -> None:
    import lightning.pytorch

    written = data_module_class("two_lightnings.PytorchLightningData", ("two_lightnings",))
    adapted = data_module_for(written, lightning.pytorch)
    base = lightning.pytorch.LightningDataModule
    assert issubclass(adapted, written)
    assert issubclass(adapted, base)
    assert adapted.predict_dataloader is base.predict_dataloader
    assert adapted.train_dataloader is written.train_dataloader
    assert adapted(batch_size=7).hparams == {"batch_size": 7}
    assert data_module_for(written, pytorch_lightning) is written


def test_nothing_needs_the_package_lightning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "lightning"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)  # imports of it fail
    assert imported_lightnings() == [pytorch_lightning]
    recipe = load_recipe(small_recipe(tmp_path / "recipe.yaml"))
    assert Training(recipe, cpu(tmp_path)).run(CE, seed=0, steps=2) > 0
