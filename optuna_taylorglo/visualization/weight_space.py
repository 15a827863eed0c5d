"""Accuracy over a plane of weight space around a trained network.

The plane is ``w + a d₁ + b d₂`` for a, b in [-1, 1]. The directions are Gaussian draws in which
each filter (each row of a weight along its first axis) is scaled to the norm of the network's own,
and biases and normalization parameters stay as they are (Li et al., "Visualizing the Loss Landscape
of Neural Nets", 2018): without that a network with larger weights would only look flatter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from optuna_taylorglo.losses.expansion import FloatArray

Data = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
"""Inputs (N, …) with labels (N,), or batches of them."""

_PARTS = 8
_FIRST_LOOK = 2


@dataclass(frozen=True)
class Basin:
    """Accuracy around a network's weights.

    Attributes:
        steps: The places along both axes, shape (P,), from -1 to 1.
        accuracy: Accuracy at (b, a), shape (P, P); rows are steps along the second direction.
        center: Accuracy of the network itself, on all data.
    """

    steps: FloatArray
    accuracy: FloatArray
    center: float


def accuracy_basin(
    model: nn.Module, data: Data, *, points: int = 21, seed: int = 0, tolerance: float = 0.02
) -> Basin:
    """Measure accuracy on a grid of points around a network's weights.

    Accuracy is looked at after a quarter of the data and then after each eighth, and a point is
    done once it is known well enough. By default 1,000 inputs are thus rarely all used: an accuracy
    of one half is done with 625 of them, one of 0.1 or 0.98 with the first 250.

    Args:
        model: Maps inputs to logits (B, classes). Its weights and modes are left as they are.
        data: (inputs, labels), or an iterable of such batches.
        points: Points along each side of the grid, at least 2; odd to include the center.
        seed: Seed of the directions and of the order of the data.
        tolerance: Standard error at which a point is done; 0 for all data at every point.

    Raises:
        ValueError: If an argument is not allowed.
    """
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise ValueError(f"points must be an integer of at least 2, not {points!r}.")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be in [0, 1), not {tolerance!r}.")
    generator = torch.Generator().manual_seed(seed)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    inputs, labels = _tensors(data)
    order = torch.randperm(len(inputs), generator=generator)
    parts = list(
        zip(
            inputs[order].to(device).tensor_split(_PARTS),
            labels[order].to(device).tensor_split(_PARTS),
            strict=True,
        )
    )
    weights = {name: _packed(p.detach()) for name, p in model.named_parameters()}
    first, second = (_directions(weights, generator) for _ in range(2))
    steps = np.linspace(-1, 1, points)
    accuracy = np.empty((points, points))
    with _evaluation_mode(model), torch.inference_mode():
        center = _accuracy(model, weights, parts, tolerance=0.0)
        for row, b in enumerate(steps):
            shifted = {name: torch.add(w, second[name], alpha=b) for name, w in weights.items()}
            for column, a in enumerate(steps):
                moved = {name: torch.add(w, first[name], alpha=a) for name, w in shifted.items()}
                accuracy[row, column] = _accuracy(model, moved, parts, tolerance=tolerance)
    return Basin(steps, accuracy, center)


def _accuracy(
    model: nn.Module,
    weights: dict[str, Tensor],
    parts: list[tuple[Tensor, Tensor]],
    *,
    tolerance: float,
) -> float:
    correct = seen = 0
    for i, (inputs, labels) in enumerate(parts, start=1):
        logits = functional_call(model, weights, (inputs,))
        correct += int((logits.argmax(dim=1) == labels).sum())
        seen += labels.numel()
        # Two more of either outcome (Agresti and Coull), or a perfect start would seem certain.
        share = (correct + 2) / (seen + 4)
        if i >= _FIRST_LOOK and share * (1 - share) / (seen + 4) <= tolerance**2:
            break
    return correct / seen


def _directions(weights: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """A random direction with the norm of the network's own filters, 0 for what has none."""
    directions = {}
    for name, weight in weights.items():
        if weight.ndim < 2:
            directions[name] = torch.zeros_like(weight)
            continue
        draw = torch.randn(weight.shape, generator=generator).to(weight)
        norms, own = (torch.linalg.vector_norm(t.flatten(1), dim=1) for t in (draw, weight))
        scale = (own / norms).reshape(-1, *[1] * (weight.ndim - 1))
        directions[name] = _packed(draw * scale)
    return directions


def _packed(weight: Tensor) -> Tensor:
    """Convolutions take a third less time with the channels last."""
    return weight.contiguous(memory_format=torch.channels_last) if weight.ndim == 4 else weight


def _tensors(data: Data) -> tuple[Tensor, Tensor]:
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Tensor):
        inputs, labels = data
    else:
        batches = list(data)
        if not batches:
            raise ValueError("data has no batch in it.")
        inputs = torch.cat([batch[0] for batch in batches])
        labels = torch.cat([batch[1] for batch in batches])
    if len(inputs) != len(labels) or len(inputs) < _PARTS:
        raise ValueError(
            f"data has {len(inputs)} inputs and {len(labels)} labels; it must have as many of "
            f"each, and at least {_PARTS}."
        )
    return inputs, labels


@contextlib.contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
