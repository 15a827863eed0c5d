"""What the Optuna dashboard shows of a search beyond its own pages: figures, notes, artifacts."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from optuna.study import Study
from optuna.trial import Trial

from optuna_taylorglo.attributes import DRAWN, SAVED_LOSS
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.search.history import (
    SearchHistory,
    read_history,
    recipe_and_classes,
    trial_loss,
)
from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.verdict.output import SavedSweep, load_sweeps, load_verdict
from optuna_taylorglo.verdict.winner import evaluation_advice, load_selection, selected_loss

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from pytorch_lightning import LightningModule

    from optuna_taylorglo.losses.load import EvolvedLoss
    from optuna_taylorglo.verdict.statistics import Verdict

ARTIFACT_DIR = Path("taylorglo-artifacts")
"""Where artifacts lie, relative to the directory that commands are run in."""

DRAWING_SHARE = 0.02
"""Share of its time that a worker spends on the dashboard's figures, at most."""

FIRST_DRAWING = 1.0
"""Seconds that the first figures take, most of them for imports."""

logger = logging.getLogger(__name__)


def is_installed() -> bool:
    """Whether the dashboard is there to show anything (extra ``dashboard``)."""
    return importlib.util.find_spec("optuna_dashboard") is not None


class DashboardRefresher:
    """Shows complete generations in the dashboard, if there is one, for little of a worker's time.

    Args:
        study: The study.
        completed: Tells how many generations are complete.
    """

    def __init__(self, study: Study, completed: Callable[[], int]) -> None:
        self._study = study
        self._completed = completed
        self._due = time.monotonic() + FIRST_DRAWING / DRAWING_SHARE

    def refresh_if_due(self) -> None:
        """Show generations that have been completed, unless the last drawing was just now."""
        if time.monotonic() >= self._due:
            self.refresh_at_end()

    def refresh_at_end(self) -> None:
        """Show them now: there will be no other occasion."""
        begin = time.monotonic()
        generation = self._completed()
        if generation <= self._study.user_attrs.get(DRAWN, 0) or not is_installed():
            return
        _try(lambda: refresh_once_per_generation(self._study, generation))
        end = time.monotonic()
        self._due = end + (end - begin) / DRAWING_SHARE


def refresh_if_installed(study: Study) -> None:
    """Bring the dashboard up to date, if there is one."""
    if is_installed():
        _try(lambda: refresh(study))


def show_verdict(study: Study, verdict: Verdict) -> None:
    """Show a verdict's figures among those of its study, if there is a dashboard."""

    def draw() -> dict[str, go.Figure]:
        from optuna_taylorglo.visualization import plot_comparison, plot_learning_curves

        return {
            "learning-curves": plot_learning_curves(study, verdict=verdict),
            "comparison": plot_comparison(verdict),
        }

    _show(study, draw)


def show_sweep(study: Study, sweep: SavedSweep) -> None:
    """Show a sweep's figure among those of its study, if there is a dashboard."""

    def draw() -> dict[str, go.Figure]:
        from optuna_taylorglo.visualization._sweep import draw_sweep

        return {f"sweep-{sweep.over}": draw_sweep(sweep)}

    _show(study, draw)


def show_saved(study: Study) -> None:
    """Show the newest verdict and sweeps, which may come from where there was no dashboard."""
    evaluation_study = find_evaluation_study(study)
    if evaluation_study is None:
        return
    with contextlib.suppress(StudyError):  # of another version
        if (verdict := load_verdict(evaluation_study)) is not None:
            show_verdict(study, verdict)
    for sweep in load_sweeps(evaluation_study):
        show_sweep(study, sweep)


def _show(study: Study, draw: Callable[[], dict[str, go.Figure]]) -> None:
    """Push figures that are not empty, if there is a dashboard."""

    def push() -> None:
        from optuna_dashboard import save_plotly_graph_object

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental, and figures of nothing
            for name, figure in draw().items():
                if figure.data:
                    save_plotly_graph_object(study, figure, graph_object_id=f"taylorglo-{name}")

    if is_installed():
        _try(push)


def _try(draw: Callable[[], None]) -> None:
    try:
        draw()
    except Exception as error:
        # A picture is never worth a trial.
        logger.warning("the dashboard's figures could not be drawn: %s", error)


def refresh_once_per_generation(study: Study, generation: int) -> None:
    """Push the figures if no other worker has done so for this generation.

    Args:
        study: The study.
        generation: Generations that are complete.
    """
    if study.user_attrs.get(DRAWN, 0) < generation:
        study.set_user_attr(DRAWN, generation)
        refresh(study)


