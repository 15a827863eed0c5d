"""From a recipe to its search space, and from a point of that space to a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from optuna.pruners import BasePruner, NopPruner
from optuna.trial import FrozenTrial

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.losses.anchored import Anchor, first_gradient, is_steady
from optuna_taylorglo.losses.canonical import (
    Canonical,
    collapse_ratio,
    from_canonical,
    normalize_scale,
    to_canonical,
    trainability,
)
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.glo.replay import TreePoint, stored_point
from optuna_taylorglo.search.glo.sampler import GLOSampler
from optuna_taylorglo.search.pruners import EarlyAbortPruner, EarlyEndPruner, FallingBehindPruner
from optuna_taylorglo.search.sampler import GenerationSampler, TaylorGLOSampler
from optuna_taylorglo.search.study import form_of, resolve_start, retry_policy

if TYPE_CHECKING:
    from optuna_taylorglo.losses.taylor import TaylorLoss
    from optuna_taylorglo.losses.tree_loss import TreeLoss

Point = tuple[float, ...] | TreePoint
"""A candidate: numbers in the order of `parameter_names`, or a tree with its coefficients."""


# Units in which a step of CMA-ES means about as much in every direction: σ = 1.2 is a factor of 3
# on the learning rate, and 0.12 of label smoothing. Below 0, smoothing makes cross-entropy
# unbounded from below, and nearly all trainings on clean labels diverge.
_ANCHOR_UNITS = Anchor(log_scale=1.0, smoothing=0.1)
_ANCHOR_LIMITS = {"log_scale": (-10.0, 10.0), "smoothing": (0.0, 0.9)}


def parameter_names(recipe: Recipe) -> tuple[str, ...]:
    """Names of the parameters that the search varies; none of them has a name in a GLO search."""
    if recipe.search.method == "glo":
        return ()
    canonical = recipe.search.space == "canonical"
    names = Canonical._fields if canonical else form_of(recipe).parameter_names
    return names + _anchor_names(recipe)


def _anchor_names(recipe: Recipe) -> tuple[str, ...]:
    if recipe.loss.base == "none":
        return ()
    # Told apart from the start, the scale of an anchored loss is normalized by leaving it alone.
    return Anchor._fields if recipe.search.scale == "free" else ("smoothing",)


def stored_candidate(recipe: Recipe, trial: FrozenTrial) -> Point | None:
    """The candidate that a trial holds; None if it holds none, as anybody's trial may."""
    if recipe.search.method == "glo":
        return stored_point(trial)
    values = [trial.params.get(name) for name in parameter_names(recipe)]
    numbers = [float(value) for value in values if value is not None and _is_number(value)]
    return tuple(numbers) if len(numbers) == len(values) else None


def missing_in(recipe: Recipe, trial: FrozenTrial) -> str:
    """What a trial that is no candidate lacks to be one, first of all."""
    missing = (n for n in parameter_names(recipe) if not _is_number(trial.params.get(n)))
    return next(missing, "tree with its coefficients")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def candidate_loss(
    recipe: Recipe, parameters: Sequence[float] | TreePoint, n_classes: int
) -> TaylorLoss | TreeLoss:
    """The loss that a candidate stands for.

    Args:
        recipe: The recipe.
        parameters: The candidate, in the order of `parameter_names`; in a GLO search a tree.
        n_classes: Number of classes of the data.

    Raises:
        ValueError: If scales are normalized and the candidate has none (it cannot learn), or a
            tree is malformed.
    """
    if isinstance(parameters, TreePoint):
        return _tree_loss(recipe, parameters, n_classes)
    from optuna_taylorglo.losses.taylor import TaylorLoss

    form, reduction = form_of(recipe), recipe.loss.class_reduction
    theta, anchor = _proposed(recipe, form, parameters)
    if anchor is None and recipe.search.scale == "normalized":
        theta = normalize_scale(theta, n_classes, form, class_reduction=reduction)
    loss = TaylorLoss(
        theta,
        **asdict(form),
        class_reduction=reduction,
        base=recipe.loss.base,
        **({} if anchor is None else anchor._asdict()),
        **loss_conventions(recipe),
    )
    loss.n_classes = n_classes
    return loss


def _tree_loss(recipe: Recipe, point: TreePoint, n_classes: int) -> TreeLoss:
    from optuna_taylorglo.losses.tree_loss import TreeLoss

    loss = TreeLoss(
        point.tree,
        point.coefficients or None,
        class_reduction=recipe.loss.class_reduction,
        **loss_conventions(recipe),
    )
    loss.n_classes = n_classes
    return loss


