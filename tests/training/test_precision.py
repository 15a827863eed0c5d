import logging
import os
import signal
from collections.abc import Iterator

import pytest
import torch

from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.training import runtime
from optuna_taylorglo.training.runtime import Precision, resolve_precision


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """By which signal an attempt at bfloat16 ends; as long as it is empty, attempts succeed."""
    signals: list[int] = []

    def train(self: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        if signals:
            os.kill(os.getpid(), signals[0])
        return torch.zeros(1, requires_grad=True)

    monkeypatch.setattr(torch.nn.Sequential, "forward", train)
    runtime.crashes_in_bfloat16.cache_clear()
    yield signals
    runtime.crashes_in_bfloat16.cache_clear()


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
    attempts: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    with caplog.at_level(logging.INFO, logger=runtime.__name__):
        assert resolve_precision("auto", "cpu") == Precision(expected, channels_last=True)
    assert expected in caplog.text


@pytest.mark.parametrize(("capability", "expected"), [((8, 0), "bf16-mixed"), ((7, 5), "32-true")])
def test_auto_takes_bfloat16_on_gpus_that_have_it(
    capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision("auto", "cuda").trainer == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied here")
@pytest.mark.parametrize("how", [signal.SIGILL, signal.SIGKILL], ids=["SIGILL", "SIGKILL"])
def test_a_cpu_that_announces_bfloat16_and_crashes_in_it_trains_in_float32(
    how: signal.Signals,
    attempts: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    attempts.append(how)
    with caplog.at_level(logging.INFO, logger=runtime.__name__):
        assert resolve_precision("auto", "cpu").trainer == "32-true"
    assert "announces bfloat16" in caplog.text
    with pytest.raises(UsageError, match=r"'bf16-mixed'.*32-true"):
        resolve_precision("bf16-mixed", "cpu")
    # Of the copy that crashed nobody hears: no traceback of Python's, no second run of the tests.
    assert capfd.readouterr() == ("", "")


def test_a_named_precision_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = {"avx512_bf16": True, "amx_bf16": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: everything, raising=False)
    assert resolve_precision("32-true", "cpu").trainer == "32-true"
    assert not resolve_precision("32-true", "mps").channels_last


def test_unknown_precisions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"precision.*'float8'"):
        resolve_precision("float8", "cpu")  # type: ignore[arg-type]
