"""A verdict in words, as Markdown, CSV and JSON, and in its study."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optuna.study import Study
from pydantic import TypeAdapter, ValidationError

from optuna_taylorglo.attributes import EVALUATION_OF, VERDICT
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.text import counted, write_atomically
from optuna_taylorglo.verdict.selection import SelectedLoss, Selection, loss_name
from optuna_taylorglo.verdict.statistics import (
    Lead,
    Role,
    Sample,
    Standing,
    Verdict,
    is_accuracy,
    rank_correlation,
)

GUESSING_FACTOR = 1.5  # accuracies below this multiple of 1/n count as guessing
GOOD_CORRELATION = 0.7  # below it, evaluations and full trainings count as different orders

HEADER = (
    *("loss", "mean", "sd", "n", "diverged"),
    *("difference", "95 % interval", "p", "p (Holm)", "g"),
)
SUFFIXES = (".md", ".csv", ".json")
SHORT_HEADER = ("loss", "mean (sd)", "n", "difference (95 % interval)", "p (Holm)")


def rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """The verdict as a table under `HEADER`; differences are the evolved loss's minus the row's."""
    table: list[tuple[str, ...]] = []
    contrasts = {c.against: c for c in verdict.contrasts}
    for sample in verdict.samples:
        n_all, n = len(sample.values), len(sample.diverged)
        diverged = f"{n} of {n_all} diverged" if n else "0"
        row = (sample.label, f"{sample.mean:.4f}", f"{sample.std:.4f}", str(n_all), diverged)
        compared: tuple[str, ...] = ("",) * 5
        if (c := contrasts.get(sample.name)) is not None:
            difference = (f"{c.difference:+.4f}", f"{c.low:+.4f} to {c.high:+.4f}")
            compared = (*difference, f"{c.p_value:.2g}", f"{c.p_holm:.2g}", f"{c.effect_size:.2f}")
        table.append(row + compared)
    return table


def short_rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """The table for a terminal, under `SHORT_HEADER`."""
    return [
        (label, f"{mean} ({sd})", n if diverged == "0" else diverged, both, p_holm)
        for label, mean, sd, n, diverged, difference, interval, _, p_holm, _ in rows(verdict)
        for both in [f"{difference} ({interval})" if difference else ""]
    ]


def headline(verdict: Verdict) -> str:
    """Whether the evolved loss is better than each baseline, the hardest first."""
    if not verdict.baselines:
        return "The evolved loss was compared with no baseline."
    hardest, *others = verdict.baselines
    place = "the hardest baseline" if others else "the only baseline"
    standing, lead = verdict.standing(hardest.name), verdict.lead(hardest.name)
    result = f"{_standing_words(standing)} {hardest.label}, {place}"
    if standing == Standing.LEVEL:
        value, interval = format_lead(verdict, lead)
        result += f" (lead {value}, 95 % interval {interval})"
    else:
        if standing == Standing.WORSE:
            lead = Lead(-lead.value, -lead.high, -lead.low)
        value, interval = format_lead(verdict, lead, sign="")
        result += f", by {value} (95 % interval {interval})"
    groups: dict[Standing, list[str]] = {}
    for other in others:
        label = f'"{other.label}"' if ", " in other.label else other.label
        groups.setdefault(verdict.standing(other.name), []).append(label)
    rest = [f"{_standing_words(s)} {_named(labels, len(others))}" for s, labels in groups.items()]
    if rest:
        result += "; it is " + ", and ".join(filter(None, [", ".join(rest[:-1]), rest[-1]]))
    return f"The evolved loss is {result}."


def _standing_words(standing: Standing) -> str:
    return f"{standing} {'with' if standing == Standing.LEVEL else 'than'}"


def _named(labels: list[str], n_all: int) -> str:
    """Baselines by their labels, or by their number if there are many of them."""
    if 1 < len(labels) == n_all:
        return "every other baseline"
    return _list(labels) if len(labels) <= 3 else f"{len(labels)} others"


def format_lead(verdict: Verdict, lead: Lead, *, sign: str = "+") -> tuple[str, str]:
    """A lead and its interval: points for accuracies, differences of the metric otherwise."""
    factor, digits, unit = 1, 4, ""
    if is_accuracy(verdict.test_metric, verdict.mode):
        factor, digits, unit = 100, 1 if lead.high - lead.low > 0.005 else 2, " points"
    value, low, high = (f"{factor * number:{sign}z.{digits}f}" for number in lead)
    return value + unit, f"{low} to {high}"


def verdict_in_words(verdict: Verdict, n_classes: int) -> str:
    """What a verdict says, the headline first; its own text does not matter."""
    winner, *others = verdict.samples
    means = {sample.role: sample.mean for sample in others}
    lines = [
        headline(verdict),
        "(Better: a one-tailed t-test at 5 %, paired by seed, corrected by Holm's method. Worse: "
        "the whole 95 % interval of the paired difference lies on the wrong side. Level: neither.)",
    ]
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
        same = "learning rate"
        if verdict.scale_acts:
            same = "scale (a larger or smaller first gradient acts as a learning rate)"
        lines.append(
            f"Of its difference of {gain:+z.4f} to cross-entropy, {scale:+z.4f} comes with the "
            f"same {same}, and {gain - scale:+z.4f} with the shape."
        )
    if not math.isnan(shape):
        control = "At cross-entropy's learning rate"
        if verdict.scale_acts:
            control = "With its first gradient made as large as cross-entropy's"
        lines.append(f"{control}, its difference to cross-entropy is {shape:+z.4f}.")
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
        meaning = "the worst that any training here reached"
        if is_share and verdict.divergence == guessing:
            meaning = f"guessing among {n_classes} classes"
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
    """How well evaluations rank the finalists, compared with full trainings, and what to change.

    Empty if too few differ to say so.
    """
    budget, worst = recipe.budget, -recipe.fitness.sign * math.inf
    measured = [c for c in selection.finalists if c.evaluation is not None]
    n_seeds = min(len(c.values) for c in measured)  # those of the first round
    rows = [[worst if v is None else v for v in c.values[:n_seeds]] for c in measured]
    r, low, high = rank_correlation(
        [c.evaluation for c in measured if c.evaluation is not None],
        [sum(row) / n_seeds for row in rows],
    )
    if math.isnan(low):
        return ""
    # Noise allows no better correlation than that of one full training with another.
    among_full = rank_correlation([row[0] for row in rows], [row[1] for row in rows]).value
    disagree = high < GOOD_CORRELATION
    if budget.evaluation == budget.full:
        averaged = ", which the selection averages out" if disagree else ""
        advice = f"Both are full trainings: the remaining disagreement is seed noise{averaged}."
    elif disagree and among_full > high:
        advice = (
            f"Two full trainings of each correlate by {among_full:.2f}: evaluations favor other "
            "losses than full trainings do. Make budget.evaluation longer."
        )
    elif disagree:
        advice = (
            f"Two full trainings of each correlate by {among_full:.2f}, hardly better: the "
            "candidates differ less than the seeds of their trainings. Raising search.repeats may "
            "help."
        )
    elif low >= GOOD_CORRELATION:
        advice = "Evaluations are long enough."
    else:
        advice = "That leaves open whether evaluations are long enough."
    short, long = (
        f" ({counted(length, budget.unit)})" if budget.full > 1 else ""
        for length in (budget.evaluation, budget.full)
    )
    return (
        f"Rank correlation of evaluations{short} with full trainings{long} over the best "
        f"candidates: {r:.2f} (95 % interval {low:.2f} to {high:.2f}, n = {len(rows)}); over all "
        f"candidates, which differ more, it is higher. {advice}"
    )


def to_markdown(verdict: Verdict) -> str:
    """Table and words."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(verdict)]
    heading = (
        f"Values are {verdict.test_metric}; differences are the evolved loss's minus the row's. "
        f"The evolved loss is {loss_name(verdict.trial)}."
    )
    return "\n".join([heading, "", *lines, "", verdict.text, ""])


