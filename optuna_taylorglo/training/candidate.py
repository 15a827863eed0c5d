"""One training as its author sees it: a loss, a seed, and a way to report."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.recipes.schema import Recipe

if TYPE_CHECKING:
    from torch import nn

OnReport = Callable[[int, float], None]


class Candidate:
    """What a training function is called with.

    Args:
        loss: The loss to train with, called like `nn.CrossEntropyLoss`.
        seed: Seed of the training: of initial weights, order of data and so on.
        lr_factor: Factor on the learning rate.
        on_report: Called with step and value of each report; what it raises ends the training.
        stop: Ends the training at its next report when set.
        name: What loggers call the training, such as trial_12.

    Attributes:
        curve: Steps and values that are shown beside the reports, and judge nothing.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import Candidate
        >>> candidate = Candidate(torch.nn.CrossEntropyLoss(), seed=0)  # to try a function
        >>> candidate.loss(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.6931)
        >>> candidate.report(0.5, step=1)
    """

    def __init__(
        self,
        loss: nn.Module,
        seed: int,
        *,
        lr_factor: float = 1.0,
        on_report: OnReport = lambda step, value: None,
        stop: threading.Event | None = None,
        name: str = "training",
    ) -> None:
        self.loss, self.seed, self.stop, self.name = loss, seed, stop, name
        self.uses_lr_factor = False
        self.curve: list[tuple[int, float]] = []
        self._lr_factor, self._on_report = lr_factor, on_report

    @property
    def lr_factor(self) -> float:
        """Factor on the learning rate, by which the search tunes it and baselines get theirs."""
        self.uses_lr_factor = True
        return self._lr_factor

    def report(self, value: float, step: int) -> None:
        """Report the validation metric on the way; a hopeless or unwanted training ends here.

        Args:
            value: The metric that the training function returns in the end.
            step: When it was measured, in steps or epochs from 1.
        """
        if self.stop is not None and self.stop.is_set():
            raise StopRequested
        self._on_report(step, float(value))


class Trainer(Protocol):
    """What evaluates candidates: a recipe's training, or a user's function."""

    n_classes: int

    @property
    def recipe(self) -> Recipe:
        """The recipe of the study."""

    def in_steps(self, amount: int, unit: str) -> int:
        """A length in the step of reports."""

    def evaluate(self, candidate: Candidate) -> float:
        """Train with a candidate's loss for the length of an evaluation; returns its fitness."""
