"""Trainings for a verdict or a sweep, as plain values that a database can hold."""

from __future__ import annotations

import hashlib
import json
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial, Trial
from pydantic import TypeAdapter

from optuna_taylorglo.attributes import TASK
from optuna_taylorglo.errors import OperationError
from optuna_taylorglo.losses.canonical import first_gradient, normalize_scale
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage, stage_seed
from optuna_taylorglo.verdict.statistics import Role, is_accuracy

if TYPE_CHECKING:  # these import PyTorch, which commands that only read a study do not need
    from torch import Tensor, nn

    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

# The losses that a verdict knows, and their classes.
KINDS = {
    "taylor": "optuna_taylorglo:TaylorLoss",
    "tree": "optuna_taylorglo:TreeLoss",
    "cross-entropy": "torch.nn:CrossEntropyLoss",
    "label-smoothing": "optuna_taylorglo:LabelSmoothingLoss",  # below 0 too
    "baikal": "optuna_taylorglo:BaikalLoss",
    "baikal-cma": "optuna_taylorglo:BaikalCMALoss",
    "focal": "optuna_taylorglo:FocalLoss",
    "gce": "optuna_taylorglo:GeneralizedCrossEntropyLoss",
    "poly": "optuna_taylorglo:PolyLoss",
    "sce": "optuna_taylorglo:SymmetricCrossEntropyLoss",
    "taylor-ce": "optuna_taylorglo:TaylorCrossEntropyLoss",
    "nce-rce": "optuna_taylorglo:NormalizedReverseCrossEntropyLoss",
    "nce-agce": "optuna_taylorglo:NormalizedAsymmetricLoss",
    "anl-ce": "optuna_taylorglo:ActiveNegativeLoss",
    "eps-softmax": "optuna_taylorglo:EpsilonSoftmaxLoss",
    "jal-ce": "optuna_taylorglo:JointAsymmetricLoss",
    "ldr-kl": "optuna_taylorglo:LabelDistributionallyRobustLoss",
    "logit-clip": "optuna_taylorglo:LogitClipLoss",
}


@dataclass(frozen=True)
class ComparedLoss:
    """A loss and how it is trained."""

    name: str  # as on the command line and in files
    label: str  # in tables
    kind: str
    role: Role = Role.BASELINE
    settings: dict[str, Any] = field(default_factory=dict)  # arguments of the loss, as plain JSON
    scale: float = 1.0
    learning_rate: float | None = None  # in place of the recipe's
    learning_rate_factor: float | None = None  # on the rates of a module's own optimizers

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}.")

    def criterion(self, conventions: Mapping[str, Any] = MappingProxyType({})) -> nn.Module:
        """The loss itself, with the arguments that a study's losses share; `settings` override."""
        made: nn.Module = pkgutil.resolve_name(KINDS[self.kind])(**{**conventions, **self.settings})
        if self.scale != 1:
            made.register_forward_hook(partial(_scaled, self.scale))
        return made


def _scaled(factor: float, module: nn.Module, inputs: Any, loss: Tensor) -> Tensor:
    return factor * loss


def compared_evolved_loss(name: str, label: str, role: Role, loss: EvolvedLoss) -> ComparedLoss:
    """A Taylor loss or a tree to compare."""
    settings = loss.settings()
    kind = "tree" if "tree" in settings else "taylor"
    return ComparedLoss(name, label, kind, role, settings, learning_rate_factor=loss.lr_factor)


def cross_entropy(name: str = "ce", label: str = "cross-entropy", **changes: Any) -> ComparedLoss:
    """Cross-entropy to compare; `changes` are further fields of `ComparedLoss`."""
    return ComparedLoss(name, label, "cross-entropy", **changes)


