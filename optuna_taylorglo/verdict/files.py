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
from optuna_taylorglo.search.history import recipe_and_classes, trial_loss
from optuna_taylorglo.verdict.choice import ChosenLoss, chosen_loss, earlier_winner
from optuna_taylorglo.verdict.statistics import Contrast, Sample, Verdict

HEADER = ("loss", "mean", "sd", "n", "failed", "difference", "95 % interval", "p", "p (Holm)", "g")
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
        (label, f"{mean} ({sd})", n if failed == "0" else f"{n}, {failed} failed", both, p_holm)
        for label, mean, sd, n, failed, difference, interval, _, p_holm, _ in rows(verdict)
        for both in [f"{difference} ({interval})" if difference else ""]
    ]


def to_markdown(verdict: Verdict) -> str:
    """Table and words."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(verdict)]
    heading = (
        f"Values are {verdict.test_metric}; differences are the evolved loss's minus the row's."
    )
    return "\n".join([heading, "", *lines, "", verdict.text, ""])


def to_csv(verdict: Verdict) -> str:
    """One line per training: loss, seed's place, value."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["name", "loss", "training", verdict.test_metric])
    for sample in verdict.samples:
        for number, value in enumerate(sample.values):
            writer.writerow([sample.name, sample.label, number, repr(value)])
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
    """The verdict that was kept last, if any.

    Raises:
        StudyError: If it was kept by another version.
    """
    content = companion.user_attrs.get(VERDICT)
    try:
        return None if content is None else from_json(content)
    except ValidationError as error:
        name = companion.user_attrs.get(COMPANION_OF)
        raise StudyError(
            f"the verdict kept for study {name!r} is of another version. Make it anew with\n"
            f"  taylorglo evaluate {name}\nwhich trains nothing that is trained already."
        ) from error


def evaluated_loss(study: Study, companion: Study) -> ChosenLoss:
    """The loss that the kept verdict is about, or the study's winner while there is no verdict.

    Raises:
        StudyError: If no trial is complete.
    """
    verdict, chosen = kept_verdict(companion), chosen_loss(study)
    if verdict is None:
        return chosen
    if verdict.trial is None:
        generations = recipe_and_classes(study)[0].search.generations
        if chosen.trial is None and verdict.generations == generations:
            return chosen
        # The mean of the final distribution, but perhaps of that of a shorter search.
        return earlier_winner(study, verdict.generations) or chosen
    if chosen.trial is not None and chosen.trial.number == verdict.trial:
        return chosen
    # The search was made longer since, or an earlier version chose a winner of its own.
    trial = study.get_trials(deepcopy=False)[verdict.trial]
    return ChosenLoss(trial_loss(study, trial), trial)


def _row(sample: Sample, contrast: Contrast | None) -> tuple[str, ...]:
    own = (
        sample.label,
        f"{sample.mean:.4f}",
        f"{sample.std:.4f}",
        str(len(sample.values)),
        str(sample.failed),
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
