"""A search and its verdict as one HTML page that a person reads from top to bottom.

Here is gathered what the page says about this study; the page itself is ``page.html.j2``. Names and
recipes come from a database that others write to, so the template escapes all text.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import secrets
import shlex
import warnings
from collections.abc import Iterable, Mapping
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo import __version__
from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.files import write_atomically
from optuna_taylorglo.losses.tree import formula
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.report.wording import found_with, recipe_in_words
from optuna_taylorglo.search.history import SearchHistory, read_history
from optuna_taylorglo.seeds import SeedPolicy, training_seed
from optuna_taylorglo.study.open import find_evaluation_study
from optuna_taylorglo.study.storages import shown_url
from optuna_taylorglo.verdict.families import optimizer_owner
from optuna_taylorglo.verdict.output import (
    HEADER,
    SavedSweep,
    is_about,
    load_sweeps,
    loss_name,
    rows,
)
from optuna_taylorglo.verdict.statistics import Verdict
from optuna_taylorglo.verdict.winner import (
    SelectedLoss,
    Selection,
    evaluation_advice,
    is_undecided,
    load_selection,
    selected_loss,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from optuna_taylorglo.losses.anchored import Anchor
    from optuna_taylorglo.losses.load import EvolvedLoss

_PACKAGES = (
    "optuna",
    "cmaes",
    "torch",
    "pytorch-lightning",
    "numpy",
    "scipy",
    "plotly",
)

_OUTCOMES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "aborted or stopped early",
    TrialState.FAIL: "lost to crashes or released",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


def write_report(
    study: Study,
    path: str | PathLike[str],
    *,
    verdict: Verdict | None = None,
    winner: SelectedLoss | None = None,
    storage: str | None = None,
    figures: Mapping[str, go.Figure] | None = None,
) -> None:
    """Write the report of a study.

    Args:
        study: A study that a worker has begun on; it need not be finished.
        path: The HTML file to write.
        verdict: What full trainings said, if there were any.
        winner: The loss that is reported; by default the study's. A verdict about another one is
            shown with a word about that.
        storage: Storage URL or journal path for the commands in the report; its password is
            masked. None if it is the default one.
        figures: Further figures with their captions, such as basins or data fractions.

    Raises:
        StudyError: If no worker has begun on the study.
    """
    from plotly.offline import get_plotlyjs

    history = read_history(study)
    if history is None:
        raise StudyError(
            f"study {study.study_name!r} has no recipe: no worker has begun on it, so there is "
            "nothing to report."
        )
    undecided = winner is None and is_undecided(study, history.recipe)
    if winner is None and history.best is not None:
        winner = selected_loss(study)
    selection = load_selection(study)
    optimizer = optimizer_owner(study, history.recipe)
    other_loss = ""
    if verdict is not None and winner is not None and not is_about(verdict, winner):
        other_loss = _about_another(verdict, winner)
    further = {f"figure-further-{i}": item for i, item in enumerate((figures or {}).items())}
    sweeps = (
        ()
        if (evaluation_study := find_evaluation_study(study)) is None
        else load_sweeps(evaluation_study)
    )
    drawn = _draw(study, verdict, sweeps) | {id_: figure for id_, (_, figure) in further.items()}
    counts = [f"{n} {_OUTCOMES[state]}" for state, n in history.counts.items() if n]
    page = _template().render(
        name=study.study_name,
        written=f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}",
        history=history,
        generations=f"{history.n_finished} of {history.recipe.search.total_generations}",
        summary=_summary(verdict, other_loss),
        numbers=_numbers(history, winner, selection, verdict),
        recipe_in_words=recipe_in_words(history.recipe, optimizer),
        found_with=found_with(history.recipe, optimizer),
        recipe_yaml=yaml.safe_dump(history.recipe.to_dict(), sort_keys=False, allow_unicode=True),
        winner=None if winner is None else _winner(history, winner),
        undecided=undecided,
        selection=None if selection is None else _selection(selection, history.recipe),
        outcomes=", ".join(counts),
        verdict=verdict,
        other_loss=other_loss,
        verdict_table=None if verdict is None else {"header": HEADER, "rows": rows(verdict)},
        sweeps=[_sweep(sweep) for sweep in sweeps],
        further={id_: caption for id_, (caption, _) in further.items()},
        commands=_commands(study, winner, storage),
        facts=_facts(history, None if winner is None else winner.trial),
        versions=_versions(),
        figures={id_: json.loads(figure.to_json()) for id_, figure in drawn.items() if figure.data},
        plotly_js=get_plotlyjs(),
        nonce=secrets.token_urlsafe(16),
    )
    write_atomically(Path(path), page)


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("optuna_taylorglo", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _draw(
    study: Study, verdict: Verdict | None, sweeps: Iterable[SavedSweep]
) -> dict[str, go.Figure]:
    """Figures of the study, its verdict and its sweeps, by the ids of their elements."""
    from optuna_taylorglo import visualization
    from optuna_taylorglo.visualization._sweep import draw_sweep

    with warnings.catch_warnings():
        # What has nothing to show yet is left out of the page, without a warning.
        warnings.simplefilter("ignore", UserWarning)
        drawn = {
            "figure-evolution": visualization.plot_evolution(study),
            "figure-loss-functions": visualization.plot_loss_functions(study),
            "figure-loss-shapes": visualization.plot_loss_functions(study, normalize=True),
            "figure-theta-history": visualization.plot_theta_history(study),
            "figure-search-state": visualization.plot_search_state(study),
            "figure-candidates": visualization.plot_candidates(study),
        }
        if verdict is not None:
            curves = visualization.plot_learning_curves(study, verdict=verdict)
            drawn["figure-learning-curves"] = curves
            drawn["figure-comparison"] = visualization.plot_comparison(verdict)
        for sweep in sweeps:
            drawn[f"figure-sweep-{sweep.over}"] = draw_sweep(sweep)
    return drawn


def _sweep(sweep: SavedSweep) -> dict[str, str]:
    """A sweep's figure, and what it shows."""
    if sweep.data is None:
        caption = (
            "Rank correlation of candidates by short evaluations with the same candidates by the "
            "longest: where it is high, an evaluation of that length would do."
        )
    else:
        seeds = {len(values) for by in sweep.data.accuracies.values() for values in by.values()}
        caption = (
            f"{sweep.measured} of full trainings with {sweep.loss}, called evolved loss here, and "
            f"with cross-entropy at its recipe's learning rate: mean and standard deviation of "
            f"{max(seeds, default=0)} trainings at each point."
        )
        if sweep.data.divergence is not None:
            caption += f" Trainings that diverged count as {sweep.data.divergence:.4f}."
    return {"id": f"figure-sweep-{sweep.over}", "caption": caption}