def scale_controls(loss: EvolvedLoss, n_classes: int) -> list[ComparedLoss]:
    """The loss scaled to cross-entropy's first gradient, and cross-entropy scaled to the loss's.

    They tell scale, which acts as a learning rate, from shape. A loss without a scale has none.
    Where the optimizer undoes the scale of losses, learning rates are exchanged in its place.
    """
    from optuna_taylorglo.losses.tree_loss import TreeLoss

    if (factor := loss.lr_factor) is not None:
        if factor == 1:
            return []
        label = "evolved loss, learning rate of cross-entropy"
        same = compared_evolved_loss("winner-normalized", label, Role.SHAPE_CONTROL, loss)
        label = f"cross-entropy, learning rate × {factor:.3g}"
        role = Role.SCALE_CONTROL
        return [
            replace(same, learning_rate_factor=None),
            cross_entropy("ce-scaled", label, role=role, learning_rate_factor=factor),
        ]
    label = "evolved loss, scale of cross-entropy"
    normalized = compared_evolved_loss("winner-normalized", label, Role.SHAPE_CONTROL, loss)
    if isinstance(loss, TreeLoss):
        scale = loss.first_gradient(n_classes)
    elif "z" in loss.form.variables:
        return []
    else:
        reduction = loss.class_reduction
        scale = first_gradient(
            loss.theta, n_classes, loss.form, anchor=loss.anchor, class_reduction=reduction
        )
    if not 0 < scale < math.inf:
        return []
    if isinstance(loss, TreeLoss):
        first, *others = loss.coefficients
        normalized.settings["coefficients"] = [first / scale, *others]
    elif loss.anchor is not None:
        normalized.settings["log_scale"] = loss.anchor.log_scale - math.log(scale)
    else:
        theta = normalize_scale(loss.theta, n_classes, loss.form, class_reduction=reduction)
        normalized.settings["theta"] = list(theta)
    label = f"cross-entropy times {scale:.3g}"
    return [normalized, cross_entropy("ce-scaled", label, role=Role.SCALE_CONTROL, scale=scale)]


@dataclass(frozen=True)
class Task:
    """One training."""

    loss: ComparedLoss
    seed: int
    length: int
    unit: str  # "steps" or "epochs"
    on_test_set: bool  # whether the test set judges, or the recipe's fitness
    data_args: dict[str, Any] = field(default_factory=dict)  # in place of the recipe's
    test_version: str = ""  # of a user's test function
    save_network: bool = False  # as an artifact

    @property
    def key(self) -> str:
        """A hash of all that the result depends on; with another one, all is trained again."""
        content = asdict(self)
        del content["save_network"]
        if not self.test_version:
            del content["test_version"]
        for name in ("name", "label", "role"):
            del content["loss"][name]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def stage(self) -> str:
        """What the training is part of, such as "tuning label smoothing"."""
        if self.on_test_set:
            setting = "".join(f" at {name} {value}" for name, value in self.data_args.items())
            return f"testing {self.loss.label}{setting}"
        name = self.loss.name
        return _STAGES.get(name, f"tuning {name.replace('-', ' ')}")

    @classmethod
    def of(cls, trial: Trial | FrozenTrial) -> Task:
        """The task of a trial of an evaluation study."""
        return TypeAdapter(cls).validate_python(trial.user_attrs[TASK])


_STAGES = {
    "ce-tuned": "tuning cross-entropy's learning rate",
    "best-standard": "tuning the standard losses",
    "finalist": "selecting the winner",
    "candidate": "ranking candidates",
}

Runner = Callable[[Sequence[Task]], list[float | None]]
"""Gets tasks done: their values in order, None for those that diverged. Exceptions are raised."""


def stage_task(
    recipe: Recipe,
    loss: ComparedLoss,
    stage: Stage,
    number: int,
    *,
    length: int | None = None,
    on_test_set: bool = False,
    **fields: Any,
) -> Task:
    """Training `number` of a stage, a full one unless a length in the recipe's unit is given."""
    seed = stage_seed(recipe.search.seed, stage, number)
    length = recipe.budget.full if length is None else length
    return Task(loss, seed, length, recipe.budget.unit, on_test_set, **fields)


def value_of_divergence(
    values: Sequence[float | None], recipe: Recipe, n_classes: int | None
) -> float | None:
    """The value that each diverged training counts as; None if none diverged.

    It is guessing for an accuracy, and otherwise the worst value that any training reached.
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


def with_divergence(values: Sequence[float | None], divergence: float | None) -> list[float]:
    """Results with that value for trainings that diverged."""
    worst = math.nan if divergence is None else divergence
    return [worst if value is None else value for value in values]
