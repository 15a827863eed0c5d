"""A search and its verdict as one HTML page that a person reads from top to bottom.

Names and recipes come from a database that others write to, so all text is escaped.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import statistics
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import ATTEMPT, CROSS_ENTROPY, GENERATION, INDEX, N_CLASSES
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.recipes.in_study import frozen_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.report.page import bullets, figure_place, page, paragraphs, table
from optuna_taylorglo.report.wording import search_in_words, training_in_words
from optuna_taylorglo.search.history import Progress, progress, trial_loss
from optuna_taylorglo.search.history import winner as best_trial
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.storage.urls import shown_url
from optuna_taylorglo.verdict.statistics import Verdict

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from optuna_taylorglo.losses.taylor_loss import TaylorLoss

_PACKAGES = (
    "optuna-taylorglo",
    "optuna",
    "cmaes",
    "torch",
    "pytorch-lightning",
    "numpy",
    "scipy",
    "plotly",
)


def write_report(
    study: Study,
    path: str | PathLike[str],
    *,
    verdict: Verdict | None = None,
    trial: FrozenTrial | None = None,
    storage: str | None = None,
    figures: Mapping[str, go.Figure] | None = None,
) -> None:
    """Write the report of a study.

    Args:
        study: A study that a worker has begun on; it need not be finished.
        path: The HTML file to write.
        verdict: What full trainings said, if there were any.
        trial: The trial whose loss is reported and was put to the test; by default the one with
            the highest fitness.
        storage: Storage URL or journal path for the commands in the report; its password is
            masked. None if it is the default one.
        figures: Further figures with their captions, such as basins or data fractions.

    Raises:
        StudyError: If no worker has begun on the study.
    """
    recipe = frozen_recipe(study)
    if recipe is None or N_CLASSES not in study.user_attrs:
        raise StudyError(
            f"study {study.study_name!r} has no recipe: no worker has begun on it, so there is "
            "nothing to report."
        )
    subject = _Subject(
        study,
        recipe,
        progress(study, recipe),
        best_trial(study) if trial is None else trial,
        verdict,
        storage,
    )
    drawn = _draw(subject, figures or {})
    body = "\n".join(
        [
            _heading(subject),
            _what_was_searched(subject),
            _the_winner(subject, drawn),
            _how_it_evolved(subject, drawn),
            _verdict(subject, drawn),
            _further_figures(figures or {}, drawn),
            _how_to_use_it(subject),
            _how_it_was_made(subject),
        ]
    )
    Path(path).write_text(page(study.study_name, body, drawn), encoding="utf-8")


@dataclass(frozen=True)
class _Subject:
    """What the report is about."""

    study: Study
    recipe: Recipe
    state: Progress
    winner: FrozenTrial | None
    verdict: Verdict | None
    storage: str | None

    @property
    def n_classes(self) -> int:
        return int(self.study.user_attrs[N_CLASSES])

    @property
    def finished(self) -> bool:
        return self.state.generation >= self.state.generations

    def loss(self) -> TaylorLoss | None:
        return None if self.winner is None else trial_loss(self.study, self.winner)

    def command(self, *words: str) -> str:
        """A command of ours for this study, to be copied."""
        where = [] if self.storage is None else ["--storage", shown_url(self.storage)]
        return shlex.join(["taylorglo", *words, *where])


def _draw(subject: _Subject, further: Mapping[str, go.Figure]) -> dict[str, go.Figure]:
    """All figures that show something, by the id of their element."""
    from optuna_taylorglo import visualization

    study, settings = subject.study, subject.recipe.loss
    with warnings.catch_warnings():
        # What has nothing to show yet is left out of the page, without a warning.
        warnings.simplefilter("ignore", UserWarning)
        drawn = {
            "evolution": visualization.plot_evolution(study),
            "loss-functions": visualization.plot_loss_functions(study),
            "loss-shapes": visualization.plot_loss_functions(study, normalise=True),
            "theta-history": visualization.plot_theta_history(study),
            "search-state": visualization.plot_search_state(study),
            "candidates": visualization.plot_candidates(study),
        }
        if settings.order <= 3 and settings.variables == ("x", "y"):
            drawn["canonical"] = visualization.plot_candidates(study, space="canonical")
        if subject.verdict is not None:
            drawn["comparison"] = visualization.plot_comparison(subject.verdict)
    drawn |= {f"further-{i}": figure for i, figure in enumerate(further.values())}
    return {f"figure-{name}": figure for name, figure in drawn.items() if figure.data}


def _heading(subject: _Subject) -> str:
    name, state = subject.study.study_name, subject.state
    metric = escape(subject.recipe.fitness.metric)
    numbers = []
    if subject.winner is not None and subject.winner.values:
        numbers.append(
            (f"{subject.winner.values[0]:.4f}", f"{metric} of the best candidate, one training")
        )
    if state.cross_entropy:
        seeds = len(state.cross_entropy)
        numbers.append(
            (
                f"{statistics.fmean(state.cross_entropy):.4f}",
                f"{metric} of cross-entropy at the same budget, mean of {seeds} seeds",
            )
        )
    if subject.verdict is not None:
        metric = escape(subject.verdict.test_metric)
        numbers += [
            (
                f"{sample.mean:.4f}",
                f"{metric} of {escape(sample.label)}, {len(sample.values)} full trainings",
            )
            for sample in subject.verdict.samples[:2]
            if sample.values
        ]
    numbers.append((f"{state.filled}", f"candidates evaluated in {state.generation} generations"))
    tiles = "".join(f"<li><b>{number}</b><span>{text}</span></li>" for number, text in numbers)
    summary = (
        subject.verdict.text.splitlines()[0]
        if subject.verdict is not None and subject.verdict.text
        else "A loss function was searched for; whether it is really better takes a verdict."
    )
    parts = [
        f"<h1>{escape(name)}: an evolved loss function</h1>",
        f'<p class="soft">Report of {datetime.now().astimezone():%d %B %Y, %H:%M %Z}</p>',
        f'<p class="lead">{escape(summary)}</p>',
        f'<ul class="numbers">{tiles}</ul>',
    ]
    if not subject.finished:
        parts.append(
            f'<p class="note">The search is not finished: {state.generation} of '
            f"{state.generations} generations are complete. What follows is how things stand.</p>"
        )
    parts.append(
        '<nav><a href="#search">What was searched</a><a href="#winner">The winner</a>'
        '<a href="#evolution">How it evolved</a><a href="#verdict">The verdict</a>'
        '<a href="#use">How to use it</a><a href="#made">How it was made</a></nav>'
        '<noscript><p class="note">The figures of this page need JavaScript.</p></noscript>'
    )
    return "\n".join(parts)


def _what_was_searched(subject: _Subject) -> str:
    recipe = subject.recipe
    text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True)
    return "\n".join(
        [
            '<h2 id="search">What was searched</h2>',
            paragraphs(search_in_words(recipe)),
            paragraphs(training_in_words(recipe)),
            "<details><summary>The complete recipe, as YAML</summary>"
            f"<pre>{escape(text)}</pre></details>",
        ]
    )


def _the_winner(subject: _Subject, drawn: Mapping[str, go.Figure]) -> str:
    from optuna_taylorglo.losses.description import describe

    parts = ['<h2 id="winner">The winner</h2>']
    loss, trial = subject.loss(), subject.winner
    if loss is None or trial is None:
        return "\n".join([*parts, '<p class="note">No candidate is complete yet.</p>'])
    form = loss.form
    shape = "−(1/n) Σᵢ" if loss.class_reduction == "mean" else "−Σᵢ"
    described, facts = describe(loss, subject.n_classes)
    place = (
        f" (generation {trial.user_attrs[GENERATION]}, candidate {trial.user_attrs[INDEX]})"
        if {GENERATION, INDEX} <= trial.user_attrs.keys()
        else ""
    )
    parameters = zip(form.parameter_names, form.parameter_meanings, loss.theta, strict=True)
    convention = (
        "The factors 1/α! are folded into these numbers."
        if form.folded
        else "The formula multiplies them by 1/α!, as in the paper's Eq. 5."
    )
    parts += [
        f"<p>Trial {trial.number}{escape(place)} of study <b>{escape(subject.study.study_name)}</b>"
        ". For every class i, x is 1 for the target and 0 otherwise, and y is the softmax output; "
        "the loss of a sample is</p>",
        f'<p class="formula">L = {shape} [ {escape(str(facts["formula"]))} ]</p>',
        # The first line of the description is the formula, which has just been said.
        bullets(described.splitlines()[1:]),
        "<details><summary>Its parameters θ, exactly</summary>",
        table(
            ("parameter", "of", "value"),
            [(name, meaning, repr(value)) for name, meaning, value in parameters],
        ),
        f"<p>{escape(convention)}</p></details>",
        figure_place(
            drawn,
            "loss-functions",
            "The best loss of each generation with two classes, over the probability that the "
            "target's class gets, shifted to 0 at y = 1. Where a curve turns up before y = 1, the "
            "loss keeps the network from being too sure.",
        ),
        figure_place(
            drawn,
            "loss-shapes",
            "The same with each loss divided by its scale: all curves are as steep as "
            "cross-entropy at y = ½. Scale acts as a learning rate; what is seen here is shape.",
        ),
    ]
    return "\n".join(parts)


def _how_it_evolved(subject: _Subject, drawn: Mapping[str, go.Figure]) -> str:
    state = subject.state
    counts = {name: state.counts[s] for name, s in _OUTCOMES.items() if state.counts[s]}
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.items())
    return "\n".join(
        [
            '<h2 id="evolution">How it evolved</h2>',
            f"<p>{state.generation} of {state.generations} generations are complete, with "
            f"{state.filled} of {state.slots} candidates evaluated. Trials: "
            f"{escape(outcomes) or 'none yet'}. A candidate that is aborted may be tried again, so "
            "there can be more trials than candidates.</p>",
            figure_place(
                drawn,
                "evolution",
                "Best and mean fitness of each generation. The dashed line is cross-entropy at the "
                "same budget, the band its range over seeds. Candidates far below the mean lie "
                "outside the figure.",
            ),
            figure_place(
                drawn,
                "theta-history",
                "Parameters of the best candidate of each generation. Different parameters can be "
                "the same function, so lines need not settle when the loss has.",
            ),
            figure_place(
                drawn,
                "search-state",
                "The normal distribution that candidates are drawn from: its step size, how much "
                "longer its longest axis is than its shortest (as a ratio of variances), and its "
                "standard deviation along each axis. A search that has settled has short axes.",
            ),
            figure_place(
                drawn,
                "candidates",
                "Every candidate, placed by t-SNE so that similar parameters lie near each other.",
            ),
            figure_place(
                drawn,
                "canonical",
                "The same by the four numbers that such a loss consists of: here candidates that "
                "are nearly the same function lie together.",
            ),
        ]
    )


_OUTCOMES = {
    "complete": TrialState.COMPLETE,
    "aborted or stopped early": TrialState.PRUNED,
    "lost to crashes or handed back": TrialState.FAIL,
    "running": TrialState.RUNNING,
    "waiting": TrialState.WAITING,
}


def _verdict(subject: _Subject, drawn: Mapping[str, go.Figure]) -> str:
    from optuna_taylorglo.verdict.files import HEADER, rows

    parts = ['<h2 id="verdict">The verdict</h2>']
    verdict = subject.verdict
    if verdict is None:
        command = subject.command("evaluate", subject.study.study_name, "--seeds", "10")
        parts += [
            '<p class="note">No verdict yet. The fitness above is the best of many single, noisy, '
            "short trainings, and the scale of a loss acts as a learning rate: neither says that "
            "the loss is better. Full trainings on the test set, against baselines and controls of "
            "scale, are made by</p>",
            f"<pre>{escape(command)}</pre>",
        ]
        return "\n".join(parts)
    parts += [
        paragraphs(verdict.text.splitlines()),
        table(HEADER, rows(verdict)),
        f'<p class="soft">Values are {escape(verdict.test_metric)} of full trainings. Differences '
        "are the evolved loss's mean minus the row's; p is that of the one-tailed Welch test that "
        "the evolved loss is better; g is Hedges' effect size. Failed trainings are counted, and "
        "are not in the means.</p>",
        figure_place(
            drawn,
            "comparison",
            "Mean and 95 % confidence interval of each loss; every tick is one training. Controls "
            "of scale: the evolved loss with cross-entropy's first gradient, and the reverse.",
        ),
    ]
    return "\n".join(parts)


def _further_figures(figures: Mapping[str, go.Figure], drawn: Mapping[str, go.Figure]) -> str:
    if not figures:
        return ""
    shown = [figure_place(drawn, f"further-{i}", caption) for i, caption in enumerate(figures)]
    return "\n".join(['<h2 id="further">Further figures</h2>', *shown])


def _how_to_use_it(subject: _Subject) -> str:
    name = subject.study.study_name
    words = ["export", name, "-o", "best_loss.json"]
    if subject.winner is not None and subject.winner != best_trial(subject.study):
        words += ["--trial", str(subject.winner.number)]
    code = (
        "from optuna_taylorglo import load_loss\n\n"
        'criterion = load_loss("best_loss.json")      # was: nn.CrossEntropyLoss()\n'
        "loss = criterion(model(images), labels)      # class indices or probabilities\n"
        "loss.backward()"
    )
    optimiser = subject.recipe.optimiser
    return "\n".join(
        [
            '<h2 id="use">How to use it</h2>',
            "<p>Write the loss to a file, and put it in the place of cross-entropy:</p>",
            f"<pre>{escape(subject.command(*words))}</pre>",
            f"<pre>{escape(code)}</pre>",
            f"<p>It was found with {escape(optimiser.name)} at learning rate {optimiser.lr:g} and "
            f"{subject.n_classes} classes. With another optimiser, learning rate or number of "
            "classes it is another experiment: tune the learning rate anew.</p>",
        ]
    )


def _how_it_was_made(subject: _Subject) -> str:
    study, recipe, trial = subject.study, subject.recipe, subject.winner
    name = study.study_name
    commands = [
        subject.command("run", "recipe.yaml", "--study-name", name),
        subject.command("evaluate", name),
        subject.command("report", name, "-o", "report.html"),
    ]
    facts = [("seed of the search", str(recipe.search.seed))]
    if trial is not None and {GENERATION, INDEX, ATTEMPT} <= trial.user_attrs.keys():
        place = [int(trial.user_attrs[key]) for key in (GENERATION, INDEX, ATTEMPT)]
        common = recipe.search.seed_policy == "common"
        seed = training_seed(
            recipe.search.seed, *place, policy="common" if common else "independent"
        )
        facts.append(("seed of the winner's (first) training", str(seed)))
    facts += [
        (f"cross-entropy with seed {seed}", f"{value:.4f}")
        for seed, value in study.user_attrs.get(CROSS_ENTROPY, {}).items()
    ]
    times = [t for t in study.get_trials(deepcopy=False) if t.datetime_complete is not None]
    starts = [t.datetime_start for t in times if t.datetime_start is not None]
    if starts:
        end = max(t.datetime_complete for t in times if t.datetime_complete is not None)
        facts.append(("search ran", f"{min(starts):%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"))
    versions = [("Python", platform.python_version()), ("platform", platform.platform())]
    versions[1:1] = [(package, _version(package)) for package in _PACKAGES]
    return "\n".join(
        [
            '<h2 id="made">How it was made</h2>',
            "<p>With the recipe above saved as <code>recipe.yaml</code>, these commands make the "
            "search, its verdict and this page:</p>",
            f"<pre>{escape(chr(10).join(commands))}</pre>",
            "<h3>Seeds and results kept with the study</h3>",
            table(("what", "value"), facts, words=True),
            "<h3>Versions where this page was written</h3>",
            table(("package", "version"), versions, words=True),
            "<footer>Method: TaylorGLO (Gonzalez and Miikkulainen, “Optimizing Loss Functions "
            "Through Multi-Variate Taylor Polynomial Parameterization”).</footer>",
        ]
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"
