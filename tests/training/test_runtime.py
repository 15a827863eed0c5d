"""The precision of a device is what its processor can do, unless one is named."""

import logging
from typing import Any

import pytest
import torch

from optuna_taylorglo.training import runtime
from optuna_taylorglo.training.runtime import RuntimeConfig


@pytest.mark.parametrize(
    ("device", "found", "expected"),
    [
        ("cpu", {"avx512_bf16": True}, "bf16-mixed"),
        ("cpu", {"amx_bf16": True}, "bf16-mixed"),
        ("cpu", {"avx512_f": True, "avx512_bf16": False}, "32-true"),
        ("cuda", (8, 0), "bf16-mixed"),
        ("cuda", (7, 5), "32-true"),
        ("mps", None, "32-true"),
    ],
)
def test_auto_takes_bfloat16_where_the_processor_computes_in_it_and_says_so(
    device: str,
    found: Any,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: device == "mps")
    with caplog.at_level(logging.INFO, logger=runtime.__name__):
        assert RuntimeConfig().torch_device.type == device
        assert RuntimeConfig().resolved_precision == expected
    assert f"precision {expected}: this {device}" in caplog.text
    assert RuntimeConfig(precision="16-mixed").resolved_precision == "16-mixed"
