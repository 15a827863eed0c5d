"""Several searches of one recipe together: what their verdicts say, pooled.

    taylorglo run RECIPE --seed 0
    taylorglo evaluate RECIPE_seed_0 -o docs/results/verdicts/RECIPE_seed_0      (and so on)
    python benchmarks/results.py docs/results/verdicts

A summary, and for each recipe a table: test accuracy of every loss over all searches, the mean of
each search, and the pooled contrast of the evolved losses with the row. Opponents were tuned anew
for each search, with its seed. The trainings of one search share a loss, so a pooled test treats as
independent what is not quite; whether each search by itself beats its opponents stands beside it.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path

from optuna_taylorglo.verdict.files import from_json
from optuna_taylorglo.verdict.statistics import Contrast, Role, Sample, Verdict, contrasts

NAMES = {
    "winner": "**evolved loss**",
    "ce": "cross-entropy",
    "ce-tuned": "cross-entropy, learning rate tuned",
    "label-smoothing": "label smoothing",
    "focal": "focal loss",
    "gce": "generalised cross-entropy",
    "poly": "PolyLoss-1",
    "sce": "symmetric cross-entropy",
    "taylor-ce": "Taylor cross-entropy",
    "nce-rce": "normalised plus reverse cross-entropy",
    "best-standard": "**best standard loss, same budget**",
}


def read_verdicts(folder: Path) -> dict[str, dict[int, Verdict]]:
    """Verdicts by recipe and search seed, from files named RECIPE_seed_N.json."""
    found: dict[str, dict[int, Verdict]] = {}
    for file in sorted(folder.glob("*.json")):
        match = re.fullmatch(r"(.+)_seed_(\d+)", file.stem)
        if match:
            recipe, seed = match[1], int(match[2])
            found.setdefault(recipe, {})[seed] = from_json(json.loads(file.read_text()))
    return {recipe: dict(sorted(verdicts.items())) for recipe, verdicts in found.items()}


def pool(verdicts: dict[int, Verdict]) -> tuple[list[Sample], dict[str, Contrast]]:
    """All trainings of each loss, and contrasts of the evolved loss with the others."""
    by_name: dict[str, list[Sample]] = {}
    for verdict in verdicts.values():
        for sample in verdict.samples:
            if sample.role == Role.EVOLVED or sample.role.is_opponent:
                by_name.setdefault(sample.name, []).append(sample)
    pooled = [
        Sample(
            name,
            NAMES.get(name, name)
            + (f" ({len(samples)} searches)" if len(samples) < len(verdicts) else ""),
            samples[0].role,
            tuple(value for sample in samples for value in sample.values),
            sum(sample.failed for sample in samples),
        )
        for name, samples in by_name.items()
    ]
    return pooled, {c.against: c for c in contrasts(pooled[0], pooled[1:])}


def beaten_in(verdicts: dict[int, Verdict], name: str) -> int:
    """In how many searches the evolved loss beats an opponent by the search's own verdict."""
    all_contrasts = [c for v in verdicts.values() for c in v.contrasts if c.against == name]
    return sum(c.p_holm < 0.05 and c.difference > 0 for c in all_contrasts)


def beats_all_in(verdicts: dict[int, Verdict]) -> int:
    """In how many searches the evolved loss beats every opponent by the search's own verdict."""
    count = 0
    for verdict in verdicts.values():
        opponents = {s.name for s in verdict.samples if s.role.is_opponent}
        won = {c.against for c in verdict.contrasts if c.p_holm < 0.05 and c.difference > 0}
        count += opponents <= won
    return count


def print_summary(found: dict[str, dict[int, Verdict]]) -> None:
    """Print a row for each recipe: the evolved loss beside the opponents that matter."""
    print(
        "| task | searches | evolved loss | best standard loss, same budget | label smoothing | "
        "cross-entropy, tuned | lead over the best standard loss (95 % interval), p | beats every "
        "opponent in |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for recipe, verdicts in found.items():
        pooled, against = pool(verdicts)
        means = {sample.name: sample.mean for sample in pooled}
        shown = [means[n] for n in ("winner", "best-standard", "label-smoothing", "ce-tuned")]
        cells = [f"**{m:.3f}**" if m == max(shown) else f"{m:.3f}" for m in shown]
        lead = against["best-standard"]
        cells += [
            f"{lead.difference:+.4f} ({lead.low:+.4f} to {lead.high:+.4f}), p = {lead.p_holm:.2g}",
            f"{beats_all_in(verdicts)} of {len(verdicts)}",
        ]
        print(f"| `{recipe}` | {len(verdicts)} | {' | '.join(cells)} |")


def print_table(recipe: str, verdicts: dict[int, Verdict]) -> None:
    """Print the table of one recipe."""
    pooled, against = pool(verdicts)
    n = len(verdicts)
    print(f"\n`{recipe}`, {n} searches (seeds {', '.join(map(str, verdicts))}):\n")
    print(
        "| loss | test accuracy (sd), all trainings | mean of each search | evolved loss minus it "
        "(95 % interval) | p (Holm) | beaten in |"
    )
    print("|---|---|---|---|---|---|")
    for sample in pooled:
        means = [
            f"{statistics.fmean(s.values):.4f}"
            for v in verdicts.values()
            for s in v.samples
            if s.name == sample.name
        ]
        row = [sample.label, f"{sample.mean:.4f} ({sample.std:.4f})", ", ".join(means)]
        contrast = against.get(sample.name)
        row += (
            ["", "", ""]
            if contrast is None
            else [
                f"{contrast.difference:+.4f} ({contrast.low:+.4f} to {contrast.high:+.4f})",
                f"{contrast.p_holm:.2g}",
                f"{beaten_in(verdicts, sample.name)} of {len(means)}",
            ]
        )
        print("| " + " | ".join(row) + " |")


def main() -> None:
    """Print a summary, and a table for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of verdict files")
    found = read_verdicts(parser.parse_args().folder)
    print_summary(found)
    for recipe, verdicts in found.items():
        print_table(recipe, verdicts)


if __name__ == "__main__":
    main()
