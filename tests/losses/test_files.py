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
from optuna_taylorglo.losses.files import Origin
from optuna_taylorglo.losses.tree import BAIKAL, BAIKAL_CMA_COEFFICIENTS

THETA = [0.1, -0.2, 0.3, 0.5, 0.7, 1.1, -1.3, 1.7]
ORIGIN = Origin(
    study="mnist ☕",
    trial=448,
    recipe={"order": 3, "net": {"name": "BasicCNN"}},
    validation_accuracy=0.9903,
)
EXTREME = [5e-324, -5e-324, 1.7976931348623157e308, -0.0, 2.2250738585072014e-308, 0.1, 1 / 3, 1e22]
SETTINGS: dict[str, Any] = {
    "class_reduction": "sum",
    "reduction": "none",
    "ignore_index": -7,
    "label_smoothing": 0.1,
}


def contents(tmp_path: Path, loss: TaylorLoss | TreeLoss) -> dict[str, Any]:
    loss.save(tmp_path / "whole.json", n_classes=10, origin=ORIGIN)
    loaded: dict[str, Any] = json.loads((tmp_path / "whole.json").read_text("utf-8"))
    return loaded


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """A whole file of a Taylor loss as plain values."""
    return contents(tmp_path, TaylorLoss(THETA))


@pytest.fixture
def tree_content(tmp_path: Path) -> dict[str, Any]:
    """A whole file of a tree as plain values."""
    return contents(tmp_path, TreeLoss(BAIKAL, BAIKAL_CMA_COEFFICIENTS))


def load(tmp_path: Path, content: Any) -> Any:
    path = tmp_path / "loss.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return load_loss(path)


