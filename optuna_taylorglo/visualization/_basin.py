"""The surroundings of trained networks in weight space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from optuna_taylorglo.visualization import _style as style

if TYPE_CHECKING:
    from torch import nn

    from optuna_taylorglo.visualization.weight_space import Basin, Data

TITLE = "Accuracy around the trained weights"


def _get_basin_info(
    models: Mapping[str, nn.Module], data: Data, *, points: int, seed: int, tolerance: float
) -> dict[str, Basin]:
    from optuna_taylorglo.visualization.weight_space import accuracy_basin

    return {
        label: accuracy_basin(model, data, points=points, seed=seed, tolerance=tolerance)
        for label, model in models.items()
    }


def plot_basin(
    models: Mapping[str, nn.Module],
    data: Data,
    *,
    points: int = 21,
    seed: int = 0,
    tolerance: float = 0.02,
) -> go.Figure:
    """Plot accuracy over a plane of weight space around each of several networks, side by side.

    The plane is spanned by two random directions with the norms of the network's own filters, so
    that planes of different networks can be compared (Li et al., "Visualizing the Loss Landscape of
    Neural Nets", 2018). A wide, high basin stands for a robust minimum.

    Args:
        models: Label → network (nn.Module or LightningModule) that maps inputs to logits.
        data: (inputs, labels), or a loader of such batches.
        points: Points along each side of [-1, 1]².
        seed: Seed of the directions, the same for all networks.
        tolerance: Standard error of accuracy at which a point is done; 0 for all data at every
            point, which takes two to three times as long.

    Returns:
        The figure; empty, with a warning, if there is nothing to plot.

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
    basins = _get_basin_info(models, data, points=points, seed=seed, tolerance=tolerance)
    figure = make_subplots(
        cols=len(basins),
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=[
            f"{style.plain(label)}<br>accuracy {basin.center:.4f}"
            for label, basin in basins.items()
        ],
    )
    style.apply(figure, TITLE)
    style.titles_to_the_left(figure)
    figure.update_annotations(align="left")
    for column, (label, basin) in enumerate(basins.items(), start=1):
        figure.add_contour(
            x=style.short(basin.steps, 4),
            y=style.short(basin.steps, 4),
            z=[style.short(row, 4) for row in basin.accuracy.tolist()],
            coloraxis="coloraxis",
            # Continuous: where a plateau lies on a level, steps would draw islands of noise.
            contours={"start": 0, "end": 1, "size": 0.1, "coloring": "heatmap"},
            line={"width": 0.6, "color": "rgba(255,255,255,0.7)"},
            name=style.plain(label),
            hovertemplate="accuracy %{z:.3f} at (%{x:.2f}, %{y:.2f})<extra></extra>",
            row=1,
            col=column,
        )
        figure.add_scatter(
            x=[0],
            y=[0],
            mode="markers",
            marker={
                "symbol": "cross-thin",
                "size": 11,
                "line": {"width": 2, "color": style.VERMILION},
            },
            hovertemplate=f"the trained weights: {basin.center:.4f}<extra></extra>",
            row=1,
            col=column,
        )
        figure.update_xaxes(title_text="direction 1", range=[-1, 1], row=1, col=column)
        figure.update_yaxes(
            range=[-1, 1], scaleanchor=f"x{column if column > 1 else ''}", row=1, col=column
        )
    figure.update_xaxes(constrain="domain", showgrid=False)
    figure.update_yaxes(constrain="domain", showgrid=False)
    figure.update_yaxes(title_text="direction 2", row=1, col=1)
    return figure.update_layout(
        showlegend=False,
        margin={"t": 90},
        coloraxis={
            "colorscale": "Cividis",
            "cmin": 0,
            "cmax": 1,
            "colorbar": {
                "title": {"text": "accuracy", "side": "right"},
                "thickness": 14,
                "outlinewidth": 0,
            },
        },
    )
