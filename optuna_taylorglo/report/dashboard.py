"""What the Optuna dashboard shows of a search beyond its own pages: figures, notes, artifacts."""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from optuna.study import Study
from optuna.trial import Trial, TrialState

from optuna_taylorglo.attributes import DRAWN, KEPT_LOSS, N_CLASSES
from optuna_taylorglo.recipes.in_study import frozen_recipe
from optuna_taylorglo.search.history import progress, trial_loss, winner
from optuna_taylorglo.storage.locks import study_lock

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from pytorch_lightning import LightningModule

ARTIFACT_DIR = Path("taylorglo-artifacts")
"""Where artifacts lie, relative to the directory that commands are run in."""


def is_installed() -> bool:
    """Whether the dashboard is there to show anything (extra ``dashboard``)."""
    return importlib.util.find_spec("optuna_dashboard") is not None


def refresh(study: Study) -> None:
    """Push figures and notes of a study to the dashboard, in place of older ones.

    Figures have fixed ids, so there is one of each. Trials that were the best of their time get a
    note that says what their loss does.
    """
    from optuna_dashboard import save_note, save_plotly_graph_object

    with warnings.catch_warnings():
        # Experimental, and an empty figure while there is nothing to draw, is what we expect.
        warnings.simplefilter("ignore")
        for name, plot in _figures().items():
            save_plotly_graph_object(study, plot(study), graph_object_id=f"taylorglo-{name}")
        save_note(study, study_note(study))
    _note_new_bests(study)


def refresh_once_a_generation(study: Study, generation: int) -> None:
    """Let one of the workers that see a new generation push the figures.

    Args:
        study: The study.
        generation: Generations that are complete.
    """
    with study_lock(study._storage, study.study_name):
        if study.user_attrs.get(DRAWN, 0) >= generation:
            return
        study.set_user_attr(DRAWN, generation)
    refresh(study)


def study_note(study: Study) -> str:
    """What a person wants to know first, in Markdown."""
    from optuna_taylorglo.losses.description import describe

    recipe = frozen_recipe(study)
    best = winner(study)
    if recipe is None or best is None:
        return "No candidate is complete yet."
    loss = trial_loss(study, best)
    state = progress(study, recipe)
    lines = [
        f"**TaylorGLO search**: {state.generation} of {state.generations} generations of "
        f"{recipe.search.population} candidates.",
        "",
        f"**Best so far**: trial {best.number}, {recipe.fitness.metric} {best.values[0]:.4f} "
        "(one training; expect less of it on other seeds).",
        "",
        *(f"- {line}" for line in str(describe(loss, study.user_attrs[N_CLASSES])).splitlines()),
    ]
    if state.cross_entropy:
        mean = sum(state.cross_entropy) / len(state.cross_entropy)
        lines += [
            "",
            f"**Cross-entropy** at the same budget: {mean:.4f}, mean of "
            f"{len(state.cross_entropy)} seeds.",
        ]
    return "\n".join(lines)


def keep_best_loss(study: Study, artifact_dir: Path = ARTIFACT_DIR) -> None:
    """Keep the best loss as an artifact of the study, unless that trial's is there already."""
    best = winner(study)
    if best is None or study.user_attrs.get(KEPT_LOSS) == best.number:
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "best_loss.json"
        trial_loss(study, best).save(path)
        # Of the study: Optuna lets nothing be added to a finished trial.
        upload_artifact(
            artifact_store=artifact_store(artifact_dir), file_path=str(path), study_or_trial=study
        )
    study.set_user_attr(KEPT_LOSS, best.number)


def keep_network(trial: Trial, module: LightningModule, artifact_dir: Path = ARTIFACT_DIR) -> None:
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
        study._storage, host="127.0.0.1", port=port, artifact_store=artifact_store(artifact_dir)
    )


def _figures() -> dict[str, Callable[[Study], go.Figure]]:
    from optuna_taylorglo import visualization

    return {
        "evolution": visualization.plot_evolution,
        "loss-functions": visualization.plot_loss_functions,
        "theta-history": visualization.plot_theta_history,
        "search-state": visualization.plot_search_state,
    }


def _note_new_bests(study: Study) -> None:
    """Describe, in a note, the loss of every trial that was the best when it was completed."""
    from optuna_dashboard import get_note, save_note

    from optuna_taylorglo.losses.description import describe

    best: float = float("-inf")
    complete: list[Any] = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    for frozen in complete:
        if frozen.values[0] <= best:
            continue
        best = frozen.values[0]
        trial = Trial(study, frozen._trial_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not get_note(trial):
                loss = trial_loss(study, frozen)
                text = str(describe(loss, study.user_attrs[N_CLASSES]))
                save_note(trial, "Best of its time.\n\n" + text.replace("\n", "\n\n"))
