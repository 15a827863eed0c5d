"""From a recipe to its search space, sampler and pruner, and from a candidate to its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from optuna.trial import FrozenTrial

from optuna_taylorglo.errors import LossFileError, RecipeError
from optuna_taylorglo.evolution.glo import GLOReplay, GLOSampler, TreePoint, stored_point
from optuna_taylorglo.evolution.pruners import EarlyAbortPruner, EarlyEndPruner, FallingBehindPruner
from optuna_taylorglo.evolution.sampler import ANCHOR_LIMITS, ANCHOR_UNITS, TaylorGLOSampler
from optuna_taylorglo.evolution.scheduler import (
    GenerationLog,
    GenerationSampler,
    RetryPolicy,
    stored_params,
)
from optuna_taylorglo.losses import canonical
from optuna_taylorglo.losses.canonical import Anchor, is_steady
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.tree import (
    BAIKAL,
    BAIKAL_CMA_COEFFICIENTS,
    CROSS_ENTROPY_TREE,
    Tree,
    expanded_theta,
)
from optuna_taylorglo.recipes.presets import BOX, COLD_SEARCH, Shape
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.recipes.settings import StartSettings

if TYPE_CHECKING:
    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

R = TypeVar("R", bound=Recipe)

# A candidate: numbers in the order of `parameter_names`, or a tree with its coefficients.
Point = tuple[float, ...] | TreePoint

MAX_FAILURES = 3  # failed evaluations of a candidate that are repeated; one more, it ranks last

# Losses that a search can start at by name, as trees with their coefficients.
NAMED: dict[str, tuple[Tree, tuple[float, ...] | None]] = {
    "cross_entropy": (CROSS_ENTROPY_TREE, None),
    "baikal": (BAIKAL, None),
    "baikal_cma": (BAIKAL, BAIKAL_CMA_COEFFICIENTS),
}


def form_of(recipe: Recipe) -> Expansion:
    """The form of the losses of a Taylor search."""
    return Expansion(recipe.loss.order, recipe.loss.variables, recipe.loss.folded)


def _anchor_names(recipe: Recipe) -> tuple[str, ...]:
    if recipe.loss.base == "none":
        return ()
    # Anchored losses have an explicit scale; normalizing means not searching it.
    is_fixed = recipe.search.scale in ("fixed", "normalized")
    return ("smoothing",) if is_fixed else Anchor._fields


def parameter_names(recipe: Recipe) -> tuple[str, ...]:
    """Names of the parameters that the search varies; a GLO search has none by name."""
    if recipe.search.method == "glo":
        return ()
    is_canonical = recipe.search.space == "canonical"
    names = canonical.Canonical._fields if is_canonical else form_of(recipe).parameter_names
    return names + _anchor_names(recipe)


def stored_candidate(recipe: Recipe, trial: FrozenTrial) -> Point | None:
    """The candidate that a trial holds; None if it holds none, as a user's own trial may."""
    if recipe.search.method == "glo":
        return stored_point(trial)
    return stored_params(trial, parameter_names(recipe))


class _Parts(NamedTuple):
    """What the parameters of a candidate mean."""

    theta: tuple[float, ...]  # as the search proposes it, before its scale is normalized
    anchor: Anchor | None
    lr_factor: float | None  # None where the scale of a loss acts


def _parts(recipe: Recipe, parameters: Sequence[float]) -> _Parts:
    names = _anchor_names(recipe)
    n_shape = len(parameters) - len(names)
    theta = tuple(parameters[:n_shape])
    if recipe.search.space == "canonical":
        theta = canonical.from_canonical(theta, form_of(recipe))
    anchor, lr_factor = None, None
    if recipe.loss.base != "none":
        anchor = Anchor(**dict(zip(names, parameters[n_shape:], strict=True)))
    if recipe.search.scale in ("learning_rate", "fixed"):
        lr_factor = 1.0
        if anchor is not None:
            lr_factor, anchor = anchor.scale, anchor._replace(log_scale=0.0)
    return _Parts(theta, anchor, lr_factor)


