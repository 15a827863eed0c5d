"""What sweeps come to, kept with the trainings they rest on: the newest over each setting."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from optuna.study import Study
from pydantic import TypeAdapter, ValidationError

from optuna_taylorglo.attributes import SWEEP

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
class KeptSweep:
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


def keep_sweep(companion: Study, sweep: KeptSweep) -> None:
    """Keep a sweep in place of an older one over the same setting."""
    # By way of JSON: a storage in memory would hand out what no database can keep.
    content = json.loads(json.dumps(asdict(sweep)), parse_constant=lambda _: None)
    companion.set_user_attr(SWEEP + sweep.over, content)


def kept_sweeps(companion: Study) -> list[KeptSweep]:
    """The newest sweep over each setting; those of versions that kept them otherwise are none."""
    attributes = companion.user_attrs
    found = [_read(attributes.get(SWEEP + over)) for over in SETTINGS]
    return [sweep for sweep in found if sweep is not None]


def _read(content: Any) -> KeptSweep | None:
    try:
        return None if content is None else TypeAdapter(KeptSweep).validate_python(content)
    except ValidationError:
        return None
