"""One training for a verdict or a sweep, as plain values that a database can hold."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import torch
from optuna.trial import FrozenTrial, Trial
from pydantic import TypeAdapter
from torch import Tensor, nn

from optuna_taylorglo.attributes import TASK
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
from optuna_taylorglo.verdict.families import FAMILIES, Family, LearningRates
from optuna_taylorglo.verdict.statistics import Role

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
"""The losses that a verdict knows, and what they are built by."""


@dataclass(frozen=True)
class ComparedLoss:
    """A loss and how it is trained.

    Attributes:
        name: Short name, as on the command line and in tables.
        label: Name for people.
        kind: One of `KINDS`.
        role: What it is in the comparison for.
        settings: What the loss is built with, as plain JSON.
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
            conventions: Arguments that all losses of the study have in common; settings of this
                one's own come first.
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
    def progress(self) -> torch.Tensor | None:
        """The loss's own progress buffer, if it has one."""
        return getattr(self.loss, "progress", None)


def compared_evolved_loss(name: str, label: str, role: Role, loss: EvolvedLoss) -> ComparedLoss:
    """A loss that a search found, or one of such a form, to compare."""
    kind = "tree" if isinstance(loss, TreeLoss) else "taylor"
    return ComparedLoss(name, label, kind, role, loss.settings())


def cross_entropy(name: str = "ce", label: str = "cross-entropy", **changes: Any) -> ComparedLoss:
    """Cross-entropy to compare; `changes` are further fields of `ComparedLoss`."""
    return ComparedLoss(name, label, "cross-entropy", **changes)


def standard_loss(
    name: str, family: Family, value: float, rates: LearningRates, rate: float
) -> ComparedLoss:
    """A standard loss to compare.

    Args:
        name: Short name.
        family: Which loss.
        value: Its parameter.
        rates: What learning rates are.
        rate: One of them.
    """
    label = f"{family.label.format(value)} at {rates.words(rate)}"
    settings = {family.parameter: value}
    return ComparedLoss(name, label, family.kind, settings=settings, **rates.settings(rate))


def scale_controls(loss: EvolvedLoss, n_classes: int) -> list[ComparedLoss]:
    """Two losses that tell scale from shape: a loss's scale acts as a learning rate.

    Args:
        loss: The evolved loss.
        n_classes: Number of classes.

    Returns:
        The loss scaled to cross-entropy's first gradient, and cross-entropy scaled to the loss's;
        nothing for a loss that has no scale relative to cross-entropy.
    """
    scale = _first_gradient(loss, n_classes)
    # A tree may have none that is a number.
    if not 0 < scale < math.inf:
        return []
    evolved = compared_evolved_loss(
        "winner-normalized", "evolved loss, scale of cross-entropy", Role.SHAPE_CONTROL, loss
    )
    return [
        replace(evolved, settings=evolved.settings | _scaled(loss, n_classes, scale)),
        cross_entropy(
            "ce-scaled",
            f"cross-entropy times {scale:.3g}",
            role=Role.SCALE_CONTROL,
            scale=scale,
        ),
    ]


def _first_gradient(loss: EvolvedLoss, n_classes: int) -> float:
    """First gradient beside cross-entropy's; 0 where they are not parallel."""
    if isinstance(loss, TreeLoss):
        return loss.first_gradient(n_classes)
    if "z" in loss.form.variables:
        return 0.0
    return first_gradient(
        loss.theta,
        n_classes,
        loss.form,
        anchor=loss.anchor,
        class_reduction=loss.class_reduction,
    )


def _scaled(loss: EvolvedLoss, n_classes: int, scale: float) -> dict[str, Any]:
    """The settings of a loss that divide it by its scale."""
    if isinstance(loss, TreeLoss):
        first, *others = loss.coefficients
        return {"coefficients": [first / scale, *others]}
    if loss.anchor is not None:
        return {"log_scale": loss.anchor.log_scale - math.log(scale)}
    reduction = loss.class_reduction
    theta = normalize_scale(loss.theta, n_classes, loss.form, class_reduction=reduction)
    return {"theta": list(theta)}


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
        save_network: Whether the trained network is kept as an artifact.
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
        """A hash of all that the result depends on; it never changes, or trainings were lost."""
        content = asdict(self)
        del content["save_network"]
        # Earlier versions called it a finalist.
        loss = content["finalist"] = content.pop("loss")
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
        """The task that a trial of a evaluation study stands for.

        Raises:
            ValueError: If the trial holds no task.
        """
        content = dict(trial.user_attrs[TASK])
        if "finalist" in content:
            content["loss"] = content.pop("finalist")
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


_TUNED = {
    "ce-tuned": "tuning cross-entropy's learning rate",
    "ce-smoothed": "tuning label smoothing",
    "best-standard": "tuning the standard losses",
    "finalist": "choosing the winner",
    "candidate": "ranking candidates",
}


def stage_of(task: Task) -> str:
    """The stage that a training belongs to, such as "tuning label smoothing"."""
    if task.on_test_set:
        setting = "".join(f" at {name} {value}" for name, value in task.data_args.items())
        return f"testing {task.loss.label}{setting}"
    name = task.loss.name
    if name in FAMILIES:
        return f"tuning {name.replace('-', ' ')}"
    return _TUNED.get(name, f"training {task.loss.label}")


def stage_in_hand(tasks: Sequence[Task], done: Sequence[bool]) -> tuple[str, int, int]:
    """The first stage that is not over.

    Args:
        tasks: Trainings that were asked for, at least one.
        done: Which of them have come to an end.

    Returns:
        The stage, how many of its trainings are done, and how many it has.
    """
    stages = [stage_of(task) for task in tasks]
    opened = (stage for stage, is_done in zip(stages, done, strict=True) if not is_done)
    stage = next(opened, stages[-1])
    of_it = [is_done for each, is_done in zip(stages, done, strict=True) if each == stage]
    return stage, sum(of_it), len(of_it)


def validation_task(recipe: Recipe, loss: ComparedLoss, stage: Stage, number: int) -> Task:
    """Training `number` of a stage, judged by the recipe's fitness.

    Args:
        recipe: The study's recipe.
        loss: The loss.
        stage: The stage; losses with the same number in it start from the same weights.
        number: From 0.
    """
    length = recipe.budget.evaluation
    return stage_task(recipe, loss, stage, number, length=length)


def train_each(
    losses: Sequence[ComparedLoss],
    numbers: range,
    recipe: Recipe,
    stage: Stage,
    do: Do,
) -> list[list[float | None]]:
    """Have losses trained with the same seeds.

    Args:
        losses: The losses.
        numbers: Which trainings of the stage each of them gets.
        recipe: The study's recipe.
        stage: The stage.
        do: Does tasks.

    Returns:
        For each loss its values, None for a training that diverged.
    """
    tasks = [validation_task(recipe, c, stage, n) for c in losses for n in numbers]
    values = do(tasks)
    return [values[i : i + len(numbers)] for i in range(0, len(values), len(numbers))]


def score(values: Sequence[float | None], sign: int) -> float:
    """By what losses are ranked: greater is better, and one that diverged is the worst.

    Args:
        values: What the trainings reached; None for one that diverged.
        sign: That of the recipe's fitness.
    """
    return statistics.fmean(-math.inf if value is None else sign * value for value in values)
