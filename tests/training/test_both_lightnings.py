"""Modules and data of `lightning` and of `pytorch_lightning` work alike, and together."""

import sys
from pathlib import Path

import pytest
import pytorch_lightning
from torch import nn
from trainings import digits_training

from optuna_taylorglo.recipes.load import (
    data_module_class,
    data_module_for,
    imported_lightnings,
)

lightning = pytest.importorskip("lightning.pytorch")

CE = nn.CrossEntropyLoss()
OWN = ("two_lightnings.LightningModule", "two_lightnings.PytorchLightningModule")


def test_models_and_data_of_different_ones_train_alike_bit_for_bit(tmp_path: Path) -> None:
    found: dict[str, set[float]] = {}
    for model in (*OWN, "two_lightnings.PlainNet"):
        for data in ("LightningData", "PytorchLightningData"):
            section = {"class_path": f"two_lightnings.{data}"}
            training = digits_training(tmp_path, model, data=section)
            value = training.run(CE, seed=3, steps=25, check_at=[5])
            test_value = training.run(CE, seed=3, steps=25, on_test_set=True)
            found.setdefault(model[-9:], set()).add(value + test_value)
            assert min(value, test_value) > 0.3
    assert [len(values) for values in found.values()] == [1, 1]


@pytest.mark.parametrize("model", [*OWN, "two_lightnings.PlainNet"])
@pytest.mark.parametrize("callback", ["LightningCounter", "PytorchLightningCounter"])
def test_callbacks_of_either_are_called_and_bundled_data_train_either(
    tmp_path: Path, model: str, callback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import two_lightnings

    counter = getattr(two_lightnings, callback)
    monkeypatch.setattr(counter, "batches", 0)
    trainer = {"callbacks": [{"class_path": f"two_lightnings.{callback}"}]}
    # A batch of bundled data is several steps of a plain net.
    data = {} if model in OWN else {"class_path": "two_lightnings.LightningData"}
    digits_training(tmp_path, model, data=data, trainer=trainer).run(CE, seed=0, steps=7)
    assert counter.batches == 7


def test_hooks_that_a_data_module_did_not_write_stay_those_of_the_trainers_lightning() -> None:
    written = data_module_class("two_lightnings.PytorchLightningData", ("two_lightnings",))
    adapted = data_module_for(written, lightning)
    base = lightning.LightningDataModule
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
    assert digits_training(tmp_path).run(CE, seed=0, steps=2) > 0
