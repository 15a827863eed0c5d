"""One training for a verdict or a sweep, as plain values that a database can hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from optuna.trial import FrozenTrial, Trial
from pydantic import TypeAdapter

from optuna_taylorglo.attributes import TASK
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage, stage_seed
from optuna_taylorglo.verdict.compared_losses import ComparedLoss

Do = Callable[[Sequence["Task"]], list[float | None]]
"""Does tasks and returns their values in order, None for those that diverged.

Of one that ends with an exception there is no result: the exception is raised."""

Results = Callable[[Sequence["Task"]], list[float | None] | None]
"""Values of tasks in order, None for those that diverged; None instead while any is open."""


@dataclass(frozen=True)
class Task:
    """One training.

    Attributes:
        loss: The loss and how it is trained.
        seed: Decides weights, order of data and augmentation.
        length: How long, in `unit`.
        unit: "steps" or "epochs".
        on_test_set: Whether the test set judges, or the recipe's fitness.
        data_args: Arguments of the data module in place of the recipe's.
        keep_network: Whether the trained network is kept as an artifact.
    """

    loss: ComparedLoss
    seed: int
    length: int
    unit: str
    on_test_set: bool
    data_args: dict[str, Any] = field(default_factory=dict)
    keep_network: bool = False

    @property
    def key(self) -> str:
        """A hash of all that the result depends on; it never changes, or trainings were lost."""
        content = asdict(self)
        del content["keep_network"]
        # Earlier versions called it a contender.
        loss = content["contender"] = content.pop("loss")
        for name in ("name", "label", "role"):
            del loss[name]
        if loss["learning_rate_factor"] is None:  # earlier versions did not know it
            del loss["learning_rate_factor"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, trial: Trial | FrozenTrial) -> Task:
        """The task that a trial of a companion study stands for.

        Raises:
            ValueError: If the trial holds no task.
        """
        content = dict(trial.user_attrs[TASK])
        if "contender" in content:
            content["loss"] = content.pop("contender")
        return TypeAdapter(cls).validate_python(content)


def stage_task(
    recipe: Recipe,
    loss: ComparedLoss,
    stage: Stage,
    number: int,
    *,
    length: int | None = None,
    **fields: Any,
) -> Task:
    """Training `number` of a stage, judged on validation.

    Args:
        recipe: The study's recipe.
        loss: The loss.
        stage: The stage; losses with the same number in it start from the same weights.
        number: From 0.
        length: In the recipe's unit; None for a full training.
        fields: Further fields of `Task`.
    """
    return Task(
        loss=loss,
        seed=stage_seed(recipe.search.seed, stage, number),
        length=recipe.budget.full if length is None else length,
        unit=recipe.budget.unit,
        **{"on_test_set": False} | fields,
    )
