"""A tree as a PyTorch loss: the module `TreeLoss`, called like `torch.nn.CrossEntropyLoss`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optuna_taylorglo.losses.baikal import inverse_probability
from optuna_taylorglo.losses.conventions import (
    Conventions,
    at_least_float32,
    check_indices,
    check_probabilities,
    check_weight,
    class_axis,
    count_samples,
    reduce_hard,
    reduce_soft,
)
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.files import TreeLossFile
from optuna_taylorglo.losses.kept_loss import KeptLoss
from optuna_taylorglo.losses.taylor_loss import TaylorLoss
from optuna_taylorglo.losses.tree import Tree, check_coefficients, tree_from_prefix
from optuna_taylorglo.losses.tree_expansion import expanded_theta
from optuna_taylorglo.losses.tree_formula import formula
from optuna_taylorglo.losses.tree_values import tree_values


class TreeLoss(KeptLoss):
    """The loss ``-(1/n) Σ_i f(x_i, y_i)`` with f a tree, as GLO evolves them.

        loss = TreeLoss(["-", "log", "y", "/", "x", "y"])  # Baikal
        loss(model(images), labels).backward()

    x is the label, one-hot or soft, y the softmax output. Below a probability of 1e-7, y goes on as
    ``1e-7 / (1 + log(1e-7 / y))``: never 0, and 1/y is a straight line in log y, as in
    `BaikalLoss`. Where f is not finite all the same (`losses.tree_values`), neither is the loss;
    that ends a search's training of it, and no other error does. A tree without y has a gradient of
    0 and teaches nothing.

    Args:
        tree: f, or its prefix form.
        coefficients: What the nodes are multiplied by, in prefix order; None: 1 each.
        class_reduction: "mean" for 1/n, or "sum".
        reduction: As in `torch.nn.CrossEntropyLoss`, and so are the next three; `taylor_loss`
            says what they mean here.
        weight: Weight of each class, shape (C,).
        ignore_index: Target index to leave out.
        label_smoothing: ε in [0, 1].

    Attributes:
        tree: f without coefficients.
        coefficients: One for each node, as exact floats.
        n_classes: Number of classes the loss was made for, if that is known.
        origin: Where the loss came from, if it was loaded from a file that says so.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import BaikalLoss, TreeLoss
        >>> baikal = TreeLoss(["-", "log", "y", "/", "x", "y"])
        >>> baikal.formula
        'log(y) - x / y'
        >>> logits, labels = torch.zeros(2, 10), torch.tensor([3, 7])
        >>> torch.allclose(baikal(logits, labels), BaikalLoss()(logits, labels))
        True
    """

    file_type = TreeLossFile

    def __init__(
        self,
        tree: Tree | Sequence[str],
        coefficients: Sequence[float] | None = None,
        *,
        class_reduction: str = "mean",
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            class_reduction=class_reduction,
            reduction=reduction,
            weight=weight,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )
        self.tree = tree if isinstance(tree, Tree) else tree_from_prefix(tree)
        self.coefficients = check_coefficients(self.tree, coefficients)
        self._reaches_outputs = "y" in self.tree.to_prefix()

    @property
    def formula(self) -> str:
        """f as people write it, such as ``log(y) - x / y``."""
        return formula(self.tree, self.coefficients)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch.

        Args:
            logits: Shape (C,), (N, C) or (N, C, d1, …).
            target: Class indices, or class probabilities of the shape of `logits`.
        """
        conventions = self.conventions
        check_weight(logits, conventions.weight)
        logits = at_least_float32(logits)
        batched = class_axis(logits) == 1
        if not batched:
            logits, target = logits.unsqueeze(0), target.unsqueeze(0)
        if target.is_floating_point():
            loss = self._soft_loss(logits, target, conventions)
        else:
            loss = self._hard_loss(logits, target, conventions)
        return loss if batched or conventions.reduction != "none" else loss.squeeze(0)

    def values(self, x: Tensor, log_y: Tensor) -> Tensor:
        """f, element by element.

        Args:
            x: Labels, of any shape that broadcasts with that of `log_y`.
            log_y: Logarithms of the softmax outputs.
        """
        y = 1 / inverse_probability(log_y)
        return tree_values(self.tree, x, y, coefficients=self.coefficients, log_y=log_y)

    def _hard_loss(self, logits: Tensor, target: Tensor, conventions: Conventions) -> Tensor:
        check_indices(logits, target)
        index = target.long().unsqueeze(1)
        counts = count_samples(index, logits.dtype, conventions)
        # Without what is ignored: its tree may not be finite, and 0 times its gradient not be 0.
        logits = torch.where(counts.valid, logits, 0.0)
        low = conventions.label_smoothing / logits.shape[1]
        high = low + 1 - conventions.label_smoothing
        x = torch.full_like(logits, low).scatter(1, index * counts.valid, high)
        losses = self._losses(logits, x, conventions)
        return reduce_hard(losses, counts, conventions.reduction)

    def _soft_loss(self, logits: Tensor, target: Tensor, conventions: Conventions) -> Tensor:
        check_probabilities(logits, target, conventions.ignore_index)
        smoothing = conventions.label_smoothing
        x = target.to(logits.dtype) * (1 - smoothing) + smoothing / logits.shape[1]
        return reduce_soft(self._losses(logits, x, conventions).squeeze(1), x, conventions)

    def _losses(self, logits: Tensor, x: Tensor, conventions: Conventions) -> Tensor:
        """Losses of each sample, shape (N, 1, …)."""
        log_y = torch.log_softmax(logits, dim=1)
        values = self.values(x, log_y)
        if not self._reaches_outputs:
            values = values + 0.0 * log_y  # or there would be nothing to call backward on
        return -conventions.class_scale(logits.shape[1]) * values.sum(dim=1, keepdim=True)

    def expand(
        self,
        order: int = 3,
        center: float | tuple[float, float] = 0.5,
        *,
        folded: bool = False,
    ) -> TaylorLoss:
        """The Taylor loss that it is near a point, up to what has no gradient.

        A tree that is a polynomial of this order at most is met everywhere.

        Args:
            order: Order of the expansion.
            center: b, or (a, b), for x = a and y = b; a is 0 if not given.
            folded: Whether 1/α! shall be in θ.

        Raises:
            ValueError: If the tree or one of its derivatives is not finite there.
        """
        form = Expansion(order, ("x", "y"), folded)
        point = center if isinstance(center, tuple) else (0.0, center)
        theta = expanded_theta(self.tree, self.coefficients, form=form, center=point)
        expanded = TaylorLoss(theta, order=order, folded=folded, **self.conventions._asdict())
        expanded.n_classes = self.n_classes
        return expanded

    def settings(self) -> dict[str, Any]:
        """The arguments that make it the function it is, as plain JSON values."""
        return {
            "tree": self.tree.to_prefix(),
            "coefficients": list(self.coefficients),
            "class_reduction": self.class_reduction,
            "label_smoothing": self.label_smoothing,
        }

    def extra_repr(self) -> str:
        """The settings that make it the function it is."""
        return f"{self.formula}, class_reduction={self.class_reduction!r}"
