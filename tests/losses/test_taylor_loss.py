"""Taylor losses: their definition, and PyTorch's machinery around them."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, hessian, jvp, vmap
from torch.nn.functional import cross_entropy, one_hot
from torch.utils._python_dispatch import TorchDispatchMode

from optuna_taylorglo.losses.canonical import from_canonical
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.taylor import TaylorLoss, taylor_loss

EXACT = {"rtol": 1e-10, "atol": 1e-10}
FORMS = [("x", "y"), ("x", "y", "t"), ("y", "x"), ("y",), ("x", "z"), ("t", "z", "x", "y")]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, dtype=torch.float64, generator=generator)


def labels(*shape: int, n: int, seed: int = 0) -> Tensor:
    return torch.randint(0, n, shape, generator=torch.Generator().manual_seed(seed))


def equation_5(
    logits: Tensor, x: Tensor, theta: Tensor, *, folded: bool, class_reduction: str
) -> Tensor:
    """Eq. 5 of the paper, term by term."""
    b, a = x - theta[0], torch.softmax(logits, dim=1) - theta[1]
    half, sixth = (1.0, 1.0) if folded else (1 / 2, 1 / 6)
    f = theta[2] * a + half * theta[3] * a**2 + sixth * theta[4] * a**3
    f = f + theta[5] * b * a + half * theta[6] * b * a**2 + half * theta[7] * b**2 * a
    return -(f.mean(dim=1) if class_reduction == "mean" else f.sum(dim=1)).mean()


def any_order(
    logits: Tensor, x: Tensor, theta: Tensor, *, order: int, variables: tuple[str, ...], t: float
) -> Tensor:
    """The trimmed expansion of any order by brute force; mean over classes and samples."""
    values = {"x": x, "y": torch.softmax(logits, dim=1), "z": logits, "t": torch.tensor(t)}
    coefficients, total = iter(theta[len(variables) :]), torch.zeros_like(logits)
    for exponents in itertools.product(range(order + 1), repeat=len(variables)):
        alpha = dict(zip(variables, exponents, strict=True))
        if sum(exponents) > order or alpha.get("y", 0) + alpha.get("z", 0) == 0:
            continue
        term = next(coefficients)
        for (v, e), center in zip(alpha.items(), theta, strict=False):
            term = term * (values[v] - center) ** e / math.factorial(e)
        total = total + term
    assert next(coefficients, None) is None
    return -total.mean()


def value_and_gradient(loss: Any, logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    value = loss(leaf, *rest)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


def assert_is(
    written_out: Callable[[Tensor, Tensor], Tensor],
    theta: Tensor,
    logits: Tensor,
    *,
    t: float = 0.0,
    **form: Any,
) -> None:
    """The module and the pure function are what is written out, for hard and soft targets."""
    module, n = TaylorLoss(theta, **form), logits.shape[1]
    module.progress = t
    hard, soft = labels(len(logits), n=n), torch.softmax(normal(*logits.shape, seed=100), dim=1)
    for target, x in ((hard, one_hot(hard, n).double()), (soft, soft)):
        expected = value_and_gradient(written_out, logits, x)
        torch.testing.assert_close(value_and_gradient(module, logits, target), expected, **EXACT)
        pure = value_and_gradient(partial(taylor_loss, progress=t, **form), logits, target, theta)
        torch.testing.assert_close(pure, expected, **EXACT)


@pytest.mark.parametrize("class_reduction", ["mean", "sum"])
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("n", [2, 10, 1000])
def test_equation_5_to_the_letter(n: int, folded: bool, class_reduction: str) -> None:
    form: dict[str, Any] = {"folded": folded, "class_reduction": class_reduction}
    for seed in range(2):
        theta, logits = normal(8, seed=seed, scale=2.0), normal(16, n, seed=seed, scale=3.0)
        assert_is(partial(equation_5, theta=theta, **form), theta, logits, **form)


@pytest.mark.parametrize("order", range(1, 7))
@pytest.mark.parametrize("variables", FORMS)
def test_any_order_and_variables(order: int, variables: tuple[str, ...]) -> None:
    theta = normal(Expansion(order, variables).n_parameters, seed=order, scale=0.7)
    form: dict[str, Any] = {"order": order, "variables": variables, "t": 0.375}
    assert_is(partial(any_order, theta=theta, **form), theta, normal(6, 5), **form)


CANONICAL = (1.3, -0.6, 0.7, -0.4)
ANCHORED = {"class_reduction": "sum", "base": "cross_entropy"}


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize(("s", "eps"), [(0.0, 0.0), (-1.5, 0.3), (0.7, -0.2)])
def test_anchored_losses_are_their_definition(n: int, s: float, eps: float) -> None:
    logits, target = normal(32, n, scale=3.0), labels(32, n=n)

    def written_out(logits: Tensor) -> Tensor:
        alpha, beta, gamma, delta = CANONICAL
        y = torch.softmax(logits, dim=1)
        y_t = y.gather(1, target[:, None]).squeeze(1)
        f = alpha * y_t + beta / 2 * y_t**2 + (gamma / 2 * y**2 + delta / 3 * y**3).sum(dim=1)
        x = one_hot(target, n).double() * (1 - eps) + eps / n
        return (math.exp(s) * (-(x * torch.log_softmax(logits, dim=1)).sum(dim=1) - f)).mean()

    loss = TaylorLoss(from_canonical(CANONICAL), log_scale=s, smoothing=eps, **ANCHORED)
    found = value_and_gradient(loss, logits, target)
    torch.testing.assert_close(found, value_and_gradient(written_out, logits), **EXACT)


def test_two_smoothings_are_one_after_the_other() -> None:
    logits, target = normal(9, 5), labels(9, n=5)
    both = TaylorLoss([0.0] * 8, smoothing=0.2, label_smoothing=0.3, **ANCHORED)
    expected = cross_entropy(logits, target, label_smoothing=0.44)
    torch.testing.assert_close(both(logits, target), expected, **EXACT)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(
    "settings", [{}, {**ANCHORED, "log_scale": -0.3, "smoothing": 0.15}, {"variables": "xyz"}]
)
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_first_and_second_derivatives(kind: str, settings: dict[str, Any], reduction: str) -> None:
    theta = normal(19 if "variables" in settings else 8)
    loss = TaylorLoss(theta, reduction=reduction, label_smoothing=0.1, **settings)
    target = torch.tensor([0, -100, 2]) if kind == "hard" else torch.softmax(normal(3, 4), dim=1)
    logits, function = normal(3, 4, seed=3).requires_grad_(), partial(loss, target=target)
    modes = {"check_forward_ad": True, "check_batched_grad": True}
    assert torch.autograd.gradcheck(function, logits, **modes)
    assert torch.autograd.gradgradcheck(function, logits)


def test_the_pure_function_is_differentiable_in_all_parameters() -> None:
    logits, target = normal(5, 4), labels(5, n=4)
    theta = from_canonical(CANONICAL)
    parameters = torch.tensor([*theta, -0.3, 0.15], dtype=torch.float64, requires_grad=True)

    def pure(p: Tensor) -> Tensor:
        return taylor_loss(logits, target, p[:8], log_scale=p[8], smoothing=p[9], **ANCHORED)

    module = TaylorLoss(theta, log_scale=-0.3, smoothing=0.15, **ANCHORED)
    torch.testing.assert_close(pure(parameters), module(logits, target))
    assert torch.autograd.gradcheck(pure, (parameters,))
    several = vmap(pure)(torch.stack([parameters, 2 * parameters]).detach())
    torch.testing.assert_close(several[0], pure(parameters).detach())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": "mse"}, "base must be one of none, cross_entropy, not 'mse'"),
        ({"base": "none", "log_scale": 1.0}, "log_scale is 1; it needs base='cross_entropy'"),
        ({"smoothing": 1.0}, r"smoothing must be in \[-1, 1\), not 1\.0"),
        ({"smoothing": math.nan}, "smoothing must be in"),
        ({"log_scale": math.inf}, r"log_scale must be in \[-50, 50\], not inf"),
    ],
)
def test_wrong_arguments_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaylorLoss([0.0] * 8, **(ANCHORED | settings))
    with pytest.raises(ValueError, match=r"theta has shape \(7,\); order 3 .* takes \(8,\)"):
        taylor_loss(torch.zeros(2, 4), torch.tensor([0, 1]), torch.zeros(7))


WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=torch.float64)


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_weight_is_the_mean_weight_under_the_smoothed_target(kind: str, smoothing: float) -> None:
    theta, logits, hard = normal(8), normal(7, 4), labels(7, n=4)
    x = one_hot(hard, 4).double() if kind == "hard" else torch.softmax(normal(7, 4, seed=5), 1)
    smooth, total = (1 - smoothing) * x + smoothing / 4, WEIGHT[hard].sum() if kind == "hard" else 7
    unweighted = TaylorLoss(theta, reduction="none")
    losses = unweighted(logits, smooth) * (smooth @ WEIGHT)
    for reduction, expected in (("none", losses), ("mean", losses.sum() / total)):
        loss = TaylorLoss(theta, weight=WEIGHT, label_smoothing=smoothing, reduction=reduction)
        torch.testing.assert_close(loss(logits, hard if kind == "hard" else x), expected, **EXACT)


def test_the_state_is_that_of_cross_entropy_whatever_the_type() -> None:
    loss = TaylorLoss(normal(13), variables=("x", "y", "t"), weight=WEIGHT)
    loss.progress = 0.3
    assert list(loss.state_dict()) == list(nn.CrossEntropyLoss(weight=WEIGHT).state_dict())
    assert list(loss.parameters()) == []
    theta, logits, target = torch.tensor(loss.theta).double(), normal(5, 4), labels(5, n=4)
    settings: dict[str, Any] = {"variables": ("x", "y", "t"), "progress": 0.3, "weight": WEIGHT}
    exact = taylor_loss(logits, target, theta, **settings)
    torch.testing.assert_close(loss.half().bfloat16()(logits, target), exact)
    on_meta = loss.to("meta")(logits.to("meta"), target.to("meta"))
    assert (on_meta.shape, on_meta.device.type) == ((), "meta")


def test_copies_are_the_same_loss() -> None:
    logits, target = normal(5, 4), labels(5, n=4)
    loss = TaylorLoss(normal(13), variables=("x", "y", "t"))
    loss.progress = 0.5
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(other(logits, target), loss(logits, target))
        other.progress = 0.9
        assert loss.progress.item() == 0.5


def test_settings_may_change_between_calls() -> None:
    loss, logits, target = TaylorLoss(normal(8)), normal(5, 4), labels(5, n=4)
    for settings in ({"label_smoothing": 0.2}, {"label_smoothing": 0.0, "class_reduction": "sum"}):
        vars(loss).update(settings)
        assert torch.equal(loss(logits, target), TaylorLoss(normal(8), **settings)(logits, target))


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("center", [0.5, (0.3, 0.5)])
def test_cross_entropys_expansion_converges_to_it(center: Any, folded: bool) -> None:
    p = torch.tensor([0.45, 0.55], dtype=torch.float64)
    logits, target = torch.stack([p.log(), (1 - p).log()], dim=1), torch.zeros(2).long()
    _, expected = value_and_gradient(cross_entropy, logits, target)
    errors = []
    for order in (2, 4, 8, 16):
        loss = TaylorLoss.from_cross_entropy(order, center, folded=folded)
        _, gradient = value_and_gradient(loss, logits, target)
        errors.append((gradient - expected).abs().max().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-8


def theta_for(variables: tuple[str, ...], seed: int = 0) -> Tensor:
    return normal(Expansion(3, variables).n_parameters, seed=seed)


def targets(kind: str, batch: int, n: int) -> Tensor:
    return labels(batch, n=n) if kind == "hard" else torch.softmax(normal(batch, n, seed=9), dim=1)


def loss_of(variables: tuple[str, ...], **settings: Any) -> TaylorLoss:
    loss = TaylorLoss(theta_for(variables), variables=variables, **settings)
    loss.progress = 0.5
    return loss


KERNEL_FORMS = [("x", "y"), ("x", "y", "t"), ("x", "y", "z")]
ANCHOR = {"base": "cross_entropy", "log_scale": -0.3, "smoothing": 0.15}


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("variables", KERNEL_FORMS)
@pytest.mark.parametrize("settings", [{}, ANCHOR])
def test_extreme_logits_are_finite_and_right(
    settings: dict[str, Any], variables: tuple[str, ...], kind: str
) -> None:
    for n in (2, 1000):
        logits = 1e4 * torch.sign(normal(8, n).float())
        logits[0], logits[1] = 1e4, -1e4
        loss, target = loss_of(variables, **settings), targets(kind, 8, n)
        value, gradient = value_and_gradient(loss, logits, target)
        assert gradient.isfinite().all()
        exact = loss(logits.double(), target)
        assert (value.dtype, exact.dtype) == (torch.float32, torch.float64)
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
@pytest.mark.parametrize("variables", KERNEL_FORMS)
def test_vmap_over_theta_is_a_loop(variables: tuple[str, ...], kind: str) -> None:
    thetas = torch.stack([theta_for(variables, seed=seed) for seed in range(6)])
    logits, target = normal(5, 4), targets(kind, 5, 4)

    def loss(theta: Tensor, logits: Tensor) -> Tensor:
        return taylor_loss(logits, target, theta, variables=variables, progress=0.5)

    for function in (loss, grad(loss, argnums=1)):
        batched = vmap(function, in_dims=(0, None))(thetas, logits)
        looped = torch.stack([function(theta, logits) for theta in thetas])
        torch.testing.assert_close(batched, looped)


@pytest.mark.parametrize("settings", [{}, ANCHOR])
def test_torch_func_over_the_module(settings: dict[str, Any]) -> None:
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0])
    loss = TaylorLoss(normal(8), weight=weight, label_smoothing=0.1, **settings)
    logits, target = normal(5, 4), torch.tensor([0, 1, -100, 3, 2])
    leaf = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, target), leaf, create_graph=True)
    torch.testing.assert_close(grad(loss)(logits, target), expected.detach())
    tangent = normal(5, 4, seed=1)
    _, slope = jvp(lambda z: loss(z, target), (logits,), (tangent,))
    torch.testing.assert_close(slope, (expected * tangent).sum().detach())
    (product,) = torch.autograd.grad((expected * tangent).sum(), leaf)
    curvature = hessian(lambda z: loss(z, target))(logits)
    torch.testing.assert_close(torch.einsum("abcd,cd->ab", curvature, tangent), product)


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize(
    ("variables", "settings"),
    [(("x", "y"), {}), (("x", "y"), ANCHOR), (("x", "y", "z", "t"), {})],
)
def test_one_compilation_serves_every_loss_and_equals_eager(
    variables: tuple[str, ...], settings: dict[str, Any], kind: str
) -> None:
    torch.compiler.reset()
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
        loss.n_classes = 5
        for progress in (0.0, 0.5):
            loss.progress = progress
            results = [
                value_and_gradient(partial(function, loss), normal(8, 5).float())
                for function in (step, compiled)
            ]
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1


@pytest.mark.slow
def test_compiled_by_inductor_equals_eager() -> None:
    torch.compiler.reset()
    loss, batch = loss_of(("x", "y"), **ANCHOR), (normal(8, 5), targets("hard", 8, 5))
    torch.testing.assert_close(torch.compile(loss, fullgraph=True)(*batch), loss(*batch))


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
@pytest.mark.parametrize("variables", KERNEL_FORMS)
def test_never_waits_and_never_loops_over_classes(
    variables: tuple[str, ...], kind: str, weighted: bool
) -> None:
    """On a device to wait for, that is: "meta" stands for it, and sets itself up at first use."""
    operators = []
    for n in (2, 3, 300):
        weight = torch.ones(n, device="meta") if weighted else None
        loss = TaylorLoss(theta_for(variables), variables=variables, weight=weight).to("meta")
        logits, target = (v.to("meta") for v in (normal(8, n), targets(kind, 8, n)))
        logits.requires_grad_()
        theta = theta_for(variables).to("meta")
        with Watch() as watch:
            loss(logits, target).backward()
            loss(logits, target).backward()
            taylor_loss(logits, target, theta, variables=variables, weight=weight).backward()
        operators.append(watch.operators)
    assert operators[1] == operators[2]
