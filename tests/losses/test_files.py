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

from optuna_taylorglo.errors import LossFileError
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.files import Origin
from optuna_taylorglo.losses.load import load_loss
from optuna_taylorglo.losses.taylor import TaylorLoss

THETA = [0.1, -0.2, 0.3, 0.5, 0.7, 1.1, -1.3, 1.7]
ORIGIN = Origin(
    study="mnist ☕",
    trial=448,
    recipe={"order": 3, "net": {"name": "BasicCNN"}},
    validation_accuracy=0.9903,
)
EXTREME = [5e-324, -5e-324, 1.7976931348623157e308, -0.0, 2.2250738585072014e-308, 0.1, 1 / 3, 1e22]


def bits(values: Any) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """A whole loss file as plain values."""
    TaylorLoss(THETA).save(tmp_path / "whole.json", n_classes=10, origin=ORIGIN)
    loaded: dict[str, Any] = json.loads((tmp_path / "whole.json").read_text("utf-8"))
    return loaded


def load(tmp_path: Path, content: Any) -> TaylorLoss:
    path = tmp_path / "loss.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return load_loss(path)


def test_floats_come_back_bit_for_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 2**64, size=8000, dtype=np.uint64).view(np.float64)
    patterns = patterns[np.isfinite(patterns)]
    batches = [EXTREME, *patterns[: len(patterns) // 8 * 8].reshape(-1, 8)[:300].tolist()]
    for theta in batches:
        with np.errstate(all="ignore"):  # their powers overflow; what is stored is θ
            TaylorLoss(theta).save(tmp_path / "loss.json")
            loaded = load_loss(tmp_path / "loss.json")
        assert bits(loaded.theta) == bits(theta)


def test_every_setting_comes_back(tmp_path: Path) -> None:
    form = Expansion(4, ("t", "y", "x"), True)
    loss = TaylorLoss(
        np.random.default_rng(0).normal(size=form.n_parameters),
        order=4,
        variables=("t", "y", "x"),
        folded=True,
        class_reduction="sum",
        reduction="none",
        weight=torch.tensor([0.1, 2.0, 1 / 3]),
        ignore_index=-7,
        label_smoothing=0.1,
    )
    loss.save(tmp_path / "loss.json", n_classes=3, origin=ORIGIN)
    loaded = load_loss(tmp_path / "loss.json")
    assert loaded.form == form
    assert loaded.theta == loss.theta
    for name in ("class_reduction", "reduction", "ignore_index", "label_smoothing"):
        assert getattr(loaded, name) == getattr(loss, name)
    assert loaded.weight is not None
    assert loaded.weight.dtype == torch.float32
    assert torch.equal(loaded.weight, torch.tensor([0.1, 2.0, 1 / 3]))
    assert loaded.n_classes == 3
    assert loaded.origin == ORIGIN
    logits, target = torch.randn(5, 3), torch.tensor([0, 1, 2, -7, 0])
    loss.progress = loaded.progress = 0.5  # type: ignore[assignment]
    torch.testing.assert_close(loaded(logits, target), loss(logits, target), rtol=0, atol=0)


def test_weights_in_double_come_back_bit_for_bit(tmp_path: Path) -> None:
    weight = torch.tensor([0.1, 1e300, 3.0], dtype=torch.float64)
    TaylorLoss(THETA, weight=weight).save(tmp_path / "loss.json")
    loaded = load_loss(tmp_path / "loss.json")
    assert loaded.weight is not None
    assert torch.equal(loaded.weight, weight)


def test_a_loaded_loss_saves_what_it_remembers(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    TaylorLoss(THETA).save(first, n_classes=10, origin=ORIGIN)
    load_loss(first).save(second)
    assert second.read_bytes() == first.read_bytes()
    load_loss(first).save(second, n_classes=4, origin=Origin(study="other"))
    assert load_loss(second).n_classes == 4
    assert load_loss(second).origin == Origin(study="other")


def test_a_loss_of_unknown_origin(tmp_path: Path) -> None:
    TaylorLoss(THETA).save(str(tmp_path / "loss.json"))
    loaded = load_loss(str(tmp_path / "loss.json"))
    assert loaded.origin is None
    assert loaded.n_classes is None


def test_a_file_is_plain_json_that_says_what_it_is(content: dict[str, Any]) -> None:
    assert content["format"] == "optuna-taylorglo loss"
    assert content["version"] == 1
    assert content["theta"] == THETA
    assert content["origin"]["study"] == "mnist ☕"


def test_whole_numbers_may_lack_a_point(tmp_path: Path, content: dict[str, Any]) -> None:
    content |= {"theta": [1, 2, 3, 4, 5, 6, 7, 10**30], "label_smoothing": 0, "weight": [1, 10**30]}
    loaded = load(tmp_path, content)
    assert loaded.theta == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1e30)
    assert loaded.weight is not None
    assert loaded.weight.tolist()[0] == 1.0


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "loss.json"
    TaylorLoss(THETA).save(path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space left"):
        TaylorLoss([1.0] * 8).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["loss.json"]
    with pytest.raises(OSError, match="no space left"):
        TaylorLoss(THETA).save(tmp_path / "new.json")
    assert os.listdir(tmp_path) == ["loss.json"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "loss.json"
    TaylorLoss(THETA).save(path)
    seen, replace = [], os.replace

    def watched(source: str, destination: Path) -> None:
        seen.append(load_loss(destination).theta)
        seen.append(load_loss(source).theta)
        replace(source, destination)

    monkeypatch.setattr(os, "replace", watched)
    TaylorLoss([1.0] * 8).save(path)
    assert seen == [tuple(THETA), (1.0,) * 8]
    assert load_loss(path).theta == (1.0,) * 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"n_classes": 1},
            "n_classes: 1 is not allowed, must be null or a whole number of at least 2",
        ),
        ({"n_classes": "ten"}, 'n_classes: "ten" is not allowed, must be'),
        ({"n_classes": 10.0}, r"n_classes: 10\.0 is not allowed, must be .* \(write 10\)"),
    ],
)
def test_nothing_is_written_that_could_not_be_read(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(LossFileError, match=message):
        TaylorLoss(THETA).save(tmp_path / "loss.json", **settings)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trial": -1}, "trial: -1 is not allowed, must be null or a whole number of at least 0"),
        ({"validation_accuracy": math.nan}, "validation_accuracy: NaN is not allowed, must be"),
        ({"recipe": {"lr": math.inf}}, "recipe: .*Infinity.* is not allowed, must be"),
        ({"recipe": {1: 2}}, "recipe: .* is not allowed, must be .*1 is no text"),
    ],
)
def test_there_is_no_origin_that_could_not_be_read(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(LossFileError, match=f"^{message}"):
        Origin(**settings)


def test_every_wrong_field_is_named_in_a_line_of_its_own(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    del content["order"]
    content |= {"folded": 1, "tehta": []}
    content["origin"]["trial"] = -1
    with pytest.raises(LossFileError) as error:
        load(tmp_path, content)
    path = tmp_path / "loss.json"
    assert str(error.value).splitlines() == [
        f"{path}: tehta: unknown field, did you mean theta?",
        f"{path}: order: missing, must be a whole number of at least 1",
        f"{path}: folded: 1 is not allowed, must be true or false",
        f"{path}: origin.trial: -1 is not allowed, must be null or a whole number of at least 0",
    ]


@pytest.mark.parametrize("entry", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_not_written(tmp_path: Path, entry: float) -> None:
    with pytest.raises(LossFileError, match=r"weight: .* must be null or a list of finite numbers"):
        TaylorLoss(THETA, weight=torch.tensor([1.0, entry])).save(tmp_path / "loss.json")


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loss.json"
    TaylorLoss([1.0, 2.0, 3.0], order=1).save(path, origin=ORIGIN)
    whole = path.read_bytes()
    # The last bytes are the closing brace and the end of the line, without which it is whole.
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(LossFileError, match=r"loss\.json: not a whole JSON document"):
            load_loss(path)


def test_a_file_with_any_byte_spoiled_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loss.json"
    TaylorLoss([1.0, 2.0, 3.0], order=1).save(path)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + b"\xff" + whole[position + 1 :])
        with pytest.raises(LossFileError, match=r"loss\.json: not a whole JSON document"):
            load_loss(path)


FIELDS = [
    "theta", "order", "variables", "folded", "class_reduction", "reduction", "weight",
    "ignore_index", "label_smoothing", "n_classes", "origin",
]  # fmt: skip


def test_the_fields_above_are_all_of_them(content: dict[str, Any]) -> None:
    assert sorted(content) == sorted([*FIELDS, "format", "version"])


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_named(tmp_path: Path, content: dict[str, Any], field: str) -> None:
    del content[field]
    with pytest.raises(LossFileError, match=rf"loss\.json: {field}: missing, must be \w+"):
        load(tmp_path, content)


WRONG: list[tuple[str, Any]] = [
    *[
        ("theta", v)
        for v in (None, 1.0, "12345678", {}, ["1"] * 8, [True] * 8, [None] * 8, [[1.0]])
    ],
    ("theta", [10**400] + [0] * 7),
    *[("theta", v) for v in ([], THETA[:7], [*THETA, 0.0])],
    *[("order", v) for v in (0, -1, 3.0, "3", None, True, [3])],
    *[("order", v) for v in (2, 4, 10**9)],
    *[("variables", v) for v in (None, "xy", ["x", 1], ["x", "w"], ["x"], [], ["y", "y"], {})],
    *[("folded", v) for v in (None, 0, 1, "true", [])],
    *[("class_reduction", v) for v in (None, "none", "Mean", 1, ["mean"], {})],
    *[("reduction", v) for v in (None, "average", 0, ["mean"])],
    *[("weight", v) for v in (1.0, "1", ["a"], [None], [True], {}, [10**400])],
    *[("ignore_index", v) for v in (None, 1.0, "1", True, [])],
    *[("label_smoothing", v) for v in (None, -0.1, 1.1, "0", True, [], 10**400)],
    *[("n_classes", v) for v in (0, 1, -2, 10.0, "10", True, [])],
    *[("origin", v) for v in ("mnist", 1, [], True)],
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_named(
    tmp_path: Path, content: dict[str, Any], field: str, value: Any
) -> None:
    content[field] = value
    # A wrong order or set of variables shows as a θ of the wrong length; the message has both.
    with pytest.raises(LossFileError, match=rf"loss\.json: .*\b{field}\b"):
        load(tmp_path, content)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("study", v) for v in (1, [], {})],
        *[("trial", v) for v in (-1, 1.0, "1", True)],
        *[("recipe", v) for v in ("text", [], 1)],
        *[("validation_accuracy", v) for v in ("0.9", True, [], 10**400)],
        ("seed", 1),
    ],
)
def test_a_wrong_origin_is_named(
    tmp_path: Path, content: dict[str, Any], field: str, value: Any
) -> None:
    content["origin"][field] = value
    with pytest.raises(LossFileError, match=rf"loss\.json: origin\.{field}: "):
        load(tmp_path, content)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("field", ["theta", "weight", "label_smoothing"])
