"""A verdict in sentences, as Markdown, CSV and JSON, and in its study."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optuna.study import Study
from pydantic import TypeAdapter, ValidationError

from optuna_taylorglo.attributes import EVALUATION_OF, SWEEP, VERDICT
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.files import write_atomically
from optuna_taylorglo.verdict.statistics import Contrast, Role, Sample, Verdict, is_accuracy
from optuna_taylorglo.verdict.winner import FINAL_MEAN, SelectedLoss

GUESSING_FACTOR = 1.5
"""An accuracy below this multiple of 1/n counts as guessing."""


_TESTS = {
    "paired": "(One-tailed t-tests at 5 %, paired by seed, corrected by Holm's method.)",
    "welch": "(One-tailed Welch tests at 5 %, corrected by Holm's method.)",
}


def verdict_in_words(verdict: Verdict, n_classes: int) -> str:
    """What a verdict says, for a person.

    Args:
        verdict: The verdict, whatever its text.
        n_classes: Number of classes, which tells what guessing comes to.
    """
    winner, *others = verdict.samples
    by_role = {sample.role: sample for sample in others}
    lines = []
    baselines = [s for s in others if s.role.is_baseline]
    beaten = [s.label for s in baselines if verdict.beats(s.name)]
    if baselines and len(beaten) == len(baselines):
        lines.append("The evolved loss is significantly better than every baseline.")
    elif beaten:
        rest = [s.label for s in baselines if not verdict.beats(s.name)]
        lines.append(
            f"The evolved loss is significantly better than {_list(beaten)}, "
            f"but not than {_list(rest)}."
        )
    else:
        lines.append("The evolved loss is not significantly better than any baseline.")
    lines.append(_TESTS[verdict.test])
    if verdict.mode == "min":
        lines.append(
            f"Smaller {verdict.test_metric} is better, so a difference below 0 is in favor of the "
            "evolved loss."
        )
    reference = by_role.get(Role.REFERENCE)
    if reference is not None and Role.SCALE_CONTROL in by_role:
        gain = winner.mean - reference.mean
        scale = by_role[Role.SCALE_CONTROL].mean - reference.mean
        lines.append(
            f"Of its difference of {gain:+z.4f} to cross-entropy, {scale:+z.4f} is what "
            "cross-entropy gains from the same scale (a larger or smaller first gradient acts as a "
            f"learning rate), and {gain - scale:+z.4f} is left for the shape."
        )
    if reference is not None and Role.SHAPE_CONTROL in by_role:
        shape = by_role[Role.SHAPE_CONTROL].mean - reference.mean
        lines.append(
            "With its first gradient made as large as cross-entropy's, it differs by "
            f"{shape:+z.4f}."
        )
    if is_accuracy(verdict.test_metric, verdict.mode):
        lines += _guessing(verdict, GUESSING_FACTOR / n_classes)
    lines += _diverged(verdict, n_classes)
    failed = [f"{s.failed} of {s.label}" for s in verdict.samples if s.failed]
    if failed:
        lines.append(f"Trainings that failed and are not in the means: {_list(failed)}.")
    return "\n".join(lines)


def _guessing(verdict: Verdict, guessing: float) -> list[str]:
    counts = [
        (sum(v < guessing for i, v in enumerate(s.values) if i not in s.diverged), s)
        for s in verdict.samples
    ]
    stuck = [f"{count} of {len(s.values)} of {s.label}" for count, s in counts if count]
    if not stuck:
        return []
    return [
        f"Trainings that did not get beyond guessing (below {guessing:.2f}), which the means "
        f"and intervals suffer from: {_list(stuck)}."
    ]


def _diverged(verdict: Verdict, n_classes: int) -> list[str]:
    counts = [
        f"{len(s.diverged)} of {len(s.values)} of {s.label}" for s in verdict.samples if s.diverged
    ]
    if not counts or verdict.divergence is None:
        return []
    guessing = (
        is_accuracy(verdict.test_metric, verdict.mode) and verdict.divergence == 1 / n_classes
    )
    meaning = (
        f"guessing among {n_classes} classes"
        if guessing
        else "the worst that any training here reached"
    )
    return [
        f"Trainings that diverged: {_list(counts)}. Such a training has no {verdict.test_metric}; "
        f"it counts as {verdict.divergence:.4f}, {meaning}, in means, intervals and tests."
    ]


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


SETTINGS = ("fraction", "label_noise", "length")
"""What can be swept over."""


Accuracies = dict[str, dict[float, list[float]]]
"""Test accuracies by label of the loss and value of the setting."""


@dataclass(frozen=True)
class DataSweep:
    """What trainings at several values of a setting came to.

    Attributes:
        accuracies: Of all trainings; of one that diverged what it counts as.
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
    """What a sweep came to.

    Attributes:
        over: One of `SETTINGS`.
        measured: The metric, or the unit of lengths.
        data: Of a setting of the data, what the trainings came to.
        agreements: Of lengths, how well each ranks candidates.
        loss: Name of the evolved loss that was trained; empty for lengths.
    """

    over: str
    measured: str
    data: DataSweep | None = None
    agreements: tuple[RankAgreement, ...] = ()
    loss: str = ""


