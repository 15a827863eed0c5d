"""Accuracy over a plane of weight space around trained networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from optuna_taylorglo.losses.expansion import FloatArray
from optuna_taylorglo.visualization import _style as style

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Data = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]

TITLE = "Accuracy around the trained weights"


def plot_basin(
    models: Mapping[str, nn.Module], data: Data, *, points: int = 21, seed: int = 0
) -> go.Figure:
    """Plot accuracy over a plane of weight space around each of several networks, side by side.

    The plane is ``w + a d₁ + b d₂`` with random directions that have the norms of the network's own
    filters, and are 0 for biases and normalization parameters: otherwise a network with larger
    weights would only look flatter (Li et al., "Visualizing the Loss Landscape of Neural Nets",
    2018). A wide, high basin stands for a robust minimum.

    Args:
        models: Label → network (nn.Module or LightningModule) that maps inputs to logits.
        data: (inputs, labels), or batches of them. Each network sees all of it `points`² times; a
            few hundred examples are enough.
        points: Points along each side of [-1, 1]², at least 2; odd to include the center.
        seed: Seed of the directions, the same for all networks.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

    Raises:
        ValueError: If there are too few points or no data.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo.visualization import plot_basin
        >>> inputs = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> labels = (inputs.sum(dim=1) > 0).long()
        >>> figure = plot_basin({"untrained": torch.nn.Linear(2, 2)}, (inputs, labels), points=3)
        >>> figure.data[0].name
        'untrained'
    """
    if not models:
        return style.nothing_to_plot(TITLE, "there are no models.")
    if points < 2:
        raise ValueError(f"points must be at least 2, not {points!r}.")
    batches = [data] if isinstance(data, tuple) else list(data)
    if not batches:
        raise ValueError("data has no batch in it.")
    steps = np.linspace(-1, 1, points)
    basins = {label: _basin(model, batches, steps, seed) for label, model in models.items()}
    figure = make_subplots(
        cols=len(basins),
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=[
            f"{style.plain(label)}<br>accuracy {center:.4f}"
            for label, (center, _) in basins.items()
        ],
    )
    style.apply(figure, TITLE)
    for column, (label, (_, accuracy)) in enumerate(basins.items(), start=1):
        figure.add_contour(
            x=steps.tolist(),
            y=steps.tolist(),
            z=accuracy.tolist(),
            coloraxis="coloraxis",
            # Continuous: where a plateau lies on a level, steps would draw islands of noise.
            contours={"start": 0, "end": 1, "size": 0.1, "coloring": "heatmap"},
            line={"width": 0.6, "color": "rgba(255,255,255,0.7)"},
            name=style.plain(label),
            hovertemplate="accuracy %{z:.3f} at (%{x:.2f}, %{y:.2f})<extra></extra>",
            row=1,
            col=column,
        )
        figure.update_yaxes(scaleanchor=f"x{column if column > 1 else ''}", row=1, col=column)
    figure.update_xaxes(title_text="direction 1", constrain="domain", showgrid=False)
    figure.update_yaxes(constrain="domain", showgrid=False)
    figure.update_yaxes(title_text="direction 2", row=1, col=1)
    bar = {"title": {"text": "accuracy"}}
    scale = {"colorscale": "Cividis", "cmin": 0, "cmax": 1, "colorbar": bar}
    return figure.update_layout(margin_t=100, coloraxis=scale)


def _basin(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], steps: FloatArray, seed: int
) -> tuple[float, FloatArray]:
    """Accuracy of a network itself, and at (b, a) for each pair of steps, shape (P, P)."""
    import torch
    from torch.func import functional_call

    generator = torch.Generator().manual_seed(seed)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    device = next((w.device for w in weights.values()), torch.device("cpu"))
    batches = [(inputs.to(device), labels.to(device)) for inputs, labels in batches]

    def accuracy(moved: dict[str, Tensor]) -> float:
        correct = [
            (functional_call(model, moved, (inputs,)).argmax(dim=1) == labels).float()
            for inputs, labels in batches
        ]
        return float(torch.cat(correct).mean())

    first, second = ({n: _direction(w, generator) for n, w in weights.items()} for _ in range(2))
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.inference_mode():
            plane = [
                [
                    accuracy({n: w + a * first[n] + b * second[n] for n, w in weights.items()})
                    for a in steps
                ]
                for b in steps
            ]
            return accuracy(weights), np.array(plane)
    finally:
        for module, training in modes.items():
            module.training = training


def _direction(weight: Tensor, generator: torch.Generator) -> Tensor:
    """A random direction with the norms of a weight's own filters, 0 for what has none."""
    import torch

    if weight.ndim < 2:
        return torch.zeros_like(weight)
    draw = torch.randn(weight.shape, generator=generator).to(weight)
    norms, own = (torch.linalg.vector_norm(t.flatten(1), dim=1) for t in (draw, weight))
    direction: Tensor = draw * (own / norms).reshape(-1, *[1] * (weight.ndim - 1))
    return direction
