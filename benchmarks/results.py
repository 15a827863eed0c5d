"""The verdicts of several searches of a recipe, pooled.

    taylorglo run RECIPE --seed 0
    taylorglo evaluate RECIPE_seed_0 -o docs/results/verdicts/RECIPE_seed_0      (and so on)
    python benchmarks/results.py docs/results/verdicts

Prints the README's table, the summary of docs/results, and a table for each recipe. Tests are
paired by seed. The trainings of one search share a loss, which a pooled test ignores; so the number
of searches that beat their baselines by themselves is printed too.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path

from optuna_taylorglo.verdict.output import from_json
from optuna_taylorglo.verdict.statistics import Contrast, Role, Sample, Verdict, contrasts, holm

NAMES = {
    "winner": "**evolved loss**",
    "ce": "cross-entropy",
    "ce-tuned": "cross-entropy, learning rate tuned",
    "label-smoothing": "label smoothing",
    "focal": "focal loss",
    "gce": "generalized cross-entropy",
    "poly": "PolyLoss-1",
    "sce": "symmetric cross-entropy",
    "taylor-ce": "Taylor cross-entropy",
    "nce-rce": "normalized plus reverse cross-entropy",
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


def named_samples(verdict: Verdict) -> dict[str, Sample]:
    """The evolved loss and its baselines, by all of their names."""
    return {
        name: sample
        for sample in verdict.samples
        if sample.role == Role.EVOLVED or sample.role.is_baseline
        for name in (sample.name, *sample.also)
    }


def pool(verdicts: dict[int, Verdict]) -> tuple[list[Sample], dict[str, Contrast]]:
    """All trainings of each loss, and contrasts of the evolved loss with the others.

    Contrasts are paired: both losses of a pair have the same seed in the same search.
    """
    by_search = [named_samples(verdict) for verdict in verdicts.values()]
    pooled, raw = [], []
    for name in dict.fromkeys(name for samples in by_search for name in samples):
        there = [samples for samples in by_search if name in samples]
        some = f" ({len(there)} searches)" if len(there) < len(by_search) else ""
        sample = _joined([samples[name] for samples in there], name, NAMES.get(name, name) + some)
        pooled.append(sample)
        if sample.role != Role.EVOLVED:
            evolved = _joined([samples["winner"] for samples in there], "winner", "")
            raw += contrasts(evolved, [sample])
    corrected = holm([contrast.p_value for contrast in raw])
    return pooled, {
        contrast.against: replace(contrast, p_holm=p)
        for contrast, p in zip(raw, corrected, strict=True)
    }


def _joined(samples: list[Sample], name: str, label: str) -> Sample:
    values = tuple(value for sample in samples for value in sample.values)
    return Sample(name, label, samples[0].role, values)


def beaten_in(verdicts: dict[int, Verdict], name: str) -> int:
    """In how many searches the evolved loss beats a baseline by the search's own verdict."""
    return sum(
        name in (samples := named_samples(verdict)) and verdict.beats(samples[name].name)
        for verdict in verdicts.values()
    )


def beats_all_in(verdicts: dict[int, Verdict]) -> int:
    """In how many searches the evolved loss beats every baseline by the search's own verdict."""
    return sum(
        all(verdict.beats(s.name) for s in verdict.samples if s.role.is_baseline)
        for verdict in verdicts.values()
    )


