"""The precision of a device is what its processor can do, unless one is named."""

import logging

import pytest
import torch

from optuna_taylorglo.training import runtime
from optuna_taylorglo.training.runtime import resolve_precision


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_bf16": True}, "bf16-mixed"),
        ({"amx_bf16": True}, "bf16-mixed"),
        ({"avx512_f": True, "avx512_bf16": False}, "32-true"),
        ({}, "32-true"),
    ],
)
def test_auto_takes_bfloat16_where_the_cpu_computes_in_it_and_says_so(
    capabilities: dict[str, bool],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    with caplog.at_level(logging.INFO, logger=runtime.__name__):
        assert resolve_precision("auto", "cpu") == expected
    assert expected in caplog.text
    assert resolve_precision("32-true", "cpu") == "32-true"


@pytest.mark.parametrize(("capability", "expected"), [((8, 0), "bf16-mixed"), ((7, 5), "32-true")])
def test_auto_takes_bfloat16_on_gpus_that_have_it(
    capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision("auto", "cuda") == expected


def test_unknown_precisions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"precision.*'float8'"):
        resolve_precision("float8", "cpu")  # type: ignore[arg-type]
