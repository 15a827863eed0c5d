"""The picture of what TaylorGLO and GLO cost, from the outcomes kept in docs/results/glo."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import plotly.graph_objects as go

from .style import WIDTH

OUTCOMES = Path(__file__).parents[1] / "results" / "glo"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def pictures() -> dict[Path, Callable[[], go.Figure]]:
    """How the picture is drawn, by its file; none without outcomes."""
    return {OUTCOMES.with_suffix(".svg"): draw} if any(OUTCOMES.glob("*.jsonl")) else {}


def draw() -> go.Figure:
    """Evaluations until cross-entropy's quality, and accuracy in the end."""
    sys.path.insert(0, str(BENCHMARKS))
    import glo

    outcomes = [o for file in sorted(OUTCOMES.glob("*.jsonl")) for o in glo.read_file(file)]
    return glo.draw(outcomes).update_layout(width=WIDTH)
