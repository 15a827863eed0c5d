"""A user's training function in the place of a recipe's training."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import NamedTuple

from optuna_taylorglo.errors import Diverged, UsageError
from optuna_taylorglo.recipes.schema import FunctionRecipe
from optuna_taylorglo.recipes.settings import SearchedScale
from optuna_taylorglo.training import scale
from optuna_taylorglo.training.candidate import Candidate
from optuna_taylorglo.training.checking_loss import NOT_TRAINED, CheckingLoss

Function = Callable[[Candidate], float]
"""Trains with a candidate's loss, and returns a metric."""


class FunctionTraining:
    """Trains by a user's functions.

    Attributes:
        recipe: What is searched.
        n_classes: Number of classes.
    """

    def __init__(
        self, recipe: FunctionRecipe, train: Function | None, test: Function | None = None
    ) -> None:
        self.recipe, self.n_classes = recipe, recipe.n_classes
        self.train, self._test = train, test

    def in_steps(self, amount: int, unit: str) -> int:
        """A length in the step that the function reports."""
        return amount

    def evaluate(self, candidate: Candidate) -> float:
        """The validation metric of a training with a candidate's loss."""
        return self._called(self.train, "train", candidate)

    def test(self, candidate: Candidate) -> float:
        """The test metric of one."""
        return self._called(self._test, "test", candidate)

    def _called(self, function: Function | None, name: str, candidate: Candidate) -> float:
        if function is None:
            raise UsageError(f"{name} is missing: give the function that returns the metric.")
        value = function(candidate)
        if isinstance(value, bool) or not isinstance(value, Real):
            found = "None" if value is None else f"a {type(value).__name__}"
            fix = ": write .item()" if hasattr(value, "item") else ""
            raise UsageError(f"{name} returned {found}, must return the metric as a number{fix}.")
        if not math.isfinite(value):
            raise Diverged(f"{name} returned {value}")
        fitness = self.recipe.fitness
        if fitness.metric == "accuracy" and not 0 <= value <= 1:
            raise UsageError(
                f"{name} returned {value} as accuracy, which is from 0 to 1: divide a percentage "
                "by 100, or name another metric, such as metric='score'."
            )
        return float(value)

    def check(self) -> Effects:
        """Let `train` take its first step at several scales; what acts on it, or an error."""
        tried: list[tuple[Candidate, CheckingLoss]] = []

        def first_step(factor: float = 1.0, lr_factor: float = 1.0) -> None:
            loss = CheckingLoss(
                self.n_classes, self.recipe.loss.ignore_index, _logits, _labels, factor=factor
            )
            tried.append((Candidate(loss, seed=0, lr_factor=lr_factor), loss))
            self.evaluate(tried[-1][0])

        loss_scale = scale.acts(first_step)
        candidate, loss = tried[0]
        if loss.reached < len(NOT_TRAINED):
            problem = NOT_TRAINED[loss.reached].format(loss="candidate.loss")
            raise UsageError(f"train {problem}: call `candidate.loss(logits, labels).backward()`.")
        lr_factor = candidate.uses_lr_factor
        if lr_factor and loss_scale is not None:
            lr_factor = scale.acts(lambda factor: first_step(lr_factor=factor)) is not False
        return Effects(loss_scale is not False, lr_factor)


class Effects(NamedTuple):
    """What changes the steps of the optimizer."""

    loss_scale: bool
    lr_factor: bool

    @property
    def searched_scale(self) -> SearchedScale:
        """The value of `search.scale` where it is auto."""
        if self.loss_scale:
            return "free"
        return "learning_rate" if self.lr_factor else "fixed"


def _logits(problem: str) -> UsageError:
    return UsageError(f"train gives candidate.loss {problem}.")


def _labels(problem: str) -> UsageError:
    return UsageError(f"train gives candidate.loss labels that {problem}.")
