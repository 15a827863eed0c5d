"""Standard losses with the parameter that is tuned, and the learning rates they are tried at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optuna.study import Study

from optuna_taylorglo.attributes import OPTIMIZER
from optuna_taylorglo.recipes.class_paths import BUNDLED_PACKAGE
from optuna_taylorglo.recipes.schema import Recipe

if TYPE_CHECKING:
    from optuna_taylorglo.training.runtime import RuntimeConfig
    from optuna_taylorglo.training.training import Training


@dataclass(frozen=True)
class Family:
    """A standard loss and the values that its parameter may take.

    Where a loss has two weights, their ratio is the parameter: their scale is a learning rate.

    Attributes:
        label: Name in tables.
        parameter: The setting that is tuned.
        grid: Values for a small grid.
        low: Least value for a search; an int if the values are whole numbers.
        high: Greatest value.
        log: Whether the search is over the logarithm.
    """

    label: str
    parameter: str
    grid: tuple[float, ...]
    low: float
    high: float
    log: bool = False


FAMILIES: Mapping[str, Family] = {
    "label-smoothing": Family(
        "label smoothing", "label_smoothing", (0.05, 0.1, 0.2, 0.3), 0.0, 0.9
    ),
    "focal": Family("focal loss", "gamma", (0.5, 1.0, 2.0, 5.0), 0.0, 5.0),
    "gce": Family("generalized cross-entropy", "q", (0.3, 0.5, 0.7, 0.9), 0.05, 1.0),
    "poly": Family("PolyLoss-1", "epsilon", (1.0, 3.0, 10.0, 30.0), -1.0, 30.0),
    "sce": Family("symmetric cross-entropy", "alpha", (0.03, 0.1, 0.3, 1.0), 0.01, 10.0, log=True),
    "taylor-ce": Family("Taylor cross-entropy", "order", (1, 2, 4, 8), 1, 32, log=True),
    "nce-rce": Family(
        "normalized plus reverse cross-entropy", "alpha", (0.3, 1.0, 10.0, 100.0), 0.1, 100.0, True
    ),
}
"""By the short names of the command line; all but label smoothing are kinds of `ComparedLoss`."""

BASELINES = ("ce", "ce-tuned", "ce-smoothed", "baikal", "baikal-cma", *FAMILIES, "best-standard")
DEFAULT_BASELINES = ("ce", "ce-tuned", "label-smoothing", "best-standard")

RECIPE, MODULE = "recipe", "module"
"""Values of the attribute `OPTIMIZER`."""


@dataclass(frozen=True)
class LearningRates:
    """How learning rates are varied: rates are numbers, or factors on the module's own.

    Attributes:
        base: The recipe's learning rate; None for the module's own.
        obstacle: Why it cannot be varied; None if it can.
    """

    base: float | None
    obstacle: str | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> LearningRates:
        """Those of a recipe whose optimizer trains the network, if it has one."""
        return cls(None if recipe.optimizer is None else recipe.optimizer.lr)

    @property
    def start(self) -> float:
        """The rate before any tuning."""
        return 1.0 if self.base is None else self.base

    def times(self, factors: Sequence[float]) -> list[float]:
        """The rates to try; a single one where it cannot be varied."""
        return [self.start * factor for factor in factors] if self.obstacle is None else [1.0]

    def settings(self, rate: float) -> dict[str, Any]:
        """Fields of a `ComparedLoss` that is trained at a rate."""
        if self.base is not None:
            return {"learning_rate": rate}
        return {} if rate == 1 else {"learning_rate_factor": rate}

    def label(self, rate: float) -> str:
        """A rate in words."""
        return f"learning rate {'' if self.base is not None else '× '}{rate:.3g}"

    @property
    def note(self) -> str:
        """What a verdict says about them; empty if they were tuned."""
        if self.obstacle is None:
            return ""
        return (
            f"No learning rate was tuned, because that of {self.obstacle}. Cross-entropy at a "
            "tuned rate is left out, and the other losses were tried at the module's own rate only."
        )


def optimizer_owner(study: Study, recipe: Recipe) -> str | None:
    """`RECIPE` or `MODULE`; None if the first worker has not found out yet."""
    if recipe.optimizer is None:
        return MODULE
    if recipe.model.class_path.startswith(f"{BUNDLED_PACKAGE}."):
        return RECIPE
    owner: str | None = study.user_attrs.get(OPTIMIZER)
    return owner


def save_optimizer_owner(study: Study, training: Training) -> None:
    """Store in the study whether the recipe's optimizer trains or the module's own."""
    study.set_user_attr(OPTIMIZER, MODULE if training.own_optimizer else RECIPE)


def find_learning_rates(study: Study, recipe: Recipe, runtime: RuntimeConfig) -> LearningRates:
    """How the learning rate of a study can be varied; a module's own is tried for one step."""
    if optimizer_owner(study, recipe) == RECIPE:
        return LearningRates.of(recipe)
    from optuna_taylorglo.training.training import Training

    training = Training(recipe, runtime)
    if not training.own_optimizer:
        return LearningRates.of(recipe)
    return LearningRates(None, training.learning_rate_obstacle())
