"""Draw the figures of README and docs from the results that lie beside them.

    pip install -e '.[docs]' && python docs/figures.py

Needs a Chromium or Chrome, which kaleido drives. Colours and grey text are readable on light and
dark pages; the background is transparent.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import nn

from optuna_taylorglo import load_loss

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "results"
sys.path.insert(0, str(DOCS.parent / "benchmarks"))

N_CLASSES = 10
GREY, BLUE, ORANGE, GREEN = "#8a8f98", "#3b82c4", "#e07b28", "#3f9d5a"

TITLES = {
    "digits_mlp_wrong_labels": "digits, 36 % wrong labels",
    "digits_mlp_confused_labels": "digits, 35 % confused labels",
    "mnist_mlp_wrong_labels": "MNIST, 36 % wrong labels",
    "mnist_mlp_confused_labels": "MNIST, 35 % confused labels",
    "fashion_mnist_mlp_wrong_labels": "Fashion-MNIST, 36 % wrong labels",
    "fashion_mnist_mlp_confused_labels": "Fashion-MNIST, 35 % confused labels",
    "fashion_mnist_mlp_few_images": "Fashion-MNIST, few images",
    "digits_mlp_imbalanced": "digits, rare classes",
    "digits_mlp": "digits, clean",
}
"""The recipes that have results, in the order of the page."""

SHOWN = {
    "winner": ("evolved loss", BLUE),
    "best-standard": ("best standard loss, same budget", ORANGE),
    "label-smoothing": ("label smoothing, tuned", GREEN),
    "ce-tuned": ("cross-entropy, tuned", GREY),
    "ce": ("cross-entropy", GREY),
}


def pull(loss: nn.Module, probability: np.ndarray) -> np.ndarray:
    """How hard a loss pulls at the target, beside cross-entropy, relative to the start.

    Args:
        loss: The loss.
        probability: Of the target's class, shape (P,); the others share the rest evenly.

    Returns:
        ``-∂L/∂z_t`` over cross-entropy's, divided by its value at the uniform prediction; NaN where
        the loss pulls the prediction back.
    """
    points = torch.tensor([1 / N_CLASSES, *probability], dtype=torch.float64)
    logits = torch.zeros(len(points), N_CLASSES, dtype=torch.float64)
    logits[:, 0] = torch.log(points * (N_CLASSES - 1) / (1 - points))
    logits.requires_grad_()
    target = torch.zeros(len(points), dtype=torch.long)
    slopes = []
    for criterion in (loss, nn.CrossEntropyLoss()):
        (gradient,) = torch.autograd.grad(criterion(logits, target), logits)
        slopes.append(gradient[:, 0].numpy())
    ratio = slopes[0] / slopes[1]
    relative = np.asarray(ratio[1:] / ratio[0])
    # Where it pulls back, a logarithmic axis has no place for it.
    return np.where(relative > 0, relative, np.nan)


def losses_of(recipe: str) -> list[nn.Module]:
    """The losses that the searches of a recipe found, by seed."""
    files = sorted((RESULTS / "losses").glob(f"{recipe}_seed_*.json"))
    return [load_loss(file) for file in files]


def draw_front() -> go.Figure:
    """What the loss of the first command does, and what it is worth."""
    from results import pool, read_verdicts

    recipe = "digits_mlp_wrong_labels"
    figure = make_subplots(
        cols=2,
        column_widths=[0.45, 0.55],
        horizontal_spacing=0.3,
        subplot_titles=["how hard the loss pulls, beside cross-entropy", "test accuracy"],
    )
    y = np.linspace(0.01, 0.99, 99)
    for number, loss in enumerate(losses_of(recipe)):
        figure.add_scatter(
            x=y, y=pull(loss, y), line={"color": BLUE, "width": 3 if number == 0 else 1},
            opacity=1 if number == 0 else 0.35, row=1, col=1,
        )  # fmt: skip
    figure.add_scatter(
        x=y, y=np.ones_like(y), line={"color": GREY, "dash": "dash", "width": 2}, row=1, col=1
    )
    figure.update_xaxes(title="predicted probability of the label", row=1, col=1)
    figure.update_yaxes(type="log", dtick=1, row=1, col=1)
    verdicts = read_verdicts(RESULTS / "verdicts")[recipe]
    pooled, _ = pool(verdicts)
    by_name = {sample.name: sample for sample in pooled}
    for name, (label, colour) in reversed(SHOWN.items()):
        sample = by_name[name]
        means = [np.mean(s.values) for v in verdicts.values() for s in v.samples if s.name == name]
        figure.add_scatter(
            x=means, y=[label] * len(means), mode="markers", row=1, col=2,
            marker={"color": colour, "size": 9, "opacity": 0.45},
        )  # fmt: skip
        figure.add_scatter(
            x=[sample.mean], y=[label], mode="markers+text", text=[f"{sample.mean:.3f}"],
            textposition="top center", cliponaxis=False, row=1, col=2,
            marker={"symbol": "line-ns", "size": 13, "line": {"width": 3, "color": colour}},
        )  # fmt: skip
    return _styled(figure, width=900, height=340)


def draw_shapes() -> go.Figure:
    """The shapes that were found, task by task."""
    found = {recipe: losses for recipe in TITLES if (losses := losses_of(recipe))}
    n_rows = -(-len(found) // 3)
    figure = make_subplots(
        rows=n_rows,
        cols=3,
        subplot_titles=[TITLES[recipe] for recipe in found],
        shared_xaxes=True,
        vertical_spacing=0.11,
        horizontal_spacing=0.07,
    )
    y = np.linspace(0.01, 0.99, 99)
    for place, losses in enumerate(found.values()):
        row, col = place // 3 + 1, place % 3 + 1
        figure.add_scatter(
            x=y, y=np.ones_like(y), line={"color": GREY, "dash": "dash"}, row=row, col=col
        )
        for loss in losses:
            figure.add_scatter(
                x=y, y=pull(loss, y), line={"color": BLUE, "width": 2},
                opacity=0.7, row=row, col=col,
            )  # fmt: skip
    figure.update_yaxes(type="log", dtick=1, range=[-1.3, 1.3])
    figure.update_xaxes(title="predicted probability of the label", row=n_rows)
    return _styled(figure, width=900, height=60 + 220 * n_rows)


def _styled(figure: go.Figure, *, width: int, height: int) -> go.Figure:
    figure.update_annotations(font={"color": GREY, "size": 14})
    axis = {"gridcolor": "rgba(138,143,152,0.25)", "zeroline": False, "linecolor": GREY}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY, "family": "sans-serif", "size": 12},
        showlegend=False,
        width=width,
        height=height,
        margin={"l": 45, "r": 20, "t": 40, "b": 60},
    )


def main() -> None:
    """Write every figure, and say how large it is."""
    for name, draw in {"wrong_labels": draw_front, "shapes": draw_shapes}.items():
        file = RESULTS / f"{name}.svg"
        draw().write_image(file)
        print(json.dumps({"file": str(file.relative_to(DOCS)), "bytes": file.stat().st_size}))


if __name__ == "__main__":
    main()
