"""A verdict in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from optuna_taylorglo.verdict.divergence import is_accuracy
from optuna_taylorglo.verdict.statistics import Role, Verdict

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
    baselines = [s for s in others if s.role.is_opponent]
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
