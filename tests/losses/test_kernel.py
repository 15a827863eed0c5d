"""The loss inside PyTorch's machinery: numerical safety, torch.func, compilation, no waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.taylor import TaylorLoss, taylor_loss

FORMS = [("x", "y"), ("x", "y", "t"), ("x", "y", "z")]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def theta_for(variables: tuple[str, ...], order: int = 3, seed: int = 0) -> Tensor:
    return normal(Expansion(order, variables).n_parameters, seed=seed, dtype=torch.float64)


def targets(kind: str, batch: int, n: int) -> Tensor:
    hard = torch.arange(batch) * 7 % n
    return hard if kind == "hard" else torch.softmax(normal(batch, n, seed=9), dim=1)


def loss_of(variables: tuple[str, ...], **settings: Any) -> TaylorLoss:
    loss = TaylorLoss(theta_for(variables), variables=variables, **settings)
    loss.progress = 0.5
    return loss


ANCHOR = {"base": "cross_entropy", "log_scale": -0.3, "smoothing": 0.15}


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("variables", FORMS)
@pytest.mark.parametrize("settings", [{}, ANCHOR])
def test_extreme_logits_are_finite_and_right(
    settings: dict[str, Any], variables: tuple[str, ...], kind: str
) -> None:
    for n in (2, 1000):
        logits = 1e4 * torch.sign(normal(8, n))
        logits[0] = 1e4
        logits[1] = -1e4
        logits.requires_grad_()
        loss, target = loss_of(variables, **settings), targets(kind, 8, n)
        value = loss(logits, target)
        (gradient,) = torch.autograd.grad(value, logits)
        assert value.dtype == torch.float32
        assert gradient.isfinite().all()
        exact = loss(logits.double(), target)
        assert exact.dtype == torch.float64
        torch.testing.assert_close(value.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_half_precision_logits_are_evaluated_in_float32(
    kind: str, dtype: torch.dtype, autocast: bool
) -> None:
    logits = (3 * normal(32, 50)).to(dtype).requires_grad_()
    loss, target = loss_of(("x", "y")).half(), targets(kind, 32, 50)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        value = loss(logits, target)
        pure = taylor_loss(logits, target, theta_for(("x", "y")))
    expected = loss(logits.double(), target)
    for each in (value, pure):
        assert each.dtype == torch.float32
        torch.testing.assert_close(each.double(), expected, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(each, logits)[0] for each in (value, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("variables", FORMS)
def test_vmap_over_theta_is_a_loop(variables: tuple[str, ...], kind: str) -> None:
    thetas = torch.stack([theta_for(variables, seed=seed) for seed in range(6)])
    logits, target = normal(5, 4, dtype=torch.float64), targets(kind, 5, 4)

    def loss(theta: Tensor, logits: Tensor) -> Tensor:
        return taylor_loss(logits, target, theta, variables=variables, progress=0.5)

    batched = vmap(loss, in_dims=(0, None))(thetas, logits)
    torch.testing.assert_close(batched, torch.stack([loss(theta, logits) for theta in thetas]))
    gradients = vmap(grad(loss, argnums=1), in_dims=(0, None))(thetas, logits)
    looped = torch.stack([grad(loss, argnums=1)(theta, logits) for theta in thetas])
    torch.testing.assert_close(gradients, looped)


@pytest.mark.parametrize("settings", [{}, ANCHOR])
def test_torch_func_over_the_module(settings: dict[str, Any]) -> None:
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0])
    loss = TaylorLoss(normal(8), weight=weight, label_smoothing=0.1, **settings)
    logits, target = normal(5, 4, dtype=torch.float64), torch.tensor([0, 1, -100, 3, 2])
    leaf = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, target), leaf, create_graph=True)
    torch.testing.assert_close(grad(loss)(logits, target), expected.detach())
    tangent = normal(5, 4, seed=1, dtype=torch.float64)
    _, slope = jvp(lambda z: loss(z, target), (logits,), (tangent,))
    torch.testing.assert_close(slope, (expected * tangent).sum().detach())
    (product,) = torch.autograd.grad((expected * tangent).sum(), leaf)
    curvature = hessian(lambda z: loss(z, target))(logits)
    torch.testing.assert_close(torch.einsum("abcd,cd->ab", curvature, tangent), product)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize(
    ("variables", "settings"),
    [(("x", "y"), {}), (("x", "y"), ANCHOR), (("x", "y", "z", "t"), {})],
)
def test_one_compilation_serves_every_loss_and_equals_eager(
    variables: tuple[str, ...], settings: dict[str, Any], kind: str
) -> None:
    graphs, target = [], targets(kind, 8, 5)
    if kind == "hard":
        target[3] = -100

    def backend(module: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    def step(loss: TaylorLoss, logits: Tensor) -> Tensor:
        return loss(logits, target)

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for seed in range(3):
        theta = theta_for(variables, seed=seed)
        loss = TaylorLoss(theta, variables=variables, label_smoothing=0.1, **settings)
        for progress in (0.0, 0.5):
            loss.progress = progress
            results = []
            for function in (step, compiled):
                logits = normal(8, 5).requires_grad_()
                value = function(loss, logits)
                results.append((value.detach(), *torch.autograd.grad(value, logits)))
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1


@pytest.mark.slow
def test_compiled_by_inductor_equals_eager() -> None:
    loss, logits, target = loss_of(("x", "y"), **ANCHOR), normal(8, 5), targets("hard", 8, 5)
    compiled = torch.compile(loss, fullgraph=True)
    torch.testing.assert_close(compiled(logits, target), loss(logits, target))


class Watch(TorchDispatchMode):
    """Counts operators, and refuses those whose result the host would have to wait for."""

    waiting = ("_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in self.waiting, f"the host waits for {func}"
        self.operators += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("variables", FORMS)
def test_never_waits_and_never_loops_over_classes(
    variables: tuple[str, ...], kind: str, weighted: bool
) -> None:
    """On a device to wait for, that is: "meta" stands for it, and sets itself up at first use."""
    operators = []
    for n in (2, 3, 300):
        weight = torch.ones(n, device="meta") if weighted else None
        loss = TaylorLoss(theta_for(variables), variables=variables, weight=weight).to("meta")
        logits, target = normal(8, n).to("meta").requires_grad_(), targets(kind, 8, n).to("meta")
        theta = theta_for(variables).float().to("meta")
        with Watch() as watch:
            loss(logits, target).backward()
            loss(logits, target).backward()
            taylor_loss(logits, target, theta, variables=variables, weight=weight).backward()
        operators.append(watch.operators)
    assert operators[1] == operators[2]
