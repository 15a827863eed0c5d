"""Trainings for a verdict or a sweep, as plain values that a database can hold."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

from optuna.trial import FrozenTrial, Trial
from pydantic import TypeAdapter
from torch import Tensor, nn

from optuna_taylorglo.attributes import TASK
from optuna_taylorglo.errors import OperationError
from optuna_taylorglo.losses.canonical import first_gradient, normalize_scale
from optuna_taylorglo.losses.standard import (
    FocalLoss,
    GeneralizedCrossEntropyLoss,
    NormalizedReverseCrossEntropyLoss,
    PolyLoss,
    SymmetricCrossEntropyLoss,
    TaylorCrossEntropyLoss,
)
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree_loss import (
    BaikalCMALoss,
    BaikalLoss,
    EvolvedLoss,
    TreeLoss,
)
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage, stage_seed
from optuna_taylorglo.verdict.families import FAMILIES
from optuna_taylorglo.verdict.statistics import Role, is_accuracy

KINDS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "taylor": TaylorLoss,
        "tree": TreeLoss,
        "cross-entropy": nn.CrossEntropyLoss,
        "baikal": BaikalLoss,
        "baikal-cma": BaikalCMALoss,
        "focal": FocalLoss,
        "gce": GeneralizedCrossEntropyLoss,
        "poly": PolyLoss,
        "sce": SymmetricCrossEntropyLoss,
        "taylor-ce": TaylorCrossEntropyLoss,
        "nce-rce": NormalizedReverseCrossEntropyLoss,
    }
)
"""The losses that a verdict knows."""


@dataclass(frozen=True)
class ComparedLoss:
    """A loss and how it is trained.

    Attributes:
        name: Short name, as on the command line and in files.
        label: Name in tables.
        kind: One of `KINDS`.
        role: Why the loss is part of the comparison.
        settings: Arguments of the loss, as plain JSON.
        scale: Factor on the loss.
        learning_rate: In place of the recipe's; None for the recipe's.
        learning_rate_factor: On the learning rates of a module's own optimizers; None for 1.
    """

    name: str
    label: str
    kind: str
    role: Role = Role.BASELINE
    settings: dict[str, Any] = field(default_factory=dict)
    scale: float = 1.0
    learning_rate: float | None = None
    learning_rate_factor: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}.")

    def criterion(self, conventions: Mapping[str, Any] = MappingProxyType({})) -> nn.Module:
        """The loss itself.

        Args:
            conventions: Arguments that the losses of the study share; `settings` override them.
        """
        built = KINDS[self.kind](**{**conventions, **self.settings})
        return built if self.scale == 1 else ScaledLoss(built, self.scale)


class ScaledLoss(nn.Module):
    """A loss times a factor.

    Args:
        loss: The loss.
        factor: The factor.
    """

    def __init__(self, loss: nn.Module, factor: float) -> None:
        super().__init__()
        self.loss = loss
        self.factor = factor

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """``factor`` times the loss of the batch."""
        return cast(Tensor, self.loss(logits, target)) * self.factor

    @property
    def progress(self) -> Tensor | None:
        """The loss's own progress buffer, if it has one."""
        return getattr(self.loss, "progress", None)


def compared_evolved_loss(name: str, label: str, role: Role, loss: EvolvedLoss) -> ComparedLoss:
    """A Taylor loss or a tree to compare."""
    kind = "tree" if isinstance(loss, TreeLoss) else "taylor"
    return ComparedLoss(name, label, kind, role, loss.settings())


def cross_entropy(name: str = "ce", label: str = "cross-entropy", **changes: Any) -> ComparedLoss:
    """Cross-entropy to compare; `changes` are further fields of `ComparedLoss`."""
    return ComparedLoss(name, label, "cross-entropy", **changes)


