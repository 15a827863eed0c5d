"""A verdict in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from optuna_taylorglo.verdict.statistics import Role, Verdict

GUESSING_FACTOR = 1.5
"""An accuracy below this multiple of 1/n counts as guessing."""


def verdict_in_words(verdict: Verdict, n_classes: int) -> str:
    """What a verdict says, for a person.

    Args:
        verdict: The verdict, whatever its text.
        n_classes: Number of classes, which tells what guessing comes to.
    """
    winner, *others = verdict.samples
    by_role = {sample.role: sample for sample in others}
    lines = []
    significant = {c.against: c.p_holm < 0.05 and c.difference > 0 for c in verdict.contrasts}
    baselines = [s for s in others if s.role.is_opponent]
    beaten = [s.label for s in baselines if significant.get(s.name)]
    if baselines and len(beaten) == len(baselines):
        lines.append("The evolved loss is significantly better than every baseline.")
    elif beaten:
        rest = [s.label for s in baselines if not significant.get(s.name)]
        lines.append(
            f"The evolved loss is significantly better than {_list(beaten)}, "
            f"but not than {_list(rest)}."
        )
    else:
        lines.append("The evolved loss is not significantly better than any baseline.")
    lines.append("(One-tailed Welch tests at 5 %, corrected by Holm's method.)")
    reference = by_role.get(Role.REFERENCE)
    if reference is not None and Role.SCALE_CONTROL in by_role:
        gain = winner.mean - reference.mean
        scale = by_role[Role.SCALE_CONTROL].mean - reference.mean
        lines.append(
            f"Of its difference of {gain:+.4f} to cross-entropy, {scale:+.4f} is what "
            "cross-entropy gains from the same scale (a larger or smaller first gradient acts as a "
            f"learning rate), and {gain - scale:+.4f} is left for the shape."
        )
    if reference is not None and Role.SHAPE_CONTROL in by_role:
        shape = by_role[Role.SHAPE_CONTROL].mean - reference.mean
        lines.append(
            f"With its first gradient made as large as cross-entropy's, it differs by {shape:+.4f}."
        )
    guessing = GUESSING_FACTOR / n_classes
    stuck = [(sum(v < guessing for v in s.values), s) for s in verdict.samples]
    if any(count for count, _ in stuck):
        counts = [f"{count} of {len(s.values)} of {s.label}" for count, s in stuck if count]
        lines.append(
            f"Trainings that did not get beyond guessing (below {guessing:.2f}), which the means "
            f"and intervals suffer from: {_list(counts)}."
        )
    failed = [f"{s.failed} of {s.label}" for s in verdict.samples if s.failed]
    if failed:
        lines.append(f"Trainings that failed and are not in the means: {_list(failed)}.")
    return "\n".join(lines)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
