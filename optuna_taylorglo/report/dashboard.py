"""What the Optuna dashboard shows of a search beyond its own pages: figures, notes, artifacts."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from optuna.study import Study
from optuna.trial import Trial

from optuna_taylorglo.attributes import DRAWN
from optuna_taylorglo.evolution.candidates import make_sampler
from optuna_taylorglo.evolution.history import SearchHistory, read_history, trial_loss
from optuna_taylorglo.evolution.sampler import TaylorGLOSampler
from optuna_taylorglo.recipes.presets import STANDARD_NAMES
from optuna_taylorglo.recipes.schema import FunctionRecipe, Recipe
from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.text import counted
from optuna_taylorglo.verdict.output import (
    about_another,
    evaluation_advice,
    headline,
    load_verdict,
)
from optuna_taylorglo.verdict.selection import Selection, load_selection, selected_loss
from optuna_taylorglo.verdict.statistics import Verdict
from optuna_taylorglo.verdict.sweep import load_sweeps

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from pytorch_lightning import LightningModule

    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

ARTIFACT_DIR = Path("taylorglo-artifacts")
"""Where artifacts lie, relative to the working directory."""

DRAWING_SHARE = 0.02
"""Share of its time that a worker spends on the dashboard's figures, at most."""

CELL_HEIGHT = 450
"""Pixels that the dashboard leaves for a figure; it cuts off what is below."""

MOST_BASELINES = 4
"""The hardest ones, which the dashboard's figure compares; the report's has all."""

FIGURES = (
    *("comparison", "learning-curves", "evolution", "loss-functions", "search-state"),
    *("sweep-fraction", "sweep-label_noise", "sweep-length"),
)
"""Names of the dashboard's figures, in its order."""

FEWEST_TO_SETTLE = 4
"""Generations that a search has at least when it is said that it had not settled."""

logger = logging.getLogger(__name__)


def is_installed() -> bool:
    """Whether optuna-dashboard is installed (extra ``dashboard``)."""
    return importlib.util.find_spec("optuna_dashboard") is not None


class DashboardRefresher:
    """Shows finished generations, as `completed` counts them, for a small share of the time."""

    def __init__(self, study: Study, completed: Callable[[], int]) -> None:
        self._study, self._completed = study, completed
        # The first figures take about a second, most of it for imports.
        self._due = time.monotonic() + 1.0 / DRAWING_SHARE

    def refresh_if_due(self) -> None:
        """Show new generations, unless the last drawing was too recent."""
        if time.monotonic() >= self._due:
            self.refresh_at_end()

    def refresh_at_end(self) -> None:
        """Show new generations now, unless another worker has done so."""
        begin, generation = time.monotonic(), self._completed()
        if generation > self._study.user_attrs.get(DRAWN, 0) and is_installed():
            self._study.set_user_attr(DRAWN, generation)
            refresh_if_installed(self._study)
            end = time.monotonic()
            self._due = end + (end - begin) / DRAWING_SHARE


def refresh_if_installed(study: Study) -> None:
    """Refresh the dashboard, if there is one; a failure is only logged."""
    if is_installed():
        try:
            refresh(study)
        except Exception as error:
            logger.warning("the dashboard's figures could not be drawn: %s", error)


