"""Which learning rates opponents are tried at: multiples of the recipe's, or of the module's own.

A plain net is trained by the recipe's optimizer, so a rate is a number. A LightningModule brings an
optimizer of which only the module knows the rate, so there a rate is a factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optuna.study import Study

from optuna_taylorglo.attributes import OPTIMIZER
from optuna_taylorglo.recipes.class_paths import BUNDLED_PACKAGE
from optuna_taylorglo.recipes.schema import Recipe

if TYPE_CHECKING:  # reports need neither
    from optuna_taylorglo.training.machine import Machine
    from optuna_taylorglo.training.run import Training

RECIPE, MODULE = "recipe", "module"
"""Whose optimizer trains."""


@dataclass(frozen=True)
class LearningRates:
    """How learning rates are varied: rates are numbers, or factors on the module's own.

    Attributes:
        base: The recipe's learning rate; None: the module's own, whatever it is.
        obstacle: Why it cannot be varied; None if it can.
    """

    base: float | None
    obstacle: str | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> LearningRates:
        """Those of a recipe whose network is trained by the recipe's optimizer, if it has one."""
        return cls(None if recipe.optimizer is None else recipe.optimizer.lr)

    @property
    def start(self) -> float:
        """The rate as the user has it."""
        return 1.0 if self.base is None else self.base

    def times(self, factors: Sequence[float]) -> list[float]:
        """The rates to try; the user's alone where it cannot be varied."""
        return [self.start * factor for factor in factors] if self.obstacle is None else [1.0]

    def settings(self, rate: float) -> dict[str, Any]:
        """Fields of a `ComparedLoss` that is trained at a rate."""
        if self.base is not None:
            return {"learning_rate": rate}
        return {} if rate == 1 else {"learning_rate_factor": rate}

    def words(self, rate: float) -> str:
        """A rate for people."""
        if self.base is not None:
            return f"learning rate {rate:.3g}"
        return f"learning rate × {rate:.3g}"

    def in_words(self) -> str:
        """What a verdict has to say about them; nothing where all is as expected."""
        if self.obstacle is None:
            return ""
        return (
            f"No learning rate was tuned, because that of {self.obstacle}. Cross-entropy at a "
            "tuned rate is left out, and the other losses were tried at the module's own rate only."
        )


def whose_optimizer(study: Study, recipe: Recipe) -> str | None:
    """`RECIPE` or `MODULE`; None if a study of an earlier version leaves it open."""
    if recipe.optimizer is None:
        return MODULE
    if recipe.model.class_path.startswith(f"{BUNDLED_PACKAGE}."):
        return RECIPE
    known: str | None = study.user_attrs.get(OPTIMIZER)
    return known


def keep_whose_optimizer(study: Study, training: Training) -> None:
    """Keep in the study whose optimizer trains, for those who do not import the module."""
    study.set_user_attr(OPTIMIZER, MODULE if training.own_optimizer else RECIPE)


def find_learning_rates(study: Study, recipe: Recipe, machine: Machine) -> LearningRates:
    """How the learning rate of a study's trainings can be varied.

    A module's own is tried: one step is taken with it.
    """
    from optuna_taylorglo.training.run import Training

    if whose_optimizer(study, recipe) == RECIPE:
        return LearningRates.of(recipe)
    training = Training(recipe, machine)
    keep_whose_optimizer(study, training)
    if not training.own_optimizer:
        return LearningRates.of(recipe)
    return LearningRates(None, training.learning_rate_obstacle())
