"""Cross-entropy that checks what it is given, for trials of a recipe or a training function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from optuna_taylorglo.training.build import SUPPORTED

NOT_TRAINED = (
    "never calls {loss}, so no candidate would train anything",
    "gives {loss} logits without a gradient: they are detached, computed under torch.no_grad(), or "
    "all parameters are frozen",
    "does not train by what {loss} returns: no gradient came back through it",
)
"""What is wrong, by `CheckingLoss.reached`."""


class CheckingLoss(nn.Module):
    """Cross-entropy times a factor that checks its arguments.

    Args:
        n_classes: Number of classes.
        ignore_index: Label that does not count.
        logits_error: Makes the error of wrong logits from words that follow "gives".
        labels_error: Makes the error of wrong labels from words that follow "labels".
        factor: On the loss.
    """

    def __init__(
        self,
        n_classes: int,
        ignore_index: int,
        logits_error: Callable[[str], Exception],
        labels_error: Callable[[str], Exception],
        *,
        factor: float = 1.0,
    ) -> None:
        super().__init__()
        self.n_classes, self.ignore_index, self.factor = n_classes, ignore_index, factor
        self._logits_error, self._labels_error = logits_error, labels_error
        # In training: 1, it was called; 2, with logits that need a gradient; 3, one came back.
        self.reached = 0

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if problem := self._problem_of_logits(logits, target):
            raise self._logits_error(problem)
        if problem := self._problem_of_labels(logits, target):
            raise self._labels_error(problem)
        loss = nn.functional.cross_entropy(logits.float(), target, ignore_index=self.ignore_index)
        if torch.is_grad_enabled():
            self.reached = max(self.reached, 2 if loss.requires_grad else 1)
        if loss.requires_grad:
            loss.register_hook(self._note_gradient)  # type: ignore[no-untyped-call]
        return self.factor * loss

    def _note_gradient(self, gradient: Tensor) -> None:
        self.reached = 3

    def _problem_of_logits(self, logits: Tensor, target: Tensor) -> str:
        shape, n = tuple(logits.shape), self.n_classes
        if logits.ndim < 2 or shape[1] != n:
            problem = f"logits of shape {shape}, must be (B, {n}) or (B, {n}, …) for {n} classes"
            is_one = logits.ndim < 2 or shape[1] == 1
            if is_one and n == 2:
                problem += ": two classes need two logits, not one"
            if is_one and target.is_floating_point():
                problem += f"; {SUPPORTED}"
            if logits.ndim > 2 and shape[-1] == n:
                problem += ": logits.movedim(-1, 1)"
            return problem
        # After the step it may be the learning rate, which is a matter of the search.
        if torch.is_grad_enabled() and not logits.isfinite().all():
            return "logits that are not finite, from inputs that are"
        sums = logits.float().sum(dim=1)
        # Networks may compute in bfloat16, which has three digits.
        sum_to_1 = torch.allclose(sums, torch.ones_like(sums), rtol=0.0, atol=0.01)
        if len(logits) > 1 and (logits >= 0).all() and sum_to_1:
            return (
                "probabilities (they are positive and sum to 1), must be logits: leave out the "
                "softmax at its end, the loss applies it"
            )
        return ""

    def _problem_of_labels(self, logits: Tensor, target: Tensor) -> str:
        shape, expected = tuple(target.shape), (logits.shape[0], *logits.shape[2:])
        if target.is_floating_point():
            sums = target.sum(dim=1) if target.shape == logits.shape else target.new_zeros(1)
            if (target >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
                if self.ignore_index >= 0:
                    return (
                        f"are class probabilities, with which loss.ignore_index "
                        f"{self.ignore_index} is not allowed: take it out"
                    )
                return ""
            must = "must be class indices (torch.int64), or probabilities that sum to 1"
            return f"are {target.dtype} of shape {shape}, {must}: {SUPPORTED}"
        if shape == tuple(logits.shape):
            return f"have shape {shape}, one number for each class, must be {expected}: {SUPPORTED}"
        if shape != expected:
            return (
                f"have shape {shape}, must be {expected} for logits of shape {tuple(logits.shape)}"
            )
        if target.dtype != torch.int64:
            return f"are {target.dtype}, must be torch.int64: labels.long()"
        counted = target[target != self.ignore_index]
        if counted.numel() and not 0 <= counted.min() <= counted.max() < self.n_classes:
            return (
                f"reach from {counted.min()} to {counted.max()}, must be 0 to "
                f"{self.n_classes - 1} for {self.n_classes} classes; loss.ignore_index names one "
                "that does not count"
            )
        return ""
