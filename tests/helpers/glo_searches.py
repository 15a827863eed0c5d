"""Small GLO searches on the digits, for tests of worker and command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import yaml
from searches import ROOT, results

from optuna_taylorglo.attributes import GENERATION, INDEX, TREE


def small_glo_recipe(path: Path) -> Path:
    """The digits recipe cut down to a few steps and candidates."""
    content = yaml.safe_load((ROOT / "studies" / "digits_mlp_glo.yaml").read_text())
    content["budget"] |= {"evaluation": 60, "full": 60}
    content["early_abort"] = {"unit": "steps", "at": 20, "threshold": 0.11, "attempts": 2}
    content["early_stop"] = {"unit": "steps", "at": 40, "keep": 0.5}
    stage = {"popsize": 4, "n_generations": 2, "sigma": 0.2}
    content["search"]["glo"] = {
        "popsize": 8,
        "n_generations": 3,
        "elite": 2,
        "coefficients": stage,
    }
    content["selection"] = {"candidates": 1}
    path.write_text(yaml.safe_dump(content))
    return path


def candidates(study: optuna.Study) -> dict[tuple[int, int, int], tuple[Any, ...]]:
    """What `results` has, and the trees."""
    trees = {
        (t.user_attrs[GENERATION], t.user_attrs[INDEX]): t.user_attrs[TREE] for t in study.trials
    }
    return {place: (trees[place[:2]], *found) for place, found in results(study).items()}
