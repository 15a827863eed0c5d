"""A verdict as Markdown, CSV and JSON, and in the study it belongs to."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optuna.study import Study
from pydantic import TypeAdapter, ValidationError

from optuna_taylorglo.attributes import COMPANION_OF, VERDICT
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.files import write_atomically
from optuna_taylorglo.verdict.choice import FINAL_MEAN, ChosenLoss
from optuna_taylorglo.verdict.statistics import Contrast, Sample, Verdict

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


def keep_verdict(companion: Study, verdict: Verdict) -> None:
    """Keep a verdict with the trainings it rests on."""
    companion.set_user_attr(VERDICT, to_json(verdict))


def kept_verdict(companion: Study) -> Verdict | None:
    """The verdict that was kept last, if any; one without a single result is none.

    Raises:
        StudyError: If it was kept by another version.
    """
    content = companion.user_attrs.get(VERDICT)
    try:
        verdict = None if content is None else from_json(content)
        # Earlier versions made verdicts of trainings that had all crashed.
        return verdict if verdict and any(s.values for s in verdict.samples) else None
    except ValidationError as error:
        name = companion.user_attrs.get(COMPANION_OF)
        raise StudyError(
            f"the verdict kept for study {name!r} is of another version. Make it anew with\n"
            f"  taylorglo evaluate {name}\nwhich trains nothing that is trained already."
        ) from error


def loss_name(verdict: Verdict) -> str:
    """The loss that a verdict is about, by the name that a search announces it with."""
    return FINAL_MEAN if verdict.trial is None else f"trial {verdict.trial}"


def is_about(verdict: Verdict, chosen: ChosenLoss) -> bool:
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
