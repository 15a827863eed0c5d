"""Losses made for wrong labels, as `standard` has it; each is given by what a class would cost."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from optuna_taylorglo.losses.standard import StandardLoss, at_least_zero, one_minus_y

LOG_OF_ZERO = -4.0  # A, reverse cross-entropy's logarithm of a target probability of 0
# Least probabilities, as in the code of the authors; below, the gradient is 0.
LEAST_OF_EPSILON_SOFTMAX = 1e-8
LEAST_OF_ACTIVE_NEGATIVE = 1e-7


class GeneralizedCrossEntropyLoss(StandardLoss):
    """``(1 - y^q) / q``, robust to wrong labels (Zhang & Sabuncu 2018, arXiv:1805.07836).

    Args:
        q: In (0, 1]; toward 0 it is cross-entropy, with 1 the mean absolute error 1 - y.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import GeneralizedCrossEntropyLoss
        >>> GeneralizedCrossEntropyLoss(q=1.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(0.7500)
    """

    def __init__(self, q: float = 0.7, **settings: Any) -> None:
        super().__init__(**settings)
        if not 0 < q <= 1:
            raise ValueError(f"q must be in (0, 1], not {q!r}.")
        self.q = q

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        return one_minus_y(self.q * log_y) / self.q


class SymmetricCrossEntropyLoss(StandardLoss):
    """``-α log y - β A (1 - y)``: cross-entropy plus its reverse (Wang et al. 2019).

    The reverse swaps label and prediction, with A = -4 in the place of log 0 (arXiv:1908.06112).

    Args:
        alpha: α, weight of cross-entropy.
        beta: β, weight of the reverse.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import SymmetricCrossEntropyLoss
        >>> SymmetricCrossEntropyLoss(alpha=0.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(3.)
    """

    def __init__(self, alpha: float = 0.1, beta: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.alpha = at_least_zero("alpha", alpha)
        self.beta = at_least_zero("beta", beta)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        return self.beta * _reverse_cross_entropy(log_y) - self.alpha * log_y


class TaylorCrossEntropyLoss(StandardLoss):
    """``Σ_{i=1..k} (1 - y)^i / i``, cross-entropy's expansion around y = 1 (Feng et al. 2020).

    "Can Cross Entropy Loss Be Robust to Label Noise?", IJCAI 2020.

    Args:
        order: k, at least 1; with 1 it is the mean absolute error 1 - y, without end cross-entropy.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import TaylorCrossEntropyLoss
        >>> TaylorCrossEntropyLoss(order=2)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(1.0312)
    """

    def __init__(self, order: int = 2, **settings: Any) -> None:
        super().__init__(**settings)
        if order < 1:
            raise ValueError(f"order must be at least 1, not {order!r}.")
        self.order = order

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        others = one_minus_y(log_y)
        total = others / self.order
        for i in range(self.order - 1, 0, -1):
            total = others * (total + 1 / i)
        return total


class NormalizedReverseCrossEntropyLoss(StandardLoss):
    """``α log y / Σ_j log y_j - β A (1 - y)``, an active and a passive loss (Ma et al. 2020).

    Normalized cross-entropy, which sums to 1 over all labels that there could be, plus reverse
    cross-entropy with A = -4 (arXiv:2006.13554).

    Args:
        alpha: α, weight of normalized cross-entropy.
        beta: β, weight of the reverse.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import NormalizedReverseCrossEntropyLoss
        >>> NormalizedReverseCrossEntropyLoss(beta=0.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(0.2500)
    """

    def __init__(self, alpha: float = 1.0, beta: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.alpha = at_least_zero("alpha", alpha)
        self.beta = at_least_zero("beta", beta)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        passive = _reverse_cross_entropy(log_y)
        return self.alpha * _normalized_cross_entropy(log_y) + self.beta * passive


class NormalizedAsymmetricLoss(StandardLoss):
    """NCE + AGCE, ``α log y / Σ_j log y_j + β ((a + 1)^q - (a + y)^q) / q`` (Zhou et al. 2021).

    Normalized plus asymmetric generalized cross-entropy (arXiv:2106.03110). With a toward 0 the
    second part is generalized cross-entropy, with q = 1 the mean absolute error 1 - y.

    Args:
        alpha: α, weight of normalized cross-entropy.
        beta: β, weight of asymmetric generalized cross-entropy.
        a: Above 0.
        q: Above 0.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import NormalizedAsymmetricLoss
        >>> NormalizedAsymmetricLoss(q=1.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(3.2500)
    """

    def __init__(
        self, alpha: float = 1.0, beta: float = 4.0, a: float = 6.0, q: float = 1.5, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.alpha = at_least_zero("alpha", alpha)
        self.beta = at_least_zero("beta", beta)
        self.a = _above_zero("a", a)
        self.q = _above_zero("q", q)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        asymmetric = (math.pow(self.a + 1, self.q) - (self.a + log_y.exp()) ** self.q) / self.q
        return self.alpha * _normalized_cross_entropy(log_y) + self.beta * asymmetric


class ActiveNegativeLoss(StandardLoss):
    """ANL-CE, ``α log y / Σ_j log y_j + β (1 - (A + log y) / Σ_j (A + log y_j))`` (Ye et al. 2023).

    Normalized plus normalized negative cross-entropy (NeurIPS 2023). A = -log 1e-7, and smaller
    probabilities count as 1e-7 in the second part. The paper also decays weights in L1 norm; that
    is left out, since it concerns the network and not its outputs.

    Args:
        alpha: α, weight of normalized cross-entropy.
        beta: β, weight of normalized negative cross-entropy.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import ActiveNegativeLoss
        >>> ActiveNegativeLoss(alpha=0.0, beta=1.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(0.7500)
    """

    def __init__(self, alpha: float = 5.0, beta: float = 5.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.alpha = at_least_zero("alpha", alpha)
        self.beta = at_least_zero("beta", beta)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        above = (log_y - math.log(LEAST_OF_ACTIVE_NEGATIVE)).clamp(min=0.0)
        negative = 1 - above / above.sum(1, keepdim=True)
        return self.alpha * _normalized_cross_entropy(log_y) + self.beta * negative


class EpsilonSoftmaxLoss(StandardLoss):
    """CE_ε + MAE, ``-α log((y + m [y is the largest]) / (1 + m)) + 2 β (1 - y)``.

    Wang et al., "ε-Softmax: Approximating One-Hot Vectors for Mitigating Label Noise", NeurIPS
    2024. The argument of the logarithm is at least 1e-8, so that a large m ignores samples whose
    target is very improbable.

    Args:
        m: Added to the largest probability, at least 0; with 0 the first part is cross-entropy.
        alpha: α, weight of cross-entropy.
        beta: β, weight of the mean absolute error.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import EpsilonSoftmaxLoss
        >>> EpsilonSoftmaxLoss(m=1.0, alpha=1.0)(torch.zeros(1, 4), torch.tensor([1]))
        tensor(9.5794)
    """

    def __init__(
        self, m: float = 1e5, alpha: float = 0.01, beta: float = 5.0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.m = at_least_zero("m", m)
        self.alpha = at_least_zero("alpha", alpha)
        self.beta = at_least_zero("beta", beta)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        top = _largest(log_y)
        raised = (torch.where(top, log_y, 0.0).exp() + self.m).log()
        log_e = torch.where(top, raised, log_y) - math.log1p(self.m)
        log_e = log_e.clamp(min=math.log(LEAST_OF_EPSILON_SOFTMAX))
        return 2 * self.beta * one_minus_y(log_y) - self.alpha * log_e


class JointAsymmetricLoss(StandardLoss):
    """JAL-CE, ``α log y / Σ_j log y_j + β Σ_j (a x_j - y_j)² / n``, x one-hot (Wang et al. 2025).

    Normalized cross-entropy plus the asymmetric mean square error (arXiv:2507.17692), which is the
    mean square error for a = 1.

    Args:
        alpha: α, weight of normalized cross-entropy.
        beta: β, weight of the asymmetric mean square error.
        a: At least 0; the paper has at least 1.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import JointAsymmetricLoss
        >>> JointAsymmetricLoss(alpha=0.0, a=1.0)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(0.1875)
    """

    def __init__(
        self, alpha: float = 1.0, beta: float = 1.0, a: float = 20.0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.alpha = at_least_zero("alpha", alpha)
        self.beta = at_least_zero("beta", beta)
        self.a = at_least_zero("a", a)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        y = log_y.exp()
        squares = (y**2).mean(1, keepdim=True) + self.a * (self.a - 2 * y) / log_y.shape[1]
        return self.alpha * _normalized_cross_entropy(log_y) + self.beta * squares


class LabelDistributionallyRobustLoss(StandardLoss):
    """LDR-KL, ``λ log Σ_j exp((f_j - f + c [j is not the target]) / λ) / n`` (Zhu et al. 2023).

    f is the target's output. Outputs are softplus(logits) divided by their mean over classes, as
    in the authors' experiments with wrong labels (ICML 2023, arXiv:2112.14869). With λ toward 0 it
    is the multi-class hinge loss, with λ toward infinity it is linear in outputs.

    Args:
        temperature: λ, above 0.
        margin: c, at least 0.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import LabelDistributionallyRobustLoss
        >>> LabelDistributionallyRobustLoss(margin=0.4)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(0.3015)
    """

    def __init__(self, temperature: float = 10.0, margin: float = 0.1, **settings: Any) -> None:
        super().__init__(**settings)
        self.temperature = _above_zero("temperature", temperature)
        self.margin = at_least_zero("margin", margin)

    def outputs(self, logits: Tensor) -> Tensor:
        # Clamped, so that softplus is not 0 for all classes in single precision.
        softplus = torch.logaddexp(logits.clamp(min=-80.0), torch.zeros_like(logits))
        return softplus / softplus.mean(1, keepdim=True)

    def cost_of_classes(self, f: Tensor) -> Tensor:
        f, top = f / self.temperature, _largest(f)
        # Logarithms of the sum over the other classes; by itself for the largest, which may be
        # nearly all of the sum.
        others = torch.where(top, 0.0, -torch.softmax(f, 1)).log1p() + f.logsumexp(1, keepdim=True)
        below = f.masked_fill(top, -math.inf).logsumexp(1, keepdim=True)
        odds = torch.where(top, below, others) - f + self.margin / self.temperature
        zero = torch.zeros_like(f)
        return self.temperature * (torch.logaddexp(odds, zero) - math.log(f.shape[1]))


class LogitClipLoss(StandardLoss):
    """LogitClip, cross-entropy of ``z min(1, τ / ‖z‖)``, bounded (Wei et al. 2023).

    z are the logits of a sample, and the norm is Euclidean (ICML 2023, arXiv:2212.04055).

    Args:
        tau: τ, above 0; without end cross-entropy.
        settings: As `StandardLoss`.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import LogitClipLoss
        >>> LogitClipLoss(tau=1.0)(torch.tensor([[5.0, 0.0]]), torch.tensor([1]))
        tensor(1.3133)
    """

    def __init__(self, tau: float = 2.5, **settings: Any) -> None:
        super().__init__(**settings)
        self.tau = _above_zero("tau", tau)

    def outputs(self, logits: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(logits, dim=1, keepdim=True)
        return torch.log_softmax(logits * (self.tau / norm.clamp(min=self.tau)), dim=1)

    def cost_of_classes(self, log_y: Tensor) -> Tensor:
        return -log_y


def _reverse_cross_entropy(log_y: Tensor) -> Tensor:
    return -LOG_OF_ZERO * one_minus_y(log_y)


def _normalized_cross_entropy(log_y: Tensor) -> Tensor:
    # The sum is never above -n log n, which it has at the uniform prediction.
    return log_y / log_y.sum(1, keepdim=True)


def _largest(outputs: Tensor) -> Tensor:
    """Whether each class has the largest output, the first of equal ones."""
    none = torch.zeros_like(outputs, dtype=torch.bool)
    return none.scatter(1, outputs.argmax(1, keepdim=True), True)


def _above_zero(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be above 0, not {value!r}.")
    return value