def candidate_loss(
    recipe: Recipe, parameters: Sequence[float] | TreePoint, n_classes: int
) -> EvolvedLoss:
    """The loss of a candidate; a ValueError if it must be normalized and has no scale."""
    from optuna_taylorglo.losses.taylor import TaylorLoss
    from optuna_taylorglo.losses.tree_loss import TreeLoss

    options = {"class_reduction": recipe.loss.class_reduction, **loss_conventions(recipe)}
    loss: EvolvedLoss
    if isinstance(parameters, TreePoint):
        lr_factor = 1.0 if recipe.search.scale in ("learning_rate", "fixed") else None
        loss = TreeLoss(parameters.tree, parameters.coefficients or None, **options)
    else:
        form = form_of(recipe)
        theta, anchor, lr_factor = _parts(recipe, parameters)
        if anchor is not None:
            options |= anchor._asdict()
        elif recipe.search.scale == "normalized":
            reduction = recipe.loss.class_reduction
            theta = canonical.normalize_scale(theta, n_classes, form, class_reduction=reduction)
        loss = TaylorLoss(theta, **asdict(form), base=recipe.loss.base, **options)
    loss.n_classes, loss.lr_factor = n_classes, lr_factor
    return loss


def loss_conventions(recipe: Recipe) -> dict[str, Any]:
    """The recipe's settings of the arguments that all losses share with `nn.CrossEntropyLoss`."""
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


def retry_policy(recipe: Recipe) -> RetryPolicy:
    """How the trials of a recipe's study fill the slots of its generations."""
    attempts = 1 if recipe.early_abort is None else recipe.early_abort.attempts
    search = recipe.search
    popsize = search.popsize if search.glo is None else search.glo.popsize
    return RetryPolicy(popsize, attempts, MAX_FAILURES, search.overlap, search.rounds)


def new_log(recipe: Recipe) -> GenerationLog:
    """The slots of a recipe's study, before its trials are read."""
    policy, search, maximize = retry_policy(recipe), recipe.search, recipe.fitness.mode == "max"
    if search.glo is None:
        return GenerationLog(policy)
    return GenerationLog(policy, GLOReplay(search.glo, policy, search.seed, maximize=maximize))


def make_sampler(recipe: Recipe, n_classes: int) -> GenerationSampler:
    """The sampler that proposes the recipe's candidates."""
    search, policy = recipe.search, asdict(retry_policy(recipe))
    if search.glo is not None:
        limits = {name: policy[name] for name in ("attempts", "max_failures")}
        return GLOSampler(search.glo, seed=search.seed, **limits)
    form, reduction = form_of(recipe), recipe.loss.class_reduction

    def accept(parameters: Sequence[float]) -> bool:
        theta, anchor, lr_factor = _parts(recipe, parameters)
        if anchor is not None:
            options: dict[str, Any] = {"anchor": anchor, "class_reduction": reduction}
            if search.filter == "steady":
                return is_steady(theta, n_classes, form, lr_factor=lr_factor, **options)
            return canonical.first_gradient(theta, n_classes, form, **options) > 0
        if canonical.trainability(theta, n_classes, form) <= 0:
            return False
        return search.filter == "trainable" or canonical.collapse_ratio(theta, n_classes, form) < 1

    anchored, x0 = _anchor_names(recipe), {}
    start = resolve_start(recipe).search.start
    if start is not None and start.theta is not None:
        theta = start.theta
        if search.space == "canonical":
            theta = canonical.to_canonical(theta, form)
        x0 = dict(zip(parameter_names(recipe), theta, strict=True))
    units = {name: ANCHOR_UNITS[name] for name in anchored}
    if anchored and start is None and search.space == "canonical":
        ends = {name: BOX[name] for name in parameter_names(recipe)}
        x0 = {name: (low + high) / 2 for name, (low, high) in ends.items()}
        units = {
            name: (high - low) / 4 / COLD_SEARCH["sigma"] for name, (low, high) in ends.items()
        }
    limits = {name: policy[name] for name in policy if name != "rounds"}
    return TaylorGLOSampler(
        names=parameter_names(recipe),
        sigma=search.sigma,
        seed=search.seed,
        **limits,
        known=() if start is None or start.shapes is None else start.shapes,
        accept=None if search.filter == "none" else accept,
        units=units,
        limits={name: ANCHOR_LIMITS[name] for name in anchored},
        x0=x0,
        to_loss=partial(candidate_loss, recipe, n_classes=n_classes),
    )


