"""A verdict in words, as Markdown, CSV and JSON, and in its study."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optuna.study import Study
from pydantic import TypeAdapter, ValidationError

from optuna_taylorglo.attributes import EVALUATION_OF, SWEEP, VERDICT
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.text import write_atomically
from optuna_taylorglo.verdict.selection import FINAL_MEAN, SelectedLoss, Selection
from optuna_taylorglo.verdict.statistics import (
    Contrast,
    Role,
    Sample,
    Verdict,
    is_accuracy,
    rank_correlation,
    spearman,
)

GUESSING_FACTOR = 1.5
"""An accuracy below this multiple of 1/n counts as guessing."""

GOOD_CORRELATION = 0.7
"""Rank correlation below which evaluations and full trainings count as different orders."""

HEADER = (
    "loss",
    "mean",
    "sd",
    "n",
    "diverged",
    "difference",
    "95 % interval",
    "p",
    "p (Holm)",
    "g",
)
SHORT_HEADER = ("loss", "mean (sd)", "n", "difference (95 % interval)", "p (Holm)")


def rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """The verdict as a table under `HEADER`.

    Differences are the evolved loss's mean minus the row's.
    """
    by_name = {contrast.against: contrast for contrast in verdict.contrasts}
    return [_row(sample, by_name.get(sample.name)) for sample in verdict.samples]


def _row(sample: Sample, contrast: Contrast | None) -> tuple[str, ...]:
    diverged = f"{len(sample.diverged)} of {len(sample.values)} diverged"
    own = (
        sample.label,
        f"{sample.mean:.4f}",
        f"{sample.std:.4f}",
        str(len(sample.values)),
        diverged if sample.diverged else "0",
    )
    if contrast is None:
        return (*own, "", "", "", "", "")
    return (
        *own,
        f"{contrast.difference:+.4f}",
        f"{contrast.low:+.4f} to {contrast.high:+.4f}",
        f"{contrast.p_value:.2g}",
        f"{contrast.p_holm:.2g}",
        f"{contrast.effect_size:.2f}",
    )


def short_rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """The table for a terminal, under `SHORT_HEADER`."""
    return [
        (label, f"{mean} ({sd})", n if diverged == "0" else diverged, both, p_holm)
        for label, mean, sd, n, diverged, difference, interval, _, p_holm, _ in rows(verdict)
        for both in [f"{difference} ({interval})" if difference else ""]
    ]


def verdict_in_words(verdict: Verdict, n_classes: int) -> str:
    """What a verdict says.

    Args:
        verdict: The verdict; its text does not matter.
        n_classes: Number of classes.
    """
    winner, *others = verdict.samples
    means = {sample.role: sample.mean for sample in others}
    baselines = [s for s in others if s.role.is_baseline]
    beaten = [s.label for s in baselines if verdict.beats(s.name)]
    rest = [s.label for s in baselines if not verdict.beats(s.name)]
    if beaten and not rest:
        lines = ["The evolved loss is significantly better than every baseline."]
    elif beaten:
        lines = [
            f"The evolved loss is significantly better than {_list(beaten)}, "
            f"but not than {_list(rest)}."
        ]
    else:
        lines = ["The evolved loss is not significantly better than any baseline."]
    lines.append("(One-tailed t-tests at 5 %, paired by seed, corrected by Holm's method.)")
    if verdict.mode == "min":
        lines.append(
            f"Smaller {verdict.test_metric} is better, so a difference below 0 is in favor of the "
            "evolved loss."
        )
    reference = means.get(Role.REFERENCE, math.nan)
    gain = winner.mean - reference
    scale, shape = (
        means.get(role, math.nan) - reference for role in (Role.SCALE_CONTROL, Role.SHAPE_CONTROL)
    )
    if not math.isnan(scale):
        lines.append(
            f"Of its difference of {gain:+z.4f} to cross-entropy, {scale:+z.4f} is what "
            "cross-entropy gains from the same scale (a larger or smaller first gradient acts as a "
            f"learning rate), and {gain - scale:+z.4f} is left for the shape."
        )
    if not math.isnan(shape):
        lines.append(
            "With its first gradient made as large as cross-entropy's, it differs by "
            f"{shape:+z.4f}."
        )
    is_share, guessing = is_accuracy(verdict.test_metric, verdict.mode), 1 / n_classes
    limit = GUESSING_FACTOR * guessing if is_share else -math.inf
    if stuck := _counts(
        (s, sum(v < limit for i, v in enumerate(s.values) if i not in s.diverged))
        for s in verdict.samples
    ):
        lines.append(
            f"Trainings that did not get beyond guessing (below {limit:.2f}), which lower the "
            f"means and widen the intervals: {stuck}."
        )
    diverged = _counts((s, len(s.diverged)) for s in verdict.samples)
    if diverged and verdict.divergence is not None:
        is_guessing = is_share and verdict.divergence == guessing
        worst = "the worst that any training here reached"
        meaning = f"guessing among {n_classes} classes" if is_guessing else worst
        lines.append(
            f"Trainings that diverged: {diverged}. Such a training has no {verdict.test_metric}; "
            f"it counts as {verdict.divergence:.4f}, {meaning}, in means, intervals and tests."
        )
    return "\n".join(lines)


def _counts(counts: Iterable[tuple[Sample, int]]) -> str:
    """Samples with their counts of trainings above 0; empty if there is none."""
    return _list([f"{n} of {len(s.values)} of {s.label}" for s, n in counts if n])


def _list(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def evaluation_advice(selection: Selection, recipe: Recipe) -> str:
    """How well evaluations rank the finalists, compared with full trainings, and what to change."""
    budget, worst = recipe.budget, -recipe.fitness.sign * math.inf
    measured = [c for c in selection.finalists if c.evaluation is not None]
    n_seeds = min(len(c.values) for c in measured)  # those of the first round
    rows = [[worst if v is None else v for v in c.values[:n_seeds]] for c in measured]
    correlation = rank_correlation(
        [c.evaluation for c in measured if c.evaluation is not None],
        [sum(row) / n_seeds for row in rows],
    )
    if math.isnan(correlation.low):
        return "Too few candidates that differ were trained fully to say how well evaluations rank."
    # Noise allows no better correlation than that of one full training with another.
    among_full = spearman([row[0] for row in rows], [row[1] for row in rows])
    disagree = correlation.high < GOOD_CORRELATION
    text = (
        f"Rank correlation of evaluations ({budget.evaluation} {budget.unit}) with full trainings "
        f"({budget.full} {budget.unit}) over the best candidates: {correlation}; over all "
        "candidates, which differ more, it is higher. "
    )
    if budget.evaluation == budget.full:
        averaged = ", which the selection averages out" if disagree else ""
        return f"{text}Both are full trainings: the remaining disagreement is seed noise{averaged}."
    if disagree and not among_full > correlation.high:
        return (
            f"{text}Two full trainings of each correlate by {among_full:.2f}, hardly better: the "
            "candidates differ less than the seeds of their trainings. Raising search.repeats may "
            "help."
        )
    if disagree:
        return (
            f"{text}Two full trainings of each correlate by {among_full:.2f}: evaluations favor "
            "other losses than full trainings do. Make budget.evaluation longer."
        )
    if correlation.low >= GOOD_CORRELATION:
        return f"{text}Evaluations are long enough."
    return f"{text}That leaves open whether evaluations are long enough."


def to_markdown(verdict: Verdict) -> str:
    """Table and words."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(verdict)]
    heading = (
        f"Values are {verdict.test_metric}; differences are the evolved loss's minus the row's. "
        f"The evolved loss is {loss_name(verdict)}."
    )
    return "\n".join([heading, "", *lines, "", verdict.text, ""])


