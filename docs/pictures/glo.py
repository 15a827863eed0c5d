"""The picture of what TaylorGLO and GLO cost, from the outcomes saved in docs/results/glo."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from optuna_taylorglo.visualization import _style as style

from .style import WIDTH

ROOT = Path(__file__).parents[2]
OUTCOMES = ROOT / "docs" / "results" / "glo"
sys.path.insert(0, str(ROOT / "benchmarks"))

from glo import METHODS, PAPER, Outcome, read_file  # noqa: E402


def pictures() -> dict[Path, Callable[[], go.Figure]]:
    """How the picture is drawn, by its file."""
    return {OUTCOMES.with_suffix(".svg"): draw}


def draw() -> go.Figure:
    """A row for each task: bars of evaluations until the quality, points of accuracy in the end.

    A bar is the median of the seeds that came there, with their range and, if some never did, how
    many did; the paper's evaluations on MNIST stand beside. A point is the end of one search, the
    dashed line the quality.
    """
    outcomes = [o for file in sorted(OUTCOMES.glob("*.jsonl")) for o in read_file(file)]
    tasks = list(dict.fromkeys(o.task for o in outcomes))
    wanted = [statistics.median(o.wanted for o in outcomes if o.task == t) for t in tasks]
    drawn = make_subplots(
        rows=len(tasks), cols=2, shared_yaxes=True, column_widths=[0.64, 0.36],
        horizontal_spacing=0.04, vertical_spacing=0.3 / len(tasks),
        subplot_titles=[
            title for name, quality in zip(tasks, wanted, strict=True) for title in
            (f"<b>{name}</b><br>evaluations until {quality:.3f}", "<br>accuracy in the end")
        ],
    )  # fmt: skip
    style.apply(drawn, "What a quality costs", height=120 + 270 * len(tasks))
    for row, task in enumerate(tasks, start=1):
        here = {m: [o for o in outcomes if (o.task, o.method) == (task, m)] for m in METHODS}
        _add_task(drawn, {m: same for m, same in here.items() if same}, row)
    return drawn.update_layout(
        barmode="group", margin={"t": 100, "l": 10}, legend_y=-0.08, width=WIDTH
    )


def _add_task(drawn: go.Figure, here: dict[str, list[Outcome]], row: int) -> None:
    bar = {"showlegend": row == 1, "orientation": "h", "textposition": "outside"}
    bar |= {"cliponaxis": False, "row": row, "col": 1}
    firsts = {m: [o.reached for o in same] for m, same in here.items()}
    costs = {m: [best.evaluations for best in bests if best] for m, bests in firsts.items()}
    drawn.add_bar(
        y=list(here), x=[statistics.median(v) if v else 1 for v in costs.values()],
        text=[_cost(values, len(here[m])) for m, values in costs.items()],
        name="here", marker={"color": style.BLUE}, **bar,
    )  # fmt: skip
    paper = {m: PAPER[m] for m in here if m in PAPER}
    drawn.add_bar(
        y=list(paper), x=list(paper.values()), text=[f"{n:,}" for n in paper.values()],
        name="the paper's whole search, on MNIST", marker={"color": style.VERMILION}, **bar,
    )  # fmt: skip
    ends = [(method, o.final) for method, same in here.items() for o in same]
    drawn.add_scatter(
        y=[method for method, _ in ends], x=[final for _, final in ends], mode="markers",
        marker={"color": style.BLUE, "size": 10, "opacity": 0.5}, showlegend=False, row=row, col=2,
    )  # fmt: skip
    quality = statistics.median(o.wanted for same in here.values() for o in same)
    drawn.add_vline(x=quality, line={"dash": "dash", "color": style.GRAY}, row=row, col=2)
    # Four decades, and room for the words behind the longest bar.
    drawn.update_xaxes(
        type="log", range=[0, 6.5], tickvals=[1, 10, 100, 1000, 10_000], row=row, col=1
    )
    drawn.update_xaxes(nticks=3, row=row, col=2)
    names = {"categoryorder": "array", "categoryarray": list(here)[::-1]}
    drawn.update_yaxes(range=[-0.5, len(here) - 0.5], showgrid=False, **names, row=row)


def _cost(evaluations: Sequence[int], n_searches: int) -> str:
    """Median, range and how many searches came there."""
    if not evaluations:
        return f"none of {n_searches} came there"
    spread = f" ({min(evaluations):,} to {max(evaluations):,})" if len(evaluations) > 1 else ""
    some = f", {len(evaluations)} of {n_searches}" if len(evaluations) < n_searches else ""
    return f"{statistics.median(evaluations):,.0f}{spread}{some}"