def _about_another(verdict: Verdict, winner: SelectedLoss) -> str:
    """Why the loss of the verdict is not the winner's."""
    before, now = loss_name(verdict), winner.name
    difference = f"{before}, not about the winner, {now}"
    if before == now:
        difference = f"{before} as it was before the search went on"
    return f"The verdict is about {difference}: it was made when that was the winner."


def _summary(verdict: Verdict | None, other_loss: str) -> str:
    if other_loss:
        return other_loss
    if verdict is not None and verdict.text:
        return verdict.text.splitlines()[0]
    return "A loss function was searched for; whether it is really better takes a verdict."


def _numbers(
    history: SearchHistory,
    winner: SelectedLoss | None,
    selection: Selection | None,
    verdict: Verdict | None,
) -> list[tuple[str, str]]:
    """What a hurried reader wants: numbers, and of what they are."""
    metric, cross_entropy = history.recipe.fitness.metric, history.cross_entropy
    numbers = []
    if selection is not None:
        text = f"{metric} of the winner, mean of {len(selection.winner.values)} full trainings"
        numbers.append((f"{selection.winner.mean:.4f}", text))
    elif winner is not None and winner.trial is not None and winner.trial.values:
        text = f"{metric} of the best candidate, one training"
        numbers.append((f"{winner.trial.values[0]:.4f}", text))
    if cross_entropy is not None:
        seeds = len(cross_entropy.by_seed)
        budget = "same" if selection is None else "evaluations'"
        text = f"{metric} of cross-entropy at the {budget} budget, mean of {seeds} seeds"
        numbers.append((f"{cross_entropy.mean:.4f}", text))
    for sample in () if verdict is None else verdict.samples[:2]:
        if verdict is not None and sample.values:
            n = len(sample.values)
            text = f"{verdict.test_metric} of {sample.label}, {n} full trainings"
            numbers.append((f"{sample.mean:.4f}", text))
    text = f"candidates evaluated in {history.n_finished} generations"
    numbers.append((f"{history.n_filled}", text))
    if history.recipe.search.method == "glo":
        numbers.append((f"{history.n_reused}", "trees equal to one of them, not evaluated again"))
    return numbers


def _winner(history: SearchHistory, winner: SelectedLoss) -> dict[str, Any]:
    """The reported loss."""
    from optuna_taylorglo.losses.describe import describe

    loss, attributes = winner.loss, {} if winner.trial is None else winner.trial.user_attrs
    described, facts = describe(loss, history.n_classes)
    # People count from 1.
    place = [attributes[key] + 1 for key in (GENERATION, INDEX) if key in attributes]
    return {
        "name": winner.name[0].upper() + winner.name[1:],
        "place": "(generation {}, candidate {})".format(*place) if place else "",
        "formula": _formula(loss, facts["formula"]),
        # The first line of the description is the formula.
        "description": described.splitlines()[1:],
        "parameters": _parameters(loss),
        "folded": facts.get("folded"),
    }


