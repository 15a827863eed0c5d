"""Pictures of the results, from the losses and verdicts in docs/results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import nn

from optuna_taylorglo import load_loss

from .style import BLUE, GREEN, ORANGE, TEXT, WIDTH

RESULTS = Path(__file__).parents[1] / "results"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

N_CLASSES = 10
PROBABILITIES = np.linspace(0.01, 0.99, 99)

TITLES = {
    "mnist_mlp_wrong_labels": "MNIST, 36 % wrong labels",
    "mnist_mlp_confused_labels": "MNIST, 35 % confused",
    "fashion_mnist_mlp_confused_labels": "Fashion-MNIST, 35 % confused",
    "fashion_mnist_mlp_few_images": "Fashion-MNIST, right",
    "digits_mlp": "digits, right",
    "digits_mlp_imbalanced": "digits, rare classes",
}
"""Recipes whose losses are drawn."""

SHOWN = {
    "winner": ("evolved loss", BLUE),
    "best-standard": ("best standard loss", ORANGE),
    "label-smoothing": ("label smoothing, tuned", GREEN),
    "ce-tuned": ("cross-entropy, tuned", TEXT),
    "ce": ("cross-entropy", TEXT),
}


def pictures() -> dict[Path, Callable[[], go.Figure]]:
    """How each picture is drawn, by its file."""
    return {RESULTS / "wrong_labels.svg": draw_front, RESULTS / "shapes.svg": draw_shapes}


def gradient_at_label(loss: nn.Module, probability: np.ndarray) -> np.ndarray:
    """Gradient of a loss at the label's logit, divided by its maximum.

    Args:
        loss: The loss.
        probability: Probability of the label's class, shape (P,); the others share the rest.

    Returns:
        ``-∂L/∂z_t`` over its largest value, shape (P,).
    """
    points = torch.tensor(probability, dtype=torch.float64)
    logits = torch.zeros(len(points), N_CLASSES, dtype=torch.float64)
    logits[:, 0] = torch.log(points * (N_CLASSES - 1) / (1 - points))
    logits.requires_grad_()
    value = loss(logits, torch.zeros(len(points), dtype=torch.long))
    (gradient,) = torch.autograd.grad(value, logits)
    slope = -gradient[:, 0].numpy()
    return np.asarray(slope / slope.max())


def losses_of(recipe: str) -> list[nn.Module]:
    """The evolved losses of a recipe, by seed."""
    files = sorted((RESULTS / "losses").glob(f"{recipe}_seed_*.json"))
    return [load_loss(file) for file in files]


def draw_front() -> go.Figure:
    """The losses of three searches, and their accuracy, in few and large words."""
    recipe = "mnist_mlp_wrong_labels"
    figure = make_subplots(cols=2, column_widths=[0.43, 0.57], horizontal_spacing=0.07)
    _add_gradients(figure, recipe, row=1, col=1)
    figure.update_xaxes(showticklabels=False, ticks="", showgrid=False, row=1, col=1)
    figure.update_yaxes(title="gradient at the label", showticklabels=False, ticks="", row=1, col=1)
    figure.update_yaxes(range=[-0.6, 1.22], showgrid=False, row=1, col=1)
    for text, x, y, anchor, color in (
        ("<b>evolved</b>", 0.6, 1.02, "center", BLUE),
        ("cross-entropy", 0.2, 0.1, "left", TEXT),
        ("unlikely", 0, -0.6, "left", TEXT),
        ("likely", 1, -0.6, "right", TEXT),
    ):
        figure.add_annotation(
            text=text, x=x, y=y, xanchor=anchor, yanchor="bottom" if y > 0 else "top",
            showarrow=False, font={"color": color}, row=1, col=1,
        )  # fmt: skip
    _add_accuracies(figure, recipe)
    titles = "Smaller gradient at<br>unlikely labels", "Test accuracy,<br>36 % of labels wrong"
    for axis, title in zip(figure.select_xaxes(), titles, strict=True):
        figure.add_annotation(
            text=f"<b>{title}</b>", x=axis.domain[0], xref="paper", y=1.02, yref="paper",
            xanchor="left", yanchor="bottom", align="left", showarrow=False, font={"size": 23},
        )  # fmt: skip
    margin = {"l": 40, "r": 12, "t": 80, "b": 36}
    return _styled(figure, font={"size": 20}, width=760, height=430, margin=margin)


def draw_shapes() -> go.Figure:
    """The shapes of the evolved losses, task by task."""
    n_rows = -(-len(TITLES) // 2)
    figure = make_subplots(
        rows=n_rows,
        cols=2,
        subplot_titles=list(TITLES.values()),
        vertical_spacing=0.1,
        horizontal_spacing=0.1,
    )
    for place, recipe in enumerate(TITLES):
        row, col = place // 2 + 1, place % 2 + 1
        _add_gradients(figure, recipe, row=row, col=col)
    figure.update_yaxes(tickvals=[0, 1])
    figure.update_xaxes(title={"text": "probability of the label", "standoff": 5}, row=n_rows)
    figure.update_layout(legend={"orientation": "h", "x": 0, "y": 1.06, "yanchor": "bottom"})
    margin = {"l": 30, "r": 12, "t": 75, "b": 45}
    return _styled(figure, font={"size": 14}, width=WIDTH, height=120 + 190 * n_rows, margin=margin)


def _add_gradients(figure: go.Figure, recipe: str, *, row: int, col: int) -> None:
    """The gradient of cross-entropy, dashed, and of every evolved loss."""
    losses = losses_of(recipe)
    evolved = {"color": BLUE, "width": 2 if len(losses) < 5 else 1.5}
    lines = [("evolved losses", loss, evolved) for loss in losses]
    dashed = {"color": TEXT, "width": 2.5, "dash": "dash"}
    lines.append(("cross-entropy", nn.CrossEntropyLoss(), dashed))
    first = not figure.data
    for name, loss, line in lines:
        named = first and loss in (losses[0], lines[-1][1])
        figure.add_scatter(
            x=PROBABILITIES, y=np.round(gradient_at_label(loss, PROBABILITIES), 3), mode="lines",
            line=line, name=name, showlegend=named, row=row, col=col,
        )  # fmt: skip
    figure.update_xaxes(range=[0, 1], row=row, col=col)
    figure.update_yaxes(range=[-0.62, 1.08], row=row, col=col)


def _add_accuracies(figure: go.Figure, recipe: str) -> None:
    """A row for each loss: its name, mean test accuracy, and a point for each search."""
    sys.path.insert(0, str(BENCHMARKS))
    from results import pool, read_verdicts

    verdicts = read_verdicts(RESULTS / "verdicts")[recipe]
    pooled = {sample.name: sample for sample in pool(verdicts)[0]}
    for place, (name, (label, color)) in enumerate(SHOWN.items()):
        means = [np.mean(s.values) for v in verdicts.values() for s in v.samples if s.name == name]
        figure.add_scatter(
            x=means, y=[-place] * len(means), mode="markers", row=1, col=2,
            marker={"color": color, "size": 13, "opacity": 0.5},
        )  # fmt: skip
        bold = ("<b>", "</b>") if name == "winner" else ("", "")
        for text, x, anchor in (
            (label, 0.6, "left"), (f"{100 * pooled[name].mean:.1f} %", 1, "right")
        ):  # fmt: skip
            figure.add_annotation(
                text=text.join(bold), x=x, y=-place + 0.2, xanchor=anchor, yanchor="bottom",
                showarrow=False, font={"color": color}, row=1, col=2,
            )  # fmt: skip
    ticks = {"tickvals": [0.6, 0.7, 0.8, 0.9, 1], "tickformat": ".0%"}
    figure.update_xaxes(range=[0.6, 1.005], **ticks, row=1, col=2)
    figure.update_yaxes(range=[0.6 - len(SHOWN), 0.8], visible=False, row=1, col=2)
    figure.update_traces(showlegend=False)


def _styled(figure: go.Figure, **layout: object) -> go.Figure:
    return figure.update_layout(template="none", **layout)