def to_csv(verdict: Verdict) -> str:
    """One line per training: loss, index of the seed, value, and whether it diverged.

    The value of a diverged training is `Verdict.divergence`.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["name", "loss", "training", verdict.test_metric, "outcome"])
    for sample in verdict.samples:
        for number, value in enumerate(sample.values):
            outcome = "diverged" if number in sample.diverged else "trained"
            writer.writerow([sample.name, sample.label, number, repr(value), outcome])
    return buffer.getvalue()


def to_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain values; NaN is null."""
    content: dict[str, Any] = _plain(asdict(verdict))
    return content


def from_json(content: dict[str, Any]) -> Verdict:
    """The verdict that `to_json` wrote.

    Raises:
        ValueError: If it is none.
    """
    return TypeAdapter(Verdict).validate_python(content)


def write_verdict(verdict: Verdict, prefix: Path) -> list[Path]:
    """Write ``prefix.md``, ``prefix.csv`` and ``prefix.json``; returns the files."""
    texts = {
        ".md": to_markdown(verdict),
        ".csv": to_csv(verdict),
        ".json": json.dumps(to_json(verdict), indent=2) + "\n",
    }
    files = [prefix.with_name(prefix.name + suffix) for suffix in texts]
    for file, text in zip(files, texts.values(), strict=True):
        write_atomically(file, text)
    return files


