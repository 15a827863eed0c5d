"""Several searches of one recipe together: what their verdicts say, pooled.

    taylorglo run RECIPE --seed 0
    taylorglo evaluate RECIPE_seed_0 -o docs/results/verdicts/RECIPE_seed_0      (and so on)
    python benchmarks/results.py docs/results/verdicts

For each recipe a table: test accuracy of every loss over all searches, the mean of each search, and
the pooled contrast of the evolved losses with the row. Opponents were tuned anew for each search,
with its seed. The trainings of one search share a loss, so a pooled test treats as independent what
is not quite; whether each search by itself beats its opponents stands beside it.
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
    """All trainings of each loss, and contrasts with the opponents that every search had."""
    by_name: dict[str, list[Sample]] = {}
    for verdict in verdicts.values():
        for sample in verdict.samples:
            if sample.role == Role.EVOLVED or sample.role.is_opponent:
                by_name.setdefault(sample.name, []).append(sample)
    pooled = [
        Sample(
            name,
            NAMES.get(name, name),
            samples[0].role,
            tuple(value for sample in samples for value in sample.values),
            sum(sample.failed for sample in samples),
        )
        for name, samples in by_name.items()
        if len(samples) == len(verdicts)
    ]
    return pooled, {c.against: c for c in contrasts(pooled[0], pooled[1:])}


def beaten_in(verdicts: dict[int, Verdict], name: str) -> int:
    """In how many searches the evolved loss beats an opponent by the search's own verdict."""
    all_contrasts = [c for v in verdicts.values() for c in v.contrasts if c.against == name]
    return sum(c.p_holm < 0.05 and c.difference > 0 for c in all_contrasts)


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
                f"{beaten_in(verdicts, sample.name)} of {n}",
            ]
        )
        print("| " + " | ".join(row) + " |")


def main() -> None:
    """Print a table for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of verdict files")
    for recipe, verdicts in read_verdicts(parser.parse_args().folder).items():
        print_table(recipe, verdicts)


if __name__ == "__main__":
    main()
