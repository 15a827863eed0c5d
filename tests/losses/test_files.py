"""Loss files: they come back exactly, and a wrong one is refused with the reason."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from optuna_taylorglo import TaylorLoss, TreeLoss, load_loss
from optuna_taylorglo.errors import LossFileError
from optuna_taylorglo.losses.files import Origin, library
from optuna_taylorglo.losses.tree import BAIKAL, BAIKAL_CMA_COEFFICIENTS

THETA = [0.1, -0.2, 0.3, 0.5, 0.7, 1.1, -1.3, 1.7]
ORIGIN = Origin(study="mnist ☕", trial=448, recipe={"net": {"a": 3}}, validation_accuracy=0.99)
EXTREME = [5e-324, -5e-324, 1.7976931348623157e308, -0.0, 2.2250738585072014e-308, 0.1, 1 / 3, 1e22]
SETTINGS: dict[str, Any] = {"class_reduction": "sum", "reduction": "none", "ignore_index": -7}


@pytest.fixture
def contents(tmp_path: Path) -> list[dict[str, Any]]:
    """Whole files of a Taylor loss and of a tree as plain values."""
    whole = []
    for loss in (TaylorLoss(THETA), TreeLoss(BAIKAL, BAIKAL_CMA_COEFFICIENTS)):
        loss.save(tmp_path / "whole.json", n_classes=10, origin=ORIGIN)
        whole.append(json.loads((tmp_path / "whole.json").read_text("utf-8")))
    return whole


def load(tmp_path: Path, content: Any) -> Any:
    (tmp_path / "loss.json").write_text(json.dumps(content), "utf-8")
    return load_loss(tmp_path / "loss.json")


def test_floats_come_back_bit_for_bit(tmp_path: Path) -> None:
    patterns = np.random.default_rng(0).integers(0, 2**64, size=400, dtype=np.uint64)
    for theta in [EXTREME, *np.nan_to_num(patterns.view(np.float64)).reshape(-1, 8).tolist()]:
        TaylorLoss(theta).save(tmp_path / "loss.json")
        loaded = load_loss(tmp_path / "loss.json")
        assert struct.pack("<8d", *loaded.theta) == struct.pack("<8d", *theta)


@pytest.mark.parametrize(
    "loss",
    [
        TaylorLoss(THETA, folded=True, label_smoothing=0.1, weight=torch.ones(3) / 3, **SETTINGS),
        TaylorLoss(np.linspace(-2, 2, 23), order=4, variables=("t", "y", "x"), **SETTINGS),
        TaylorLoss(THETA, base="cross_entropy", log_scale=-0.1 / 3, smoothing=0.2 / 3),
        TreeLoss(BAIKAL, EXTREME[2:], weight=torch.ones(3).double() / 3, **SETTINGS),
    ],
)
def test_every_setting_comes_back(tmp_path: Path, loss: TaylorLoss | TreeLoss) -> None:
    path, again = tmp_path / "loss.json", tmp_path / "again.json"
    loss.lr_factor = 0.1 / 3
    loss.save(str(path), n_classes=3, origin=ORIGIN)
    assert json.loads(path.read_text("utf-8")).items() >= loss.settings().items()
    loaded = load_loss(str(path))
    assert (type(loaded), repr(loaded)) == (type(loss), repr(loss))
    for name in ("reduction", "ignore_index"):
        assert getattr(loaded, name) == getattr(loss, name)
    torch.testing.assert_close(loaded.weight, loss.weight, rtol=0, atol=0)
    assert (loaded.n_classes, loaded.origin, loaded.lr_factor) == (3, ORIGIN, 0.1 / 3)
    loaded.save(again)  # it remembers what it was loaded with
    assert again.read_bytes() == path.read_bytes()
    loss.save(again)
    assert (load_loss(again).n_classes, load_loss(again).origin) == (None, None)


@pytest.mark.parametrize("loss", [TaylorLoss(THETA, **SETTINGS), TreeLoss(BAIKAL, **SETTINGS)])
def test_arguments_take_the_place_of_what_the_file_says(
    tmp_path: Path, loss: TaylorLoss | TreeLoss
) -> None:
    path = tmp_path / "loss.json"
    loss.save(path, n_classes=3)
    for weight in ([1, 2, 3], (1.0, 2.0, 3.0), np.array([1.0, 2, 3]), torch.tensor([1.0, 2, 3])):
        loaded = load_loss(path, weight=weight)
        torch.testing.assert_close(loaded.weight, torch.tensor([1.0, 2.0, 3.0]))
        assert loaded.conventions._replace(weight=None) == loss.conventions
    assert load_loss(path, reduction="sum").reduction == "sum"
    assert load_loss(path, ignore_index=0).ignore_index == 0
    assert load_loss(path, n_classes=2, weight=[1.0, 2.0]).n_classes == 2
    for wrong, message in [
        ({"weight": [1.0, 2.0]}, "weight: .* must have 3 values, one for each class"),
        ({"weight": torch.ones(3, 3)}, r"weight\.0: .* must be a number"),
        ({"reduction": "max"}, "reduction: .* must be 'mean', 'sum' or 'none'"),
        ({"ignore_index": 0.5}, "ignore_index: .* must be a whole number"),
        ({"n_classes": 1}, "n_classes: 1 is not allowed, must be greater"),
    ]:
        with pytest.raises(LossFileError, match=message):
            load_loss(path, **wrong)  # type: ignore[arg-type]


def test_nothing_is_written_that_could_not_be_read(tmp_path: Path) -> None:
    unusable = TaylorLoss(THETA, weight=torch.ones(3))
    with pytest.raises(LossFileError, match=r"weight: .* must have 10 values, one for each class"):
        unusable.save(tmp_path / "loss.json", n_classes=10)
    for n_classes in (1, "ten", 10.0):
        with pytest.raises(LossFileError, match=r"n_classes: .* is not allowed, must"):
            TaylorLoss(THETA).save(tmp_path / "loss.json", n_classes=n_classes)  # type: ignore[arg-type]
    with pytest.raises(LossFileError, match=r"weight\.1: .* must be a finite number"):
        TaylorLoss(THETA, weight=torch.tensor([1.0, math.nan])).save(tmp_path / "loss.json")
    assert os.listdir(tmp_path) == []


def test_a_file_truncated_or_spoiled_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loss.json"
    TaylorLoss([1.0, 2.0, 3.0], order=1).save(path)
    whole = path.read_bytes()
    # The last bytes are the closing brace and the end of the line, without which it is whole.
    damaged = [whole[:length] for length in range(0, len(whole) - 1, 5)]
    damaged += [whole[:i] + b"\xff" + whole[i + 1 :] for i in range(0, len(whole), 5)]
    for content in [
        *damaged,
        b'{"theta": [NaN]}',
        b"\x80\x04\x95pickle",
        b"[" * 100_000,
        b"1" * 5000,
    ]:
        path.write_bytes(content)
        with pytest.raises(LossFileError, match=r"loss\.json: not a whole JSON document"):
            load_loss(path)


def test_every_wrong_field_is_named_in_a_line_of_its_own(
    tmp_path: Path, contents: list[dict[str, Any]]
) -> None:
    content, tree = contents
    del content["order"]
    content |= {"folded": 1, "tehta": []}
    content["origin"]["trial"] = -1
    with pytest.raises(LossFileError) as error:
        load(tmp_path, content)
    assert sorted(str(error.value).splitlines()) == [
        f"{tmp_path}/loss.json: {problem}"
        for problem in (
            "folded: 1 is not allowed, must be true or false",
            "order: is missing",
            "origin.trial: -1 is not allowed, must be greater than or equal to 0",
            "tehta: unknown field, did you mean theta?",
        )
    ]
    with pytest.raises(LossFileError, match="theta: unknown field"):
        load(tmp_path, tree | {"theta": THETA})


WRONG: dict[str, list[Any]] = {
    "theta": [None, "12345678", ["1"] * 8, [True] * 8, [10**400] * 8, [1.0] * 7],
    "order": [0, 3.0, "3", True, 2, 10**9],
    "variables": ["xy", ["x", "w"], ["x"], ["y", "y"]],
    "weight": [1.0, [True], [10**400]],
    "ignore_index": [None, 1.0, True],
    "base": [None, "mse"],
    "n_classes": [1, 10.0, "10", True],
    "lr_factor": [0, -0.5, "1", True, 10**400],
    "origin": ["mnist", {"trial": 1.0}, {"recipe": "text"}],
    "coefficients": [None, [1.0], ["1"] * 6, [10**400] * 6],
    "tree": [None, [["log", "y"]], ["exec", "x"]],
    "version": [None, 2],
    "format": [None, ["a"]],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_is_named(tmp_path: Path, contents: list[dict[str, Any]], field: str) -> None:
    for whole in contents:
        for value in WRONG[field] if field in whole else ():
            # A wrong order or set of variables shows as a θ of the wrong length, named too.
            with pytest.raises(LossFileError, match=rf"loss\.json: .*\b{field}\b"):
                load(tmp_path, whole | {field: value})


def test_files_from_before_lr_factor_are_read(
    tmp_path: Path, contents: list[dict[str, Any]]
) -> None:
    for content in contents:
        del content["lr_factor"]
        assert load(tmp_path, content).lr_factor is None


def test_what_is_no_loss_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LossFileError, match=r"loss\.json: format is not"):
        load(tmp_path, [])
    with pytest.raises(LossFileError, match=r"nowhere\.json: cannot be read: No such file"):
        load_loss(tmp_path / "nowhere.json")
    with pytest.raises(LossFileError, match=r"No such file .*; did you mean .*/loss\.json\?"):
        load_loss(tmp_path / "los.json")


def test_losses_of_the_library_are_loaded_by_name_for_any_number_of_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in library():
        loss = load_loss(name)
        assert loss.origin is not None
        assert loss.origin.library is not None
        for n in (2, 10, 100):
            logits = torch.zeros(4, n, dtype=torch.float64, requires_grad=True)
            loss(logits, torch.tensor([0, 1, 1, 0])).backward()
            assert logits.grad is not None
            assert (logits.grad[range(4), [0, 1, 1, 0]] < 0).all()  # it begins to learn
    with pytest.raises(LossFileError, match="did you mean wrong-labels"):
        load_loss("wrong-label")
    # A file of the same name wins, as with recipes.
    TaylorLoss(THETA).save("wrong-labels")
    assert load_loss("wrong-labels").origin is None
