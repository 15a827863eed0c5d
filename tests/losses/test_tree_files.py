"""Files of trees: they come back exactly, and a wrong one is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from optuna_taylorglo import TaylorLoss, TreeLoss, load_loss
from optuna_taylorglo.errors import LossFileError
from optuna_taylorglo.losses.files import Origin
from optuna_taylorglo.losses.tree import BAIKAL, BAIKAL_CMA_COEFFICIENTS, MAX_DEPTH, MAX_SIZE

ORIGIN = Origin(study="glo ☕", trial=11_120, validation_accuracy=0.9947)


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """A whole file as plain values."""
    TreeLoss(BAIKAL, BAIKAL_CMA_COEFFICIENTS).save(tmp_path / "whole.json", n_classes=10)
    loaded: dict[str, Any] = json.loads((tmp_path / "whole.json").read_text("utf-8"))
    return loaded


def load(tmp_path: Path, content: Any) -> Any:
    path = tmp_path / "loss.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return load_loss(path)


def test_every_setting_comes_back(tmp_path: Path) -> None:
    path, again = tmp_path / "loss.json", tmp_path / "again.json"
    loss = TreeLoss(
        BAIKAL,
        [1 / 3, 5e-324, 1e22, -0.0, 0.1, 1.7976931348623157e308],
        class_reduction="sum",
        reduction="none",
        weight=torch.tensor([0.1, 2.0, 1 / 3]),
        ignore_index=-7,
        label_smoothing=0.1,
    )
    loss.save(path, n_classes=3, origin=ORIGIN)
    loaded = load_loss(path)
    assert isinstance(loaded, TreeLoss)
    assert (loaded.tree, loaded.coefficients) == (loss.tree, loss.coefficients)
    for name in ("class_reduction", "reduction", "ignore_index", "label_smoothing"):
        assert getattr(loaded, name) == getattr(loss, name)
    assert loaded.weight is not None
    assert torch.equal(loaded.weight, torch.tensor([0.1, 2.0, 1 / 3]))
    assert (loaded.n_classes, loaded.origin) == (3, ORIGIN)
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_a_file_is_plain_json_that_says_what_it_is(content: dict[str, Any]) -> None:
    assert content["format"] == "optuna-taylorglo loss"
    assert content["version"] == 3
    assert content["tree"] == ["-", "log", "y", "/", "x", "y"]
    assert content["coefficients"] == list(BAIKAL_CMA_COEFFICIENTS)


def test_taylor_losses_are_written_as_before(tmp_path: Path) -> None:
    """The versions that earlier releases read."""
    for settings, version in (({}, 1), ({"base": "cross_entropy"}, 2)):
        TaylorLoss([0.0] * 8, **settings).save(tmp_path / "loss.json")
        written = json.loads((tmp_path / "loss.json").read_text())
        assert written["version"] == version
        assert list(written)[2:6] == ["theta", "order", "variables", "folded"]
        assert isinstance(load_loss(tmp_path / "loss.json"), TaylorLoss)


NO_TREE: list[tuple[Any, str]] = [
    (None, "null is not allowed, must be a tree in prefix form"),
    ("- log y / x y", "must be a tree in prefix form"),
    ([], "the tree is empty"),
    ([["log", "y"]], "must be a tree in prefix form"),
    (["+", "x"], "the tree lacks 1 operand at its end"),
    (["x", "y"], "the tree ends before entry 1 of 2"),
    (["exec", "x"], "'exec' is no operator; known are x, y, 1, -1"),
    (["sqrt"] * (MAX_DEPTH + 1) + ["y"], f"the tree is deeper than {MAX_DEPTH}"),
    (["+", "x"] * 200 + ["y"], f"the tree has 401 nodes, more than {MAX_SIZE}"),
]


@pytest.mark.parametrize(("tree", "message"), NO_TREE, ids=[message for _, message in NO_TREE])
def test_a_wrong_tree_is_refused_with_the_reason(
    tmp_path: Path, content: dict[str, Any], tree: Any, message: str
) -> None:
    content["tree"] = tree
    with pytest.raises(LossFileError, match=rf"loss\.json: tree: .*{message}"):
        load(tmp_path, content)


def test_a_hostile_file_is_refused_and_no_crash(tmp_path: Path, content: dict[str, Any]) -> None:
    content["tree"] = "HERE"
    text = json.dumps(content)
    nested = "[" * 100_000 + "]" * 100_000
    with pytest.raises(LossFileError, match="not a whole JSON document"):
        load(tmp_path, text.replace('"HERE"', nested))
    with pytest.raises(LossFileError, match="the tree has 300000 nodes"):
        load(tmp_path, text.replace('"HERE"', json.dumps(["log"] * 300_000)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("coefficients", v) for v in (None, 1.0, [1.0], ["1"] * 6, [True] * 6, [10**400] * 6)],
        *[("class_reduction", v) for v in (None, "none", 1)],
        *[("reduction", v) for v in (None, "average")],
        *[("weight", v) for v in (1.0, ["a"])],
        *[("label_smoothing", v) for v in (None, 1.1)],
        *[("n_classes", v) for v in (1, 10.0)],
        ("ignore_index", 0.5),
        ("origin", "mnist"),
    ],
)
def test_a_wrong_value_is_named(
    tmp_path: Path, content: dict[str, Any], field: str, value: Any
) -> None:
    content[field] = value
    with pytest.raises(LossFileError, match=rf"loss\.json: .*\b{field}\b"):
        load(tmp_path, content)


def test_a_field_that_lacks_or_is_of_another_loss_is_named(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    for field in content.keys() - {"format", "version"}:
        without = {name: value for name, value in content.items() if name != field}
        with pytest.raises(LossFileError, match=rf"loss\.json: {field}: missing"):
            load(tmp_path, without)
    with pytest.raises(LossFileError, match="theta: unknown field"):
        load(tmp_path, content | {"theta": [0.0] * 8})
    with pytest.raises(LossFileError, match="tree: unknown field"):
        load(tmp_path, content | {"version": 2})