def test_numbers_that_json_does_not_have(
    tmp_path: Path, content: dict[str, Any], field: str, name: str
) -> None:
    content[field] = "HERE" if field == "label_smoothing" else ["HERE"] * 8
    text = json.dumps(content).replace('"HERE"', name)
    with pytest.raises(LossFileError, match=rf"loss\.json: .*{name} is not a number"):
        load(tmp_path, text)


@pytest.mark.parametrize("field", ["theta", "weight"])
def test_a_number_too_large_for_a_float(
    tmp_path: Path, content: dict[str, Any], field: str
) -> None:
    content[field] = ["HERE"] * 8
    with pytest.raises(LossFileError, match=rf"loss\.json: {field}: .* must be"):
        load(tmp_path, json.dumps(content).replace('"HERE"', "1e999"))


def test_an_unknown_field_is_named(tmp_path: Path, content: dict[str, Any]) -> None:
    content["momentum"] = 0.9
    with pytest.raises(
        LossFileError, match=r"loss\.json: momentum: unknown field, known are theta"
    ):
        load(tmp_path, content)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (4, r"version is 4; this release reads up to 3\. Update"),
        (10**6, "version is 1000000"),
        (0, "version must be a positive integer, not 0"),
        (-1, "version must be"),
        ("1", "version must be"),
        (1.0, "version must be"),
        (True, "version must be"),
        (None, "version must be"),
    ],
)
def test_other_versions(
    tmp_path: Path, content: dict[str, Any], version: Any, message: str
) -> None:
    content["version"] = version
    content["of_the_future"] = True
    with pytest.raises(LossFileError, match=message):
        load(tmp_path, content)


@pytest.mark.parametrize(
    "other", ["null", "[]", "3", '"text"', "{}", '{"format": "other"}', '{"format": ["a"]}']
)
def test_other_documents_are_no_loss_files(tmp_path: Path, other: str) -> None:
    with pytest.raises(LossFileError, match=r"loss\.json: format is not .*: this is no loss file"):
        load(tmp_path, other)


@pytest.mark.parametrize(
    "raw", [b"", b"\x80\x04\x95pickle", b"[" * 100_000, b"\xff\xfe", b"theta: [1]", b"1" * 5000]
)
def test_what_is_no_json_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "loss.json").write_bytes(raw)
    with pytest.raises(LossFileError, match=r"loss\.json: not a whole JSON document"):
        load_loss(tmp_path / "loss.json")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(LossFileError, match=r"nowhere\.json: cannot be read: No such file"):
        load_loss(tmp_path / "nowhere.json")
    with pytest.raises(LossFileError, match="cannot be read"):
        load_loss(tmp_path)