def test_floats_come_back_bit_for_bit(tmp_path: Path) -> None:
    patterns = np.random.default_rng(0).integers(0, 2**64, size=400, dtype=np.uint64)
    values = patterns.view(np.float64)
    values = values[np.isfinite(values)]
    for theta in [EXTREME, *values[: len(values) // 8 * 8].reshape(-1, 8).tolist()]:
        TaylorLoss(theta).save(tmp_path / "loss.json")
        loaded = load_loss(tmp_path / "loss.json")
        assert struct.pack("<8d", *loaded.theta) == struct.pack("<8d", *theta)


@pytest.mark.parametrize(
    "loss",
    [
        TaylorLoss(THETA, folded=True, **SETTINGS, weight=torch.tensor([0.1, 2.0, 1 / 3])),
        TaylorLoss(np.linspace(-2, 2, 23), order=4, variables=("t", "y", "x"), **SETTINGS),
        TaylorLoss(THETA, base="cross_entropy", log_scale=-0.1 / 3, smoothing=0.2 / 3),
        TreeLoss(
            BAIKAL, EXTREME[2:], weight=torch.tensor([0.1, 1e300], dtype=torch.float64), **SETTINGS
        ),
    ],
)
def test_every_setting_comes_back(tmp_path: Path, loss: TaylorLoss | TreeLoss) -> None:
    path, again = tmp_path / "loss.json", tmp_path / "again.json"
    loss.save(str(path), n_classes=3, origin=ORIGIN)
    assert json.loads(path.read_text("utf-8")).items() >= loss.settings().items()
    loaded = load_loss(str(path))
    assert (type(loaded), repr(loaded)) == (type(loss), repr(loss))
    for name in ("reduction", "ignore_index"):
        assert getattr(loaded, name) == getattr(loss, name)
    torch.testing.assert_close(loaded.weight, loss.weight, rtol=0, atol=0)
    assert (loaded.n_classes, loaded.origin) == (3, ORIGIN)
    loaded.save(again)  # it remembers what it was loaded with
    assert again.read_bytes() == path.read_bytes()
    loaded.save(again, n_classes=4, origin=Origin(study="other"))
    assert (load_loss(again).n_classes, load_loss(again).origin) == (4, Origin(study="other"))
    loss.save(again)
    assert (load_loss(again).n_classes, load_loss(again).origin) == (None, None)


def test_nothing_is_written_that_could_not_be_read(tmp_path: Path) -> None:
    for n_classes in (1, "ten", 10.0):
        with pytest.raises(LossFileError, match=r"n_classes: .* is not allowed, must"):
            TaylorLoss(THETA).save(tmp_path / "loss.json", n_classes=n_classes)  # type: ignore[arg-type]
    with pytest.raises(LossFileError, match=r"weight\.1: .* must be a finite number"):
        TaylorLoss(THETA, weight=torch.tensor([1.0, math.nan])).save(tmp_path / "loss.json")
    assert os.listdir(tmp_path) == []


def test_every_wrong_field_is_named_in_a_line_of_its_own(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    del content["order"]
    content |= {"folded": 1, "tehta": [], "momentum": 0.9}
    content["origin"]["trial"] = -1
    with pytest.raises(LossFileError) as error:
        load(tmp_path, content)
    path = tmp_path / "loss.json"
    assert sorted(line.partition(", known are")[0] for line in str(error.value).splitlines()) == [
        f"{path}: folded: 1 is not allowed, must be true or false",
        f"{path}: momentum: unknown field",
        f"{path}: order: is missing",
        f"{path}: origin.trial: -1 is not allowed, must be greater than or equal to 0",
        f"{path}: tehta: unknown field, did you mean theta?",
    ]


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


def test_a_missing_field_is_named(
    tmp_path: Path, content: dict[str, Any], tree_content: dict[str, Any]
) -> None:
    optional = {"format", "version", "base", "log_scale", "smoothing", "tree"}
    for whole in (content, tree_content):
        for field in whole.keys() - optional:
            with pytest.raises(LossFileError, match=rf"loss\.json: {field}: is missing"):
                load(tmp_path, {name: whole[name] for name in whole.keys() - {field}})
    with pytest.raises(LossFileError, match="theta: unknown field"):
        load(tmp_path, tree_content | {"theta": THETA})


WRONG: dict[str, list[Any]] = {
    "theta": [None, 1.0, "12345678", ["1"] * 8, [True] * 8, [10**400] * 8, [1.0] * 7],
    "order": [0, 3.0, "3", True, 2, 10**9],
    "variables": [None, "xy", ["x", "w"], ["x"], ["y", "y"]],
    "folded": [None, 1, "true"],
    "class_reduction": [None, "none", ["mean"]],
    "reduction": ["average", 0],
    "weight": [1.0, ["a"], [True], [10**400]],
    "ignore_index": [None, 1.0, True],
    "label_smoothing": [None, -0.1, 1.1, "0", True],
    "base": [None, "mse"],
    "n_classes": [1, 10.0, "10", True],
    "origin": ["mnist", []],
    "coefficients": [None, [1.0], ["1"] * 6, [10**400] * 6],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_is_named(
    tmp_path: Path, content: dict[str, Any], tree_content: dict[str, Any], field: str
) -> None:
    for whole in (content, tree_content):
        for value in WRONG[field] if field in whole else ():
            # A wrong order or set of variables shows as a θ of the wrong length, named too.
            with pytest.raises(LossFileError, match=rf"loss\.json: .*\b{field}\b"):
                load(tmp_path, whole | {field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tree": None}, "tree: null is not allowed, must be a list"),
        ({"tree": [["log", "y"]]}, "tree.*: .*must be text"),
        ({"tree": ["exec", "x"]}, "tree: .* must be a tree in prefix form: 'exec' is no operator"),
        ({"origin": {"trial": 1.0}}, r"origin\.trial: "),
        ({"origin": {"recipe": "text"}}, r"origin\.recipe: "),
        ({"origin": {"validation_accuracy": 10**400}}, r"origin\.validation_accuracy: "),
        ({"version": 2, "of_the_future": True}, "version is 2; this release .* reads 1"),
        ({"version": None}, "version is None; this release"),
        ({"format": ["a"]}, "format is not .*: this is no loss file"),
    ],
)
def test_other_contents_are_refused(
    tmp_path: Path, tree_content: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LossFileError, match=rf"loss\.json: {message}"):
        load(tmp_path, tree_content | changes)
    with pytest.raises(LossFileError, match=r"loss\.json: format is not"):
        load(tmp_path, [])
    with pytest.raises(LossFileError, match=r"nowhere\.json: cannot be read: No such file"):
        load_loss(tmp_path / "nowhere.json")
