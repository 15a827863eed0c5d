"""Training functions that take milliseconds, for searches in Python."""

from __future__ import annotations

import torch
from torch import nn

from optuna_taylorglo import Candidate

_generator = torch.Generator().manual_seed(0)
Y = torch.arange(90) % 3
X = torch.randn(90, 2, generator=_generator) + 2 * nn.functional.one_hot(Y, 3)[:, :2]
NOISY = torch.where(torch.rand(90, generator=_generator) < 0.3, (Y + 1) % 3, Y)
EVALUATED: list[int] = []  # seeds, by this process


def fit(candidate: Candidate, kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> nn.Module:
    """A linear network after ten steps."""
    torch.manual_seed(candidate.seed)
    net = nn.Linear(2, 3)
    optimizer = kind(net.parameters(), lr=0.1 * candidate.lr_factor)
    for step in range(10):
        optimizer.zero_grad()
        candidate.loss(net(X[:60]), NOISY[:60]).backward()
        optimizer.step()
        if step == 4:
            candidate.report(0.5, 5)
    EVALUATED.append(candidate.seed)
    return net


def metric(net: nn.Module) -> float:
    """A smooth validation metric: the mean probability of the label."""
    return float(net(X[60:]).softmax(1)[torch.arange(30), NOISY[60:]].mean().detach())


def train(candidate: Candidate) -> float:
    return metric(fit(candidate))


def test(candidate: Candidate) -> float:
    return float((fit(candidate)(X[60:]).argmax(1) == Y[60:]).float().mean())


def with_adam(candidate: Candidate) -> float:
    return metric(fit(candidate, torch.optim.Adam))


def without_lr_factor(candidate: Candidate) -> float:
    """Adam, at a learning rate that follows nothing."""
    plain = Candidate(candidate.loss, candidate.seed)
    return metric(fit(plain, torch.optim.Adam))