def refresh(study: Study) -> None:
    """Push figures and notes to the dashboard; trials that were the best so far get one, too."""
    from optuna_dashboard import get_note, save_note, save_plotly_graph_object

    history = read_history(study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental
        for name, figure in draw_figures(study).items():
            graph = f"taylorglo-{FIGURES.index(name) + 1}-{name}"
            save_plotly_graph_object(study, fit_to_cell(figure), graph_object_id=graph)
        if history is None or history.best is None:
            save_note(study, "No candidate is complete yet.")
            return
        save_note(study, _note(study, history))
        for best in history.new_bests:
            trial = Trial(study, trial_id_of(best))
            if not get_note(trial):
                lines = ["Best of its time.", *_description(trial_loss(study, best))]
                save_note(trial, "\n\n".join(lines))


def draw_figures(study: Study, *, further: bool = False) -> dict[str, go.Figure]:
    """All figures of a study, its newest verdict and its sweeps, by name and without empty ones.

    `further` adds those that are only in the report.
    """
    from optuna_taylorglo import visualization

    evaluation_study = find_evaluation_study(study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of empty figures
        figures = {
            "evolution": visualization.plot_evolution(study),
            "loss-functions": visualization.plot_loss_functions(study),
            "search-state": visualization.plot_search_state(study),
        }
        if further:
            figures["loss-shapes"] = visualization.plot_loss_functions(study, normalize=True)
            figures["candidates"] = visualization.plot_candidates(study)
        if evaluation_study is not None:
            if (verdict := load_verdict(evaluation_study)) is not None:
                curves = visualization.plot_learning_curves(study, verdict=verdict)
                figures["learning-curves"] = curves
                compare = visualization.plot_comparison if further else _short_comparison
                figures["comparison"] = compare(verdict)
            for sweep in load_sweeps(evaluation_study):
                drawn = visualization.plot_sweep(study, over=sweep.over)
                figures[f"sweep-{sweep.over}"] = drawn
    return {name: figure for name, figure in figures.items() if figure.data}


def _short_comparison(verdict: Verdict) -> go.Figure:
    """The comparison as far as a cell of the dashboard has room for it."""
    from optuna_taylorglo.visualization import plot_comparison

    left_out = {sample.name for sample in verdict.baselines[MOST_BASELINES:]}
    kept = tuple(c for c in verdict.contrasts if c.against not in left_out)
    return plot_comparison(replace(verdict, contrasts=kept)).update_layout(showlegend=False)


def fit_to_cell(figure: go.Figure) -> go.Figure:
    """Make a figure as high as its cell in the dashboard, which can be narrow."""
    figure.update_layout(
        height=CELL_HEIGHT,
        font_size=11,
        title={"font_size": 14, "y": 0.93},  # below the buttons, which a phone always shows
        margin={"l": 45, "r": 10, "t": 65, "b": 45},
        legend={"y": -0.2, "font_size": 10},
        modebar_remove=["lasso2d", "select2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
    )
    figure.update_xaxes(title_font_size=11).update_yaxes(title_font_size=11)
    return figure.update_annotations(font_size=9)


def _note(study: Study, history: SearchHistory) -> str:
    """The state of a search in Markdown."""
    recipe, chosen, selection = history.recipe, selected_loss(study), load_selection(study)
    generations = counted(recipe.search.total_generations, "generations")
    evaluated = f"{counted(history.n_filled, 'candidates')} evaluated"
    evaluation_study = find_evaluation_study(study)
    verdict = None if evaluation_study is None else load_verdict(evaluation_study)
    result = "" if verdict is None else about_another(verdict, chosen) or headline(verdict)
    paragraphs = [
        f"**Search**: {history.n_finished} of {generations}, {evaluated}.",
        result and f"**Verdict**: {result}",
        start_note(study, history),
        unsettled_note(study, history),
        f"**{'Best so far' if selection is None else 'Winner'}**: {chosen.name}",
        selection_note(history, selection),
        "\n".join(f"- {line}" for line in _description(chosen.loss)),
        *fitness_line(history, selection).splitlines(),
        "" if selection is None else evaluation_advice(selection, recipe),
    ]
    return "\n\n".join(filter(None, paragraphs))


def fitness_line(history: SearchHistory, selection: Selection | None = None) -> str:
    """Best candidate and cross-entropy, each with how its number was measured."""
    recipe, parts, mean, budget = history.recipe, [], None, "same"
    metric = recipe.fitness.in_words
    if selection is not None:
        winner = selection.winner
        # Cross-entropy is trained for the length of an evaluation.
        if recipe.budget.evaluation == recipe.budget.full:
            mean = winner.mean
        else:
            budget = "evaluations'"
        parts.append(
            f"{metric}: {winner.mean:.4f}, mean of {counted(len(winner.values), 'full trainings')} "
            f"of {winner.name}, the best of {len(selection.finalists)} losses"
        )
    elif history.best is not None:
        parts.append(
            f"{metric}: {history.best.values[0]:.4f}, {trainings_of_a_fitness(recipe)} of the best "
            f"of {counted(len(history.ranked), 'candidates')} (expect worse on other seeds)"
        )
    if (reference := history.cross_entropy) is not None:
        parts.append(f"cross-entropy at the {budget} budget: {reference}")
        if mean is not None and recipe.fitness.sign * (mean - reference.mean) <= 0:
            parts.append(
                "On validation the winner is not better than cross-entropy: this search found no "
                "loss to use instead."
            )
    return "\n".join(parts) or "No candidate is complete yet."


def trainings_of_a_fitness(recipe: Recipe) -> str:
    """What a candidate's fitness is measured by."""
    n = recipe.search.repeats
    return "one training" if n == 1 else f"the mean of {n} trainings"


def selection_note(history: SearchHistory, selection: Selection | None) -> str:
    """Why the winner is not the trial that Optuna calls the best; empty if it is."""
    best = history.best
    if selection is None or best is None or selection.winner.trial == best.number:
        return ""
    return (
        f"Optuna's best trial is {best.number}, by {trainings_of_a_fitness(history.recipe)}; the "
        f"winner, {selection.winner.name}, was selected by full trainings."
    )


def start_note(study: Study, history: SearchHistory) -> str:
    """Which known loss CMA-ES started at; empty if at none, or not yet."""
    search, sampler = history.recipe.search, make_sampler(history.recipe, history.n_classes)
    start = sampler.start(study) if isinstance(sampler, TaylorGLOSampler) else None
    if start is None or search.start is None:
        return ""
    a, b, c, d, *scale, e = start
    studies = [] if search.start.study is None else [f"study {search.start.study}"]
    names = [*search.start.losses, *studies]
    known = dict(zip(search.start.shapes or (), names, strict=False)) | STANDARD_NAMES
    factor = "learning rate" if search.scale == "learning_rate" else "scale"
    at = f" at {factor} × {math.exp(scale[0]):.3g}" if scale else ""
    return f"Best known loss: {known.get((a, b, c, d, e), 'an enqueued one')}{at}."


def unsettled_note(study: Study, history: SearchHistory) -> str:
    """That the distribution still widened when the search ended; empty if it did not."""
    if not history.finished:
        return ""
    states = make_sampler(history.recipe, history.n_classes).search_state(study)
    sigmas = [state.sigma for state in states]
    n_generations = len(sigmas) - 1
    if n_generations < FEWEST_TO_SETTLE:
        return ""
    before, last = sigmas[-1 - math.ceil(n_generations / 3)], sigmas[-1]
    if last <= before or last < sigmas[0]:
        return ""
    more = "continue by taylorglo run with a greater --n-generations"
    if isinstance(history.recipe, FunctionRecipe):
        more = "call search with a greater n_generations"
    return (
        "The search had not settled: its step size σ still grew in the last third of its "
        f"generations, from {before:.3g} to {last:.3g}. More generations may find a better loss: "
        f"{more}."
    )


def _description(loss: EvolvedLoss) -> list[str]:
    from optuna_taylorglo.losses.describe import describe

    return str(describe(loss, loss.n_classes or 2)).splitlines()


def save_network(trial: Trial, module: LightningModule) -> None:
    """Save the weights of a trained module as an artifact of its trial, for ``torch.load``."""
    import torch

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "network.pt"
        torch.save(module.state_dict(), file)
        upload_artifact(artifact_store=_artifact_store(), file_path=str(file), study_or_trial=trial)


def _artifact_store() -> FileSystemArtifactStore:
    ARTIFACT_DIR.mkdir(parents=True, exist_ok=True)
    return FileSystemArtifactStore(str(ARTIFACT_DIR))


def serve(study: Study, port: int) -> None:
    """Serve the dashboard on this machine only, until interrupted."""
    from optuna_dashboard import run_server

    with contextlib.suppress(ImportError, AttributeError):
        from optuna_dashboard import _app

        # It shows figures in the order of a set, another one each time it starts.
        read = _app.get_plotly_graph_objects
        _app.get_plotly_graph_objects = lambda attributes: dict(sorted(read(attributes).items()))
    run_server(storage_of(study), host="127.0.0.1", port=port, artifact_store=_artifact_store())