def save_sweep(evaluation_study: Study, sweep: SavedSweep) -> None:
    """Keep a sweep in place of an older one over the same setting."""
    # By way of JSON: a storage in memory would hand out what no database can keep.
    content = json.loads(json.dumps(asdict(sweep)), parse_constant=lambda _: None)
    evaluation_study.set_user_attr(SWEEP + sweep.over, content)


def load_sweeps(evaluation_study: Study) -> list[SavedSweep]:
    """The newest sweep over each setting; those of versions that kept them otherwise are none."""
    attributes = evaluation_study.user_attrs
    found = [_read(attributes.get(SWEEP + over)) for over in SETTINGS]
    return [sweep for sweep in found if sweep is not None]


def _read(content: Any) -> SavedSweep | None:
    try:
        return None if content is None else TypeAdapter(SavedSweep).validate_python(content)
    except ValidationError:
        return None


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
    """The verdict as a table, a row for each sample, under `HEADER`.

    Differences are the evolved loss's mean minus the row's.
    """
    by_name = {contrast.against: contrast for contrast in verdict.contrasts}
    return [_row(sample, by_name.get(sample.name)) for sample in verdict.samples]


def short_rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """The same for a terminal, under `SHORT_HEADER`."""
    return [
        (label, f"{mean} ({sd})", n if diverged == "0" else diverged, both, p_holm)
        for label, mean, sd, n, diverged, difference, interval, _, p_holm, _ in rows(verdict)
        for both in [f"{difference} ({interval})" if difference else ""]
    ]


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
    """One line per training: loss, seed's place, value, and whether it diverged.

    A training that diverged has what it counts as, `Verdict.divergence`.
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
    """Everything, as plain values; numbers that do not exist are null."""
    content: dict[str, Any] = json.loads(json.dumps(asdict(verdict)), parse_constant=lambda _: None)
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
    files = []
    for suffix, text in texts.items():
        file = prefix.with_name(prefix.name + suffix)
        write_atomically(file, text)
        files.append(file)
    return files


def save_verdict(evaluation_study: Study, verdict: Verdict) -> None:
    """Keep a verdict with the trainings it rests on."""
    evaluation_study.set_user_attr(VERDICT, to_json(verdict))


def load_verdict(evaluation_study: Study) -> Verdict | None:
    """The verdict that was kept last, if any; one without a single result is none.

    Raises:
        StudyError: If it was kept by another version.
    """
    content = evaluation_study.user_attrs.get(VERDICT)
    try:
        verdict = None if content is None else from_json(content)
        # Earlier versions made verdicts of trainings that had all crashed.
        return verdict if verdict and any(s.values for s in verdict.samples) else None
    except ValidationError as error:
        name = evaluation_study.user_attrs.get(EVALUATION_OF)
        raise StudyError(
            f"the verdict kept for study {name!r} is of another version. Make it anew with\n"
            f"  taylorglo evaluate {name}\nwhich trains nothing that is trained already."
        ) from error


def loss_name(verdict: Verdict) -> str:
    """The loss that a verdict is about, by the name that a search announces it with."""
    return FINAL_MEAN if verdict.trial is None else f"trial {verdict.trial}"


def is_about(verdict: Verdict, chosen: SelectedLoss) -> bool:
    """Whether a verdict is about a loss, as far as it says; earlier versions did not always."""
    trial = None if chosen.trial is None else chosen.trial.number
    if verdict.loss is None:
        return verdict.trial in (None, trial)
    # As JSON, because it may come from there.
    settings = [json.dumps(s, sort_keys=True) for s in (verdict.loss, chosen.loss.settings())]
    return verdict.trial == trial and settings[0] == settings[1]


def _not_trained(sample: Sample) -> str:
    if sample.failed:  # of an earlier version, which left them out
        return f"{len(sample.values)}, {sample.failed} failed"
    if sample.diverged:
        return f"{len(sample.diverged)} of {len(sample.values)} diverged"
    return "0"


def _row(sample: Sample, contrast: Contrast | None) -> tuple[str, ...]:
    own = (
        sample.label,
        f"{sample.mean:.4f}",
        f"{sample.std:.4f}",
        str(len(sample.values)),
        _not_trained(sample),
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
