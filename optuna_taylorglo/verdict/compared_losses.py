"""The losses that a verdict compares, as plain values that a database can hold.

A loss is described by JSON, never by code: an evolved loss by its settings, the others by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from optuna_taylorglo.losses.anchor import first_gradient
from optuna_taylorglo.losses.baikal import BaikalCMALoss, BaikalLoss
from optuna_taylorglo.losses.canonical import normalize_scale
from optuna_taylorglo.losses.loading import EvolvedLoss
from optuna_taylorglo.losses.standard import (
    FocalLoss,
    GeneralizedCrossEntropyLoss,
    NormalizedReverseCrossEntropyLoss,
    PolyLoss,
    SymmetricCrossEntropyLoss,
    TaylorCrossEntropyLoss,
)
from optuna_taylorglo.losses.taylor_loss import TaylorLoss
from optuna_taylorglo.losses.tree_curve import tree_gradient_scale
from optuna_taylorglo.losses.tree_loss import TreeLoss
from optuna_taylorglo.verdict.families import Family
from optuna_taylorglo.verdict.learning_rates import LearningRates
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
        return tree_gradient_scale(loss, n_classes)
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