def make_pruner(recipe: Recipe, in_steps: Callable[[int, str], int]) -> EarlyEndPruner:
    """The pruner that ends hopeless trainings early; `in_steps` converts "steps" or "epochs"."""
    abort = stop = None
    sign, search = recipe.fitness.sign, recipe.search
    if (rule := recipe.early_abort) is not None:
        abort = EarlyAbortPruner(rule.threshold, in_steps(rule.at, rule.unit), sign=sign)
    if (pace := recipe.early_stop) is not None:
        stop = FallingBehindPruner(
            popsize=None if search.glo or search.rounds else search.popsize,
            keep=pace.keep,
            step=in_steps(pace.at, pace.unit),
            sign=sign,
            overlap=search.overlap,
        )
    return EarlyEndPruner(abort, stop)


def resolve_start(recipe: R, winner_of: Callable[[str], EvolvedLoss] | None = None) -> R:
    """The recipe with the numbers that the names of losses, files and studies in its start mean.

    Without `winner_of`, which finds the winner of a study by its name, one with a study stays.
    """
    start, form = recipe.search.start, form_of(recipe)
    if start is None or start.shapes is not None or (start.study and winner_of is None):
        return recipe
    changes: dict[str, Any] = {}
    if start.n_known:
        losses = [(name, _loaded(name, "losses")) for name in start.losses]
        if start.study is not None and winner_of is not None:
            losses.append((f"study {start.study}", winner_of(start.study)))
        changes["shapes"] = tuple(_shape(recipe, *each) for each in losses)
    else:
        theta = _start_theta(start, form) if start.theta is None else start.theta
        if len(theta) != form.n_parameters:
            problem = f"has {len(theta)} numbers, must have {form.n_parameters}: {form}"
            raise RecipeError("search.start.theta", problem)
        changes["theta"] = theta
    return recipe.changed(search=recipe.search.changed(start=start.changed(**changes)))


def _loaded(name: str, field: str) -> EvolvedLoss:
    from optuna_taylorglo.losses.files import load_loss

    try:
        return load_loss(name)
    except LossFileError as error:
        names = f" is none of {', '.join(NAMED)}, and" if field == "loss" else " is"
        problem = f"{name!r}{names} no loss file: {error}"
        raise RecipeError(f"search.start.{field}", problem) from error


def _shape(recipe: Recipe, name: str, loss: EvolvedLoss) -> Shape:
    """α, β, γ, δ and ε of a loss that a search starts with."""
    from optuna_taylorglo.losses.taylor import TaylorLoss

    own = f"{form_of(recipe)} on cross-entropy, {recipe.loss.class_reduction} over classes"
    if not isinstance(loss, TaylorLoss) or loss.anchor is None:
        problem = "is no Taylor loss on cross-entropy"
    elif not canonical.has_canonical_form(loss.form):
        problem = f"has the form {loss.form}"
    elif loss.class_reduction != recipe.loss.class_reduction:
        problem = f"takes the {loss.class_reduction} over classes"
    else:
        return *canonical.to_canonical(loss.theta, loss.form), loss.anchor.smoothing
    advice = f"the recipe's losses are {own}; those of `taylorglo losses` go with it"
    raise RecipeError("search.start.losses", f"{name!r} {problem}: {advice}")


def _start_theta(start: StartSettings, form: Expansion) -> tuple[float, ...]:
    """θ of the loss that a search starts at."""
    from optuna_taylorglo.losses.taylor import TaylorLoss

    assert start.loss is not None, "a start without θ has a loss"
    if start.loss in NAMED:
        tree, coefficients = NAMED[start.loss]
    else:
        loss = _loaded(start.loss, "loss")
        if isinstance(loss, TaylorLoss):
            if loss.form == form and loss.anchor is None:
                return loss.theta
            base = "" if loss.anchor is None else " on cross-entropy"
            problem = f"{start.loss!r} has a loss of another form, {loss.form}{base}"
            raise RecipeError("search.start.loss", f"{problem}; the recipe's is {form}")
        tree, coefficients = loss.tree, loss.coefficients
    x, y = start.at
    try:
        return expanded_theta(tree, coefficients, form=form, center=(x, y))
    except ValueError as error:
        raise RecipeError("search.start.at", f"{[x, y]} is not allowed: {error}") from error