def refresh(study: Study) -> None:
    """Push figures and notes of a study to the dashboard, in place of older ones.

    Figures have fixed ids, so there is one of each. Trials that were the best of their time get a
    note that says what their loss does.
    """
    from optuna_dashboard import get_note, save_note, save_plotly_graph_object

    history = read_history(study)
    with warnings.catch_warnings():
        # Experimental, and an empty figure while there is nothing to draw, is what we expect.
        warnings.simplefilter("ignore")
        for name, plot in _figures().items():
            save_plotly_graph_object(study, plot(study), graph_object_id=f"taylorglo-{name}")
        if history is None or history.best is None:
            save_note(study, "No candidate is complete yet.")
            return
        save_note(study, _study_note(study, history, history.best.values[0]))
        for best in history.new_bests:
            trial = Trial(study, trial_id_of(best))
            if not get_note(trial):
                lines = ["Best of its time.", *_description(trial_loss(study, best))]
                save_note(trial, "\n\n".join(lines))


def _study_note(study: Study, history: SearchHistory, best: float) -> str:
    """What a person wants to know first, in Markdown."""
    search, metric = history.recipe.search, history.recipe.fitness.metric
    chosen, selection = selected_loss(study), load_selection(study)
    if selection is None:
        heading = (
            f"**Best so far**: {chosen.name}, {metric} {best:.4f} (one training; expect worse on "
            "other seeds)."
        )
    else:
        heading = (
            f"**Winner**: {chosen.name}, {metric} {selection.winner.mean:.4f} (mean of "
            f"{len(selection.winner.values)} full trainings)."
        )
    if search.glo is None:
        progress = (
            f"**TaylorGLO search**: {history.n_finished} of {search.n_generations} generations of "
            f"{search.popsize} candidates."
        )
    else:
        progress = (
            f"**GLO search**: {history.n_finished} of {search.total_generations} generations, "
            f"{history.n_filled} candidates evaluated, {history.n_reused} trees equal to one of "
            "them."
        )
    lines = [
        progress,
        "",
        heading,
        "",
        *(f"- {line}" for line in _description(chosen.loss)),
    ]
    if selection is not None:
        lines += ["", evaluation_advice(selection, history.recipe)]
    if history.cross_entropy is not None:
        lines += ["", f"**Cross-entropy** at the same budget: {history.cross_entropy}."]
    return "\n".join(lines)


def _description(loss: EvolvedLoss) -> list[str]:
    """What a loss does, line by line."""
    from optuna_taylorglo.losses.describe import describe

    return str(describe(loss, loss.n_classes or 2)).splitlines()


def save_best_loss(study: Study, artifact_dir: Path = ARTIFACT_DIR) -> None:
    """Keep the winner as an artifact of the study, unless it is there already."""
    try:
        chosen = selected_loss(study)
    except StudyError:
        return
    kept: str | int
    if chosen.trial is not None:
        kept = chosen.trial.number
    else:  # of a search that was made longer it is another one
        kept = (
            f"{chosen.name} of {recipe_and_classes(study)[0].search.total_generations} generations"
        )
    if study.user_attrs.get(SAVED_LOSS) == kept:
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "best_loss.json"
        chosen.loss.save(path)
        # Of the study: Optuna lets nothing be added to a finished trial.
        upload_artifact(
            artifact_store=artifact_store(artifact_dir), file_path=str(path), study_or_trial=study
        )
    study.set_user_attr(SAVED_LOSS, kept)


def save_network(trial: Trial, module: LightningModule, artifact_dir: Path = ARTIFACT_DIR) -> None:
    """Keep the weights of a trained module as an artifact of its trial, for ``torch.load``."""
    import torch

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "network.pt"
        torch.save(module.state_dict(), path)
        upload_artifact(
            artifact_store=artifact_store(artifact_dir),
            file_path=str(path),
            study_or_trial=trial,
            mimetype="application/octet-stream",
        )


def artifact_store(artifact_dir: Path = ARTIFACT_DIR) -> FileSystemArtifactStore:
    """The store of artifacts, its directory created if need be."""
    artifact_dir.mkdir(parents=True, exist_ok=True)
    return FileSystemArtifactStore(str(artifact_dir))


def serve(study: Study, port: int, artifact_dir: Path = ARTIFACT_DIR) -> None:
    """Serve the dashboard on this machine only, until interrupted."""
    from optuna_dashboard import run_server

    run_server(
        storage_of(study), host="127.0.0.1", port=port, artifact_store=artifact_store(artifact_dir)
    )


def _figures() -> dict[str, Callable[[Study], go.Figure]]:
    from optuna_taylorglo import visualization

    return {
        "evolution": visualization.plot_evolution,
        "loss-functions": visualization.plot_loss_functions,
        "theta-history": visualization.plot_theta_history,
        "search-state": visualization.plot_search_state,
    }