def scale_controls(loss: EvolvedLoss, n_classes: int) -> list[ComparedLoss]:
    """Two losses that tell scale from shape: a loss's scale acts as a learning rate.

    Args:
        loss: The evolved loss.
        n_classes: Number of classes.

    Returns:
        The loss scaled to cross-entropy's first gradient, and cross-entropy scaled to the loss's;
        nothing for a loss that has no scale relative to cross-entropy.
    """
    if isinstance(loss, TreeLoss):
        scale = loss.first_gradient(n_classes)
    elif "z" in loss.form.variables:
        return []
    else:
        scale = first_gradient(
            loss.theta,
            n_classes,
            loss.form,
            anchor=loss.anchor,
            class_reduction=loss.class_reduction,
        )
    if not 0 < scale < math.inf:
        return []
    settings: dict[str, Any]
    if isinstance(loss, TreeLoss):
        first, *others = loss.coefficients
        settings = {"coefficients": [first / scale, *others]}
    elif loss.anchor is not None:
        settings = {"log_scale": loss.anchor.log_scale - math.log(scale)}
    else:
        reduction = loss.class_reduction
        theta = normalize_scale(loss.theta, n_classes, loss.form, class_reduction=reduction)
        settings = {"theta": list(theta)}
    normalized = compared_evolved_loss(
        "winner-normalized", "evolved loss, scale of cross-entropy", Role.SHAPE_CONTROL, loss
    )
    label = f"cross-entropy times {scale:.3g}"
    return [
        replace(normalized, settings=normalized.settings | settings),
        cross_entropy("ce-scaled", label, role=Role.SCALE_CONTROL, scale=scale),
    ]


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
        save_network: Whether the trained network is saved as an artifact.
    """

    loss: ComparedLoss
    seed: int
    length: int
    unit: str
    on_test_set: bool
    data_args: dict[str, Any] = field(default_factory=dict)
    save_network: bool = False

    @property
    def key(self) -> str:
        """A hash of all that the result depends on; with another one, all is trained again."""
        content = asdict(self)
        del content["save_network"]
        for name in ("name", "label", "role"):
            del content["loss"][name]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, trial: Trial | FrozenTrial) -> Task:
        """The task of a trial of an evaluation study."""
        return TypeAdapter(cls).validate_python(trial.user_attrs[TASK])


Runner = Callable[[Sequence[Task]], list[float | None]]
"""Gets tasks done: their values in order, None for those that diverged.

A task that ends with an exception has no result, so the exception is raised."""


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


_STAGES = {
    "ce-tuned": "tuning cross-entropy's learning rate",
    "ce-smoothed": "tuning label smoothing",
    "best-standard": "tuning the standard losses",
    "finalist": "selecting the winner",
    "candidate": "ranking candidates",
} | {name: f"tuning {name.replace('-', ' ')}" for name in FAMILIES}


def stage_of(task: Task) -> str:
    """The stage that a training belongs to, such as "tuning label smoothing"."""
    if task.on_test_set:
        setting = "".join(f" at {name} {value}" for name, value in task.data_args.items())
        return f"testing {task.loss.label}{setting}"
    return _STAGES.get(task.loss.name, f"training {task.loss.label}")


def value_of_divergence(
    values: Sequence[float | None], recipe: Recipe, n_classes: int | None
) -> float | None:
    """The value that each diverged training counts as; None if none diverged.

    It is guessing for an accuracy, and otherwise the worst value that any training reached.

    Args:
        values: Results; None for trainings that diverged.
        recipe: Their recipe.
        n_classes: Number of classes; None if unknown.

    Raises:
        OperationError: If all diverged, so that there is nothing to compare.
    """
    if None not in values:
        return None
    fitness = recipe.fitness
    reached = [value for value in values if value is not None]
    if not reached:
        raise OperationError(
            f"all {len(values)} trainings diverged, the evolved loss's and the others': there is "
            "nothing to compare. A smaller learning rate may help."
        )
    guessing = [1 / n_classes] if n_classes and is_accuracy(fitness.metric, fitness.mode) else []
    return min([*reached, *guessing], key=lambda value: fitness.sign * value)
