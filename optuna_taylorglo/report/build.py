"""A search and its verdict as one HTML page: what `page.html.j2` shows of a study."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import secrets
import shlex
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from optuna.study import Study

from optuna_taylorglo import __version__
from optuna_taylorglo.attributes import GENERATION, INDEX
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.evolution.history import read_history
from optuna_taylorglo.losses.tree import formula
from optuna_taylorglo.recipes.load import BUNDLED_PACKAGE
from optuna_taylorglo.recipes.schema import FunctionRecipe, Recipe, TrainingRecipe
from optuna_taylorglo.report.dashboard import (
    draw_figures,
    fitness_line,
    selection_note,
    start_note,
    trainings_of_a_fitness,
    unsettled_note,
)
from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.study.storages import shown_url
from optuna_taylorglo.text import counted, write_atomically
from optuna_taylorglo.verdict.baselines import has_own_optimizer
from optuna_taylorglo.verdict.output import (
    HEADER,
    about_another,
    evaluation_advice,
    format_lead,
    headline,
    load_verdict,
    rows,
)
from optuna_taylorglo.verdict.selection import (
    is_undecided,
    load_selection,
    selected_loss,
)
from optuna_taylorglo.verdict.sweep import load_sweeps

if TYPE_CHECKING:
    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

_PACKAGES = ("optuna", "cmaes", "torch", "pytorch-lightning", "numpy", "scipy", "plotly")


def write_report(study: Study, path: str | PathLike[str], *, storage: str | None = None) -> None:
    """Write the report of a study, with its newest verdict and sweeps.

    Args:
        study: A study that a worker has begun on; it need not be finished.
        path: The HTML file to write.
        storage: URL for the commands in the report, where its password is masked; None if it is
            the default one.
    """
    from plotly.offline import get_plotlyjs

    from optuna_taylorglo.losses.describe import describe

    history = read_history(study)
    if history is None:
        raise StudyError(f"study {study.study_name!r}: no worker has begun on it.")
    recipe = history.recipe
    evaluation_study = find_evaluation_study(study)
    verdict = None if evaluation_study is None else load_verdict(evaluation_study)
    sweeps = [] if evaluation_study is None else load_sweeps(evaluation_study)
    winner = None if history.best is None else selected_loss(study)
    selection = load_selection(study)
    # Text comes from a database that others write to: the template escapes all of it.
    environment = Environment(
        loader=PackageLoader("optuna_taylorglo", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["quote"] = shlex.quote
    lr_factor = None if winner is None else getattr(winner.loss, "lr_factor", None)
    attributes = {} if winner is None or winner.trial is None else winner.trial.user_attrs
    page = environment.get_template("page.html.j2").render(
        name=study.study_name,
        written=f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}",
        history=history,
        recipe=recipe,
        fitness=fitness_line(history, selection).splitlines(),
        trainings=trainings_of_a_fitness(recipe),
        selection_note=selection_note(history, selection),
        start_note=start_note(study, history),
        unsettled_note=unsettled_note(study, history),
        recipe_yaml=yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True),
        by_function=isinstance(recipe, FunctionRecipe),
        allow=_allow(recipe),
        count=counted,
        own_optimizer=has_own_optimizer(study, recipe) is True,
        winner=winner,
        # People count from 1.
        place=[attributes[key] + 1 for key in (GENERATION, INDEX) if key in attributes],
        description=None if winner is None else describe(winner.loss, history.n_classes),
        parameters=[] if winner is None else _parameters(winner.loss),
        undecided=is_undecided(study, recipe),
        selection=selection,
        advice=None if selection is None else evaluation_advice(selection, recipe),
        verdict=verdict,
        headline=None if verdict is None else headline(verdict),
        format_lead=format_lead,
        other_loss="" if verdict is None or winner is None else about_another(verdict, winner),
        lr_factor=lr_factor,
        scale_acts=lr_factor is None if verdict is None else verdict.scale_acts,
        verdict_table=None if verdict is None else (HEADER, rows(verdict)),
        sweeps=sweeps,
        storage=None if storage is None else shown_url(storage),
        versions=[
            ("Python", platform.python_version()),
            ("optuna-taylorglo", __version__),
            *((package, importlib.metadata.version(package)) for package in _PACKAGES),
            ("platform", platform.platform()),
        ],
        figures={
            f"figure-{name}": json.loads(figure.to_json())
            for name, figure in draw_figures(study, further=True).items()
        },
        plotly_js=get_plotlyjs(),
        nonce=secrets.token_urlsafe(16),
    )
    write_atomically(Path(path), page)


def _allow(recipe: Recipe) -> str:
    """The options that allow the modules which are not bundled."""
    if not isinstance(recipe, TrainingRecipe):
        return ""
    parts = (recipe.data, recipe.model, *recipe.trainer.callbacks, *recipe.trainer.loggers)
    packages = {part.class_path.partition(".")[0]: None for part in parts}
    return "".join(f" --allow {each}" for each in packages if each != BUNDLED_PACKAGE)


def _parameters(loss: EvolvedLoss) -> list[tuple[str, str, str]]:
    """Name, meaning and exact value of each number of a loss."""
    from optuna_taylorglo.losses.tree_loss import TreeLoss

    if isinstance(loss, TreeLoss):
        meanings = [formula(node) for node in loss.tree.nodes()]
        names, values = [f"c_{i}" for i in range(len(meanings))], loss.coefficients
    else:
        names, meanings = list(loss.form.parameter_names), list(loss.form.parameter_meanings)
        values = loss.theta
        if loss.anchor is not None:
            names += ["log_scale", "smoothing"]
            meanings += ["logarithm of the whole loss's scale", "label smoothing of cross-entropy"]
            values += loss.anchor.log_scale, loss.anchor.smoothing
    if loss.lr_factor is not None:
        names.append("lr_factor")
        meanings.append("factor on the learning rate")
        values = (*values, loss.lr_factor)
    return list(zip(names, meanings, map(repr, values), strict=True))