def to_csv(verdict: Verdict) -> str:
    """One line per training: loss, index of the seed, value, and whether it diverged."""
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


def _plain(content: Any) -> Any:
    """Values as they come back from JSON."""
    return json.loads(json.dumps(content), parse_constant=lambda _: None)


def from_json(content: Any) -> Verdict:
    """The verdict that `to_json` wrote, or a `ValueError`."""
    return TypeAdapter(Verdict).validate_python(content)


def write_verdict(verdict: Verdict, prefix: Path) -> list[Path]:
    """Write ``prefix.md``, ``prefix.csv`` and ``prefix.json``; returns the files."""
    texts = to_markdown(verdict), to_csv(verdict), json.dumps(to_json(verdict), indent=2) + "\n"
    files = [prefix.with_name(prefix.name + suffix) for suffix in SUFFIXES]
    for file, text in zip(files, texts, strict=True):
        write_atomically(file, text)
    return files


def save_verdict(evaluation_study: Study, verdict: Verdict) -> None:
    """Store a verdict in the study of its trainings."""
    evaluation_study.set_user_attr(VERDICT, to_json(verdict))


def load_verdict(evaluation_study: Study) -> Verdict | None:
    """The newest verdict, if there is one."""
    content = evaluation_study.user_attrs.get(VERDICT)
    try:
        return None if content is None else from_json(content)
    except ValidationError as error:
        name = evaluation_study.user_attrs.get(EVALUATION_OF)
        raise StudyError(
            f"the verdict of study {name!r} is of another version. Make it again with\n"
            f"  taylorglo evaluate {name}\nwhich trains nothing that is trained already."
        ) from error


def about_another(verdict: Verdict, selected: SelectedLoss) -> str:
    """Why the loss of the verdict is not the selected one; empty if it is."""
    before, now = loss_name(verdict.trial), selected.name
    if before == now and _plain(verdict.loss) == _plain(selected.loss.settings()):
        return ""
    difference = f"{before}, not about the winner, {now}"
    if before == now:
        difference = f"{before} as it was before the search went on"
    return f"The verdict is about {difference}: it was made when that was the winner."