def save_verdict(evaluation_study: Study, verdict: Verdict) -> None:
    """Store a verdict in the study of its trainings."""
    evaluation_study.set_user_attr(VERDICT, to_json(verdict))


def load_verdict(evaluation_study: Study) -> Verdict | None:
    """The newest verdict, if there is one.

    Raises:
        StudyError: If another version stored it.
    """
    content = evaluation_study.user_attrs.get(VERDICT)
    try:
        return None if content is None else from_json(content)
    except ValidationError as error:
        name = evaluation_study.user_attrs.get(EVALUATION_OF)
        raise StudyError(
            f"the verdict of study {name!r} is of another version. Make it again with\n"
            f"  taylorglo evaluate {name}\nwhich trains nothing that is trained already."
        ) from error


def loss_name(verdict: Verdict) -> str:
    """The name of a verdict's evolved loss, as the search announces it."""
    return FINAL_MEAN if verdict.trial is None else f"trial {verdict.trial}"


def is_about(verdict: Verdict, selected: SelectedLoss) -> bool:
    """Whether a verdict is about a loss."""
    trial = None if selected.trial is None else selected.trial.number
    return verdict.trial == trial and _plain(verdict.loss) == _plain(selected.loss.settings())


def _plain(content: Any) -> Any:
    """Values as they come back from JSON."""
    return json.loads(json.dumps(content), parse_constant=lambda _: None)


SETTINGS = ("fraction", "label_noise", "length")
"""Settings that can be swept."""

Accuracies = dict[str, dict[float, list[float]]]
"""Test results by label of the loss and value of the setting."""


@dataclass(frozen=True)
class DataSweep:
    """Results of trainings at several values of a setting of the data.

    Attributes:
        accuracies: Of all trainings, with `divergence` for those that diverged.
        diverged: How many diverged, by label of the loss and value of the setting.
        divergence: What those count as; None if none did.
    """

    accuracies: Accuracies
    diverged: dict[str, dict[float, int]]
    divergence: float | None


@dataclass(frozen=True)
class RankAgreement:
    """How well evaluations of one length rank candidates as the longest ones do.

    Attributes:
        length: Length of the shorter evaluation, in the recipe's unit.
        longest: Length of the longest.
        spearman: Rank correlation over the candidates, 1 for the same order.
        p_value: Of the test that there is none.
        n_candidates: Candidates that trained at both lengths.
    """

    length: int
    longest: int
    spearman: float
    p_value: float
    n_candidates: int


@dataclass(frozen=True)
class SavedSweep:
    """The result of a sweep.

    Attributes:
        over: One of `SETTINGS`.
        measured: The metric, or the unit of lengths.
        data: Results over a setting of the data.
        agreements: Results over lengths.
        loss: Name of the evolved loss that was trained; empty for lengths.
    """

    over: str
    measured: str
    data: DataSweep | None = None
    agreements: tuple[RankAgreement, ...] = ()
    loss: str = ""


def save_sweep(evaluation_study: Study, sweep: SavedSweep) -> None:
    """Store a sweep in place of an older one over the same setting."""
    evaluation_study.set_user_attr(SWEEP + sweep.over, _plain(asdict(sweep)))


def load_sweeps(evaluation_study: Study) -> list[SavedSweep]:
    """The newest sweep over each setting."""
    contents = (evaluation_study.user_attrs.get(SWEEP + over) for over in SETTINGS)
    adapter = TypeAdapter(SavedSweep)
    return [adapter.validate_python(content) for content in contents if content is not None]
