"""Every stream of random numbers of a search and of its verdict.

A seed is a function of the search's seed and of a place only, so results do not depend on workers,
on their order or on crashes. Random numbers inside a training follow from the training's seed;
which examples validate is fixed for each data set, in `lightning_modules.data.splits`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import numpy as np

SeedPolicy = Literal["independent", "common"]

# The first coordinate of every place: streams never coincide, whatever the other coordinates.
_CANDIDATES = 0
_TRAININGS = 1
_TREES = 2


class Stage(IntEnum):
    """Trainings outside the search, numbered beyond any generation. Seeds depend on the numbers."""

    TUNE = 2**20 + 1
    TEST = 2**20 + 2
    SELECTION = 2**20 + 3
    STANDARD = 2**20 + 5
    STANDARD_SELECTION = 2**20 + 6
    SWEEP = 2**20 + 10


def candidate_seed(seed: int, generation: int, index: int) -> int:
    """Seed of the draw of candidate `index` of a generation."""
    return _derive(seed, _CANDIDATES, generation, index)


def tree_seed(seed: int, generation: int, index: int) -> int:
    """Seed of the breeding of tree `index` of a generation."""
    return _derive(seed, _TREES, generation, index)


def training_seed(
    seed: int,
    generation: int,
    index: int,
    attempt: int,
    *,
    repeat: int = 0,
    policy: SeedPolicy = "independent",
) -> int:
    """Seed of one training of a candidate, in [0, 2³²); aborted attempts count, requeued do not.

    ``"common"`` gives all candidates of a generation the same (common random numbers).
    """
    # One more than the index, so that no candidate shares its seed with the common policy.
    place = 0 if policy == "common" else index + 1
    return _derive(seed, _TRAININGS, generation, place, attempt, repeat)


def stage_seed(seed: int, stage: Stage, number: int) -> int:
    """Seed of training `number` of a stage; all losses of a stage start from the same weights."""
    return training_seed(seed, stage, number, 0)


def _derive(seed: int, *coordinates: int) -> int:
    # As a spawn key: plain entropy is padded with zeros, so [1, 2] and [1, 2, 0] would be equal.
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=coordinates)
    return int(sequence.generate_state(1)[0])