def loss_conventions(recipe: Recipe) -> dict[str, Any]:
    """What the recipe sets of the arguments that every loss here has in common.

    Candidates and all that they are compared with are built with it, and so differ in nothing but
    the loss.

    Returns:
        Arguments of `nn.CrossEntropyLoss`, of `TaylorLoss` or of a standard loss; none at default.

    Raises:
        RecipeError: If weights are to be balanced, and no worker has counted labels yet.
    """
    import torch

    loss, arguments = recipe.loss, {}
    if loss.class_weights == "balanced":
        raise RecipeError("loss.class_weights", "balanced is not settled: no worker has begun")
    if loss.class_weights is not None:
        arguments["weight"] = torch.tensor(loss.class_weights)
    for name in ("label_smoothing", "ignore_index"):
        if (value := getattr(loss, name)) != type(loss).model_fields[name].default:
            arguments[name] = value
    return arguments


def make_sampler(recipe: Recipe, n_classes: int) -> GenerationSampler:
    """The sampler that proposes the recipe's candidates."""
    search, rules = recipe.search, retry_policy(recipe)
    if search.glo is not None:
        limits = {"attempts": rules.attempts, "max_failures": rules.max_failures}
        return GLOSampler(search.glo, seed=search.seed, **limits)
    return make_taylor_sampler(recipe, n_classes)


def make_taylor_sampler(recipe: Recipe, n_classes: int) -> TaylorGLOSampler:
    """The sampler of a TaylorGLO search."""
    form = form_of(recipe)

    def promises(parameters: Sequence[float]) -> bool:
        theta, anchor = _proposed(recipe, form, parameters)
        if anchor is not None:
            check = is_steady if recipe.search.filter == "steady" else first_gradient
            reduction = recipe.loss.class_reduction
            return check(theta, n_classes, form, anchor=anchor, class_reduction=reduction) > 0
        if trainability(theta, n_classes, form) <= 0:
            return False
        return recipe.search.filter == "trainable" or collapse_ratio(theta, n_classes, form) < 1

    anchored = _anchor_names(recipe)
    start = resolve_start(recipe).search.start
    theta = () if start is None or start.theta is None else start.theta
    if theta and recipe.search.space == "canonical":
        theta = to_canonical(theta, form)
    return TaylorGLOSampler(
        names=parameter_names(recipe),
        sigma=recipe.search.sigma,
        seed=recipe.search.seed,
        **asdict(retry_policy(recipe)),
        accept=None if recipe.search.filter == "none" else promises,
        units={name: getattr(_ANCHOR_UNITS, name) for name in anchored},
        limits={name: _ANCHOR_LIMITS[name] for name in anchored},
        x0=dict(zip(parameter_names(recipe), theta, strict=False)),
    )


def make_pruner(recipe: Recipe, in_steps: Callable[[int, str], int]) -> EarlyEndPruner:
    """The pruner that gives up the recipe's hopeless candidates; reports count optimizer steps.

    Args:
        recipe: The recipe.
        in_steps: Turns a length in "steps" or "epochs" into a number of optimizer steps.
    """
    abort: BasePruner = NopPruner()
    stop: BasePruner = NopPruner()
    if (rule := recipe.early_abort) is not None:
        step = in_steps(rule.at, rule.unit)
        abort = EarlyAbortPruner(rule.threshold, step, sign=recipe.fitness.sign)
    if (pace := recipe.early_stop) is not None:
        step = in_steps(pace.at, pace.unit)
        stop = FallingBehindPruner(
            popsize=recipe.search.popsize if recipe.search.glo is None else None,
            keep=pace.keep,
            step=step,
            sign=recipe.fitness.sign,
            overlap=recipe.search.overlap,
        )
    return EarlyEndPruner(abort, stop)


def _proposed(
    recipe: Recipe, form: Expansion, parameters: Sequence[float]
) -> tuple[tuple[float, ...], Anchor | None]:
    """θ as the search proposes it, before its scale is normalized, and the anchor if any."""
    names = _anchor_names(recipe)
    shape = tuple(parameters[: len(parameters) - len(names)])
    theta = from_canonical(shape, form) if recipe.search.space == "canonical" else shape
    if recipe.loss.base == "none":
        return theta, None
    return theta, Anchor(**dict(zip(names, parameters[len(shape) :], strict=True)))