def print_summary(found: dict[str, dict[int, Verdict]]) -> None:
    """Print a row for each recipe."""
    print(
        "| task | searches | evolved loss | best standard loss, same budget | label smoothing | "
        "cross-entropy, tuned | lead over the best standard loss (95 % interval), p | beats every "
        "baseline in |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for recipe, verdicts in in_order(found).items():
        pooled, against = pool(verdicts)
        means = {sample.name: sample.mean for sample in pooled}
        shown = [means[n] for n in ("winner", "best-standard", "label-smoothing", "ce-tuned")]
        cells = [f"**{m:.3f}**" if m == max(shown) else f"{m:.3f}" for m in shown]
        lead = against["best-standard"]
        cells += [
            f"{lead.difference:+.4f} ({lead.low:+.4f} to {lead.high:+.4f}), p = {lead.p_holm:.2g}",
            f"{beats_all_in(verdicts)} of {len(verdicts)}",
        ]
        mark = " *" if recipe in MADE_THE_LIBRARY else ""
        print(f"| `{recipe}`{mark} | {len(verdicts)} | {' | '.join(cells)} |")


TASKS = {
    "mnist_mlp_wrong_labels": "MNIST (1,000 images), 36 % of labels wrong",
    "mnist_basic_cnn_wrong_labels": "the same, Basic CNN",
    "cifar10_cnn_wrong_labels": "CIFAR-10 (5,000 images), 36 % wrong, small CNN",
    "mnist_mlp_confused_labels": "MNIST (1,000 images), 35 % confused",
    "fashion_mnist_mlp_confused_labels": "Fashion-MNIST (2,000 images), 35 % confused",
    "fashion_mnist_mlp_few_images": "Fashion-MNIST (2,000 images), labels right",
    "mnist_mlp_few_images": "MNIST (1,000 images), labels right",
    "digits_mlp": "Digits, labels right",
    "digits_mlp_imbalanced": "Digits, rare classes",
    "fashion_mnist_mlp_imbalanced": "Fashion-MNIST, rare classes",
    "digits_mlp_wrong_labels": "Digits, 36 % of labels wrong",
    "digits_mlp_confused_labels": "Digits, 35 % confused",
    "fashion_mnist_mlp_wrong_labels": "Fashion-MNIST (2,000 images), 36 % wrong",
}
"""What the README calls the tasks, in its order."""

MADE_THE_LIBRARY = {
    "digits_mlp_wrong_labels",
    "digits_mlp_confused_labels",
    "fashion_mnist_mlp_wrong_labels",
}
"""Tasks that the loss was found on with which searches begin."""


def in_order(found: dict[str, dict[int, Verdict]]) -> dict[str, dict[int, Verdict]]:
    """The verdicts in the order of `TASKS`."""
    return {recipe: found[recipe] for recipe in TASKS if recipe in found}


def print_brief(found: dict[str, dict[int, Verdict]]) -> None:
    """Print the README's table."""
    print(
        "| task | cross-entropy, tuned | best standard loss, same budget | **evolved loss** | "
        "lead over the standard one, points (95 %) | searches that beat every baseline |"
    )
    print("|---|---|---|---|---|---|")
    for recipe, verdicts in in_order(found).items():
        pooled, against = pool(verdicts)
        means = {sample.name: 100 * sample.mean for sample in pooled}
        lead = against["best-standard"]
        ends = (100 * value for value in (lead.difference, lead.low, lead.high))
        cells = [f"{means[name]:.1f}" for name in ("ce-tuned", "best-standard", "winner")]
        best = 2 if lead.low > 0 else 1 if lead.high < 0 else None
        if best is not None:
            cells[best] = f"**{cells[best]}**"
        cells += ["{:+.1f} ({:+.1f} to {:+.1f})".format(*ends)]
        cells += [f"{beats_all_in(verdicts)} of {len(verdicts)}"]
        mark = " *" if recipe in MADE_THE_LIBRARY else ""
        print(f"| [{TASKS[recipe]}](studies/{recipe}.yaml){mark} | {' | '.join(cells)} |")


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
            f"{samples[sample.name].mean:.4f}"
            for samples in map(named_samples, verdicts.values())
            if sample.name in samples
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
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of verdict files")
    found = read_verdicts(parser.parse_args().folder)
    print_brief(found)
    print_summary(found)
    for recipe, verdicts in found.items():
        print_table(recipe, verdicts)


if __name__ == "__main__":
    main()