def _parameters(loss: EvolvedLoss) -> list[tuple[str, str, str]]:
    """Name, meaning and value of each number of a loss."""
    from optuna_taylorglo.losses.tree_loss import TreeLoss

    if isinstance(loss, TreeLoss):
        pairs = zip(loss.tree.nodes(), loss.coefficients, strict=True)
        return [(f"c_{i}", formula(node), repr(value)) for i, (node, value) in enumerate(pairs)]
    names, meanings = loss.form.parameter_names, loss.form.parameter_meanings
    rows = list(zip(names, meanings, map(repr, loss.theta), strict=True))
    return rows + ([] if loss.anchor is None else _anchor_rows(loss.anchor))


def _formula(loss: EvolvedLoss, function: str) -> str:
    """The loss of a sample as one line."""
    from optuna_taylorglo.losses.tree_loss import TreeLoss

    total = f"{'(1/n) ' if loss.class_reduction == 'mean' else ''}Σᵢ [ {function} ]"
    if isinstance(loss, TreeLoss) or loss.anchor is None:
        return f"L = −{total}"
    scale, smoothing = loss.anchor.scale, loss.anchor.smoothing
    base = f"CE on labels smoothed by {smoothing:.3g}" if smoothing else "CE"
    return f"L = {scale:.3g} × ( {base} − {total} )"


def _anchor_rows(anchor: Anchor) -> list[tuple[str, str, str]]:
    """What an anchored loss has besides θ."""
    meanings = ("logarithm of the whole loss's scale", "label smoothing of cross-entropy")
    return [
        (name, meaning, repr(value))
        for (name, value), meaning in zip(anchor._asdict().items(), meanings, strict=True)
    ]


def _selection(selection: Selection, recipe: Recipe) -> dict[str, Any]:
    """How the winner was chosen."""
    rows = [
        (
            c.name,
            "" if c.evaluation is None else f"{c.evaluation:.4f}",
            f"{c.mean:.4f}",
            str(len(c.values)),
            str(c.values.count(None)),
        )
        for c in selection.finalists
    ]
    return {
        "header": ("loss", "evaluation", "mean of full trainings", "trainings", "diverged"),
        "rows": rows,
        "advice": evaluation_advice(selection, recipe),
    }


def _commands(study: Study, winner: SelectedLoss | None, storage: str | None) -> dict[str, str]:
    """Commands of ours for this study, to be copied."""
    name = study.study_name
    where = [] if storage is None else ["--storage", shown_url(storage)]

    def command(*words: str) -> str:
        return shlex.join(["taylorglo", *words, *where])

    other = []
    if winner is not None and winner.trial is not None and winner.name != selected_loss(study).name:
        other = ["--trial", str(winner.trial.number)]
    whole = (
        command("run", "recipe.yaml", "--study-name", name),
        command("evaluate", name),
        command("report", name, "-o", "report.html"),
    )
    return {
        "verdict": command("evaluate", name, "--seeds", "10"),
        "export": command("export", name, "-o", "best_loss.json", *other),
        "all": "\n".join(whole),
    }


def _facts(history: SearchHistory, trial: FrozenTrial | None) -> list[tuple[str, str]]:
    """Seeds and results kept with the study."""
    search = history.recipe.search
    facts = [("seed of the search", str(search.seed))]
    if trial is not None and {GENERATION, INDEX, ATTEMPT} <= trial.user_attrs.keys():
        place = [int(trial.user_attrs[key]) for key in (GENERATION, INDEX, ATTEMPT)]
        policy: SeedPolicy = "common" if search.seed_policy == "common" else "independent"
        seed = training_seed(search.seed, *place, policy=policy)
        facts.append(("seed of the winner's (first) training", str(seed)))
    if history.cross_entropy is not None:
        for key, value in history.cross_entropy.by_seed.items():
            facts.append((f"cross-entropy with seed {key}", f"{value:.4f}"))
    ended = [t for t in history.trials if t.datetime_start and t.datetime_complete]
    if ended:
        start = min(t.datetime_start for t in ended if t.datetime_start)
        end = max(t.datetime_complete for t in ended if t.datetime_complete)
        facts.append(("search ran", f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"))
    return facts


def _versions() -> list[tuple[str, str]]:
    versions = [("Python", platform.python_version()), ("optuna-taylorglo", __version__)]
    for package in _PACKAGES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed as a package"
        versions.append((package, version))
    return [*versions, ("platform", platform.platform())]
