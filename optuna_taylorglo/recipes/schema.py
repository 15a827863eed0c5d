"""The recipe: what is measured, the losses that are searched, and all sections together."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.presets import PAPER_LOSS, complete
from optuna_taylorglo.recipes.settings import (
    LONGEST,
    MOST_EXAMPLES,
    MOST_TRAININGS,
    CheckpointSettings,
    Component,
    FromList,
    Length,
    MetricName,
    OptimizerSettings,
    ScheduleSettings,
    SearchSettings,
    Section,
    TrainerSettings,
    Unit,
    WholeNumber,
)
from optuna_taylorglo.text import counted

R = TypeVar("R", bound="Recipe")

_VARIABLES = [("x", *outputs, *t) for t in ((), ("t",)) for outputs in ("y", "z", "yz")]


def _known_variables(variables: tuple[str, ...]) -> tuple[str, ...]:
    if variables not in _VARIABLES:
        raise ValueError("must be x, then y or z or both, then perhaps t, such as [x, y]")
    return variables


def _class_weights(value: object) -> object:
    if value is None or value == "balanced":
        return value
    weights = tuple(value) if isinstance(value, list | tuple) else (0,)
    if not all(type(each) in (int, float) and 0 < each < math.inf for each in weights):
        raise ValueError("must be balanced or a list of finite numbers above 0")
    return weights


class Budget(Section):
    """How long trainings last; without settings a training is a call of the user's function."""

    unit: str = "calls"
    full: int = 1
    evaluation: int = 1


class BudgetSettings(Budget):
    """How long trainings last."""

    unit: Unit = "steps"
    """What the two lengths count."""
    full: Length
    """Length of a full training, for selection and verdict."""
    evaluation: Length = Field(default_factory=lambda data: data.get("full"))
    """Length of a candidate's training in the search. Left out: that of a full training."""

    def _rules(self) -> Iterator[tuple[str, str]]:
        if self.evaluation > self.full:
            yield self.conflict("evaluation", "full", "it must be at most budget.full")


class FitnessSettings(Section):
    """What the search maximizes or minimizes."""

    metric: MetricName = "val_accuracy"
    """The validation metric, as the Lightning module logs it; never one of the test set."""
    mode: Literal["max", "min"] = "max"
    """Whether greater or smaller is better."""
    take: Literal["last", "best"] = "last"
    """The last validation's value or the best one's."""

    @property
    def sign(self) -> int:
        """The factor that makes greater values better."""
        return 1 if self.mode == "max" else -1

    @property
    def in_words(self) -> str:
        """The metric's name, which says that it is of validation."""
        return self.metric if "val" in self.metric else f"validation {self.metric}"

    @property
    def test_metric(self) -> str:
        """Name of the metric on the test set: ``test_accuracy`` for ``val_accuracy``."""
        return "test_" + self.metric.removeprefix("val_")


class EarlyAbortSettings(Section):
    """When an attempt at a candidate is aborted before its budget's end.

    A check later than the budget's end never happens, as with the paper's on MNIST.
    """

    unit: Unit = "epochs"
    """What `at` counts."""
    at: Length = 10
    """When the metric is checked."""
    threshold: float = 0.15
    """A metric worse than this, below it or with `fitness.mode: min` above it, aborts the attempt;
    the default is an accuracy, so with any other metric it must be given."""
    attempts: WholeNumber = Field(default=3, ge=1, le=MOST_TRAININGS)
    """Trainings a candidate gets in all, each from fresh weights."""


class EarlyStopSettings(Section):
    """When a candidate that falls behind is stopped; it is ranked below all that went on."""

    unit: Unit = "steps"
    """What `at` counts."""
    at: Length
    """When the metric is checked."""
    keep: float = Field(default=0.5, gt=0, lt=1)
    """Share of the generation before that a candidate must keep up with at that time."""


class LossSettings(Section):
    """The family of losses that is searched: Taylor polynomials f, alone or on cross-entropy."""

    base: Literal["none", "cross_entropy"] = "cross_entropy"
    """none: L = -f, the paper's, and the default for variables with z; cross_entropy:
    L = e^s (CE_ε - f), with s and ε searched too."""
    order: WholeNumber = Field(default=3, ge=1, le=10)
    """Order k of the polynomial."""
    variables: Annotated[tuple[str, ...], FromList, AfterValidator(_known_variables)] = ("x", "y")
    """x target, y softmax output, z raw logits, t training progress; [x, y], [x, z] or [x, y, z],
    each also with t at its end."""
    folded: bool = False
    """Whether the factors 1/α! are already in θ, as in published numbers."""
    class_reduction: Literal["mean", "sum"] = "sum"
    """mean: the paper's 1/n over classes; sum: as its code ran."""
    class_weights: Annotated[
        tuple[float, ...] | Literal["balanced"] | None, BeforeValidator(_class_weights)
    ] = None
    """Weight of each class, in every candidate and in every loss that it is compared with, as in
    `nn.CrossEntropyLoss`; balanced: n/(K n_k), by the number n_k of training labels of each of
    the K classes."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """ε: the targets x of every candidate and of every loss that it is compared with become
    (1 - ε) x + ε/K; a baseline that has its label smoothing tuned has its own."""
    ignore_index: WholeNumber = Field(default=-100, ge=-LONGEST, le=LONGEST)
    """Label that neither losses nor metrics count, as in `nn.CrossEntropyLoss`."""


class SelectionSettings(Section):
    """How the winner is selected when the search is over: by full trainings on validation."""

    candidates: WholeNumber = Field(default=1, ge=1, le=100)
    """How many of the best candidates, different as functions, are trained fully, in addition to
    the mean of the final distribution; the best known loss is the first. 8 without known ones."""


_NOT_OF_TREES = {name: PAPER_LOSS[name] for name in ("base", "order", "variables", "folded")}


class Recipe(Section):
    """What every study of a search has: how candidates are judged, which are tried, who wins."""

    budget: Budget = Budget()
    fitness: FitnessSettings = FitnessSettings()
    early_abort: EarlyAbortSettings | None = None
    early_stop: EarlyStopSettings | None = None
    loss: LossSettings = LossSettings()
    search: SearchSettings = SearchSettings()
    selection: SelectionSettings | None = SelectionSettings()
    """null: the winner is the single best evaluation, the paper's rule."""

    def _rules(self) -> Iterator[tuple[str, str]]:
        loss, search, abort = self.loss, self.search, self.early_abort
        in_x_y = loss.variables == ("x", "y")
        if search.method == "glo":
            for name in loss.different_from(_NOT_OF_TREES):
                yield self.conflict(f"loss.{name}", "search.method", f"trees have no {name}")
        if search.start and not in_x_y:
            yield self.conflict("search.start", "loss.variables", "losses are expanded in x and y")
        if search.start is not None and search.start.n_known:
            advice = "only losses on it are known"
            if loss.base == "none":
                yield self.conflict("search.start.losses", "loss.base", advice)
            elif search.space != "canonical":
                yield self.conflict("search.start.losses", "search.space", "use canonical")
        elif search.start is not None and loss.base != "none":
            advice = "give losses, which are trained at several scales first, in place of it"
            field = "theta" if search.start.loss is None else "loss"
            yield self.conflict(f"search.start.{field}", "loss.base", advice)
        if search.space == "canonical" and not (in_x_y and loss.order == 3):
            other = "loss.order" if in_x_y else "loss.variables"
            yield self.conflict("search.space", other, "it needs order 3 over [x, y]; use theta")
        # Filter and scale rest on the first gradient, which says little about a loss in z or t.
        if search.filter != "none" and not in_x_y:
            yield self.conflict("search.filter", "loss.variables", "it needs [x, y]; use none")
        elif search.filter == "steady" and loss.order > 3:
            yield self.conflict("search.filter", "loss.order", "use trainable or none, or order 3")
        if search.scale == "normalized" and not in_x_y:
            yield self.conflict("search.scale", "loss.variables", "it needs [x, y]; use free")
        elif search.scale == "normalized" and search.filter == "none":
            advice = "a loss that cannot start learning has no scale; use trainable or steady"
            yield self.conflict("search.scale", "search.filter", advice)
        if loss.base == "cross_entropy" and "z" in loss.variables:
            yield self.conflict("loss.base", "loss.variables", "leave out z, the raw logit")
        if loss.base == "cross_entropy" and loss.label_smoothing:
            advice = "it is searched; leave it out, or use base none"
            yield self.conflict("loss.label_smoothing", "loss.base", advice)
        is_accuracy = "accuracy" in self.fitness.metric and self.fitness.mode == "max"
        if abort and not is_accuracy and "threshold" not in abort.model_fields_set:
            given = f"the metric is {self.fitness.metric} with mode {self.fitness.mode}"
            problem = f"is missing: the default is an accuracy, and {given}"
            yield "early_abort.threshold", f"{problem}; early_abort: null leaves it out"


class FunctionRecipe(Recipe):
    """That of a search with the user's own training function."""

    n_classes: WholeNumber = Field(ge=2, le=MOST_EXAMPLES)
    """Number of classes."""

    def _rules(self) -> Iterator[tuple[str, str]]:
        yield from super()._rules()
        weights, n = self.loss.class_weights, self.n_classes
        if weights == "balanced":
            yield "loss.class_weights", "balanced needs a recipe's data; give a list of weights"
        elif weights is not None and len(weights) != n:
            problem = f"has {len(weights)} weights, must have one for each of {n} classes"
            yield "loss.class_weights", problem
        if self.budget != Budget():
            yield "budget", "is for recipes; a training function decides by itself how long it is"


class _Network(Section):
    data: Component
    model: Component
    checkpoint: CheckpointSettings | None = None
    """Left out: fresh weights."""
    optimizer: OptimizerSettings | None = None
    """Left out: that of a LightningModule; for a plain net sgd, lr 0.05 and momentum 0.9."""
    schedule: ScheduleSettings = ScheduleSettings()
    trainer: TrainerSettings = TrainerSettings()
    batch_size: WholeNumber = Field(ge=1, le=MOST_EXAMPLES)
    """Examples per batch."""


class TrainingRecipe(Recipe, _Network):  # the network's fields come first
    """Everything scientific about a study that trains by Lightning."""

    budget: BudgetSettings

    def _rules(self) -> Iterator[tuple[str, str]]:
        yield from super()._rules()
        if self.schedule.unit == self.budget.unit and self.schedule.warmup >= self.budget.full:
            yield self.conflict("schedule.warmup", "budget.full", "it must be below budget.full")


class _Preset(Section):
    preset: Literal["default", "paper"] = "default"
    """What holds where the file says nothing. default: the defaults of this table, with which the
    best results were found; paper: no base, class_reduction mean, 60 generations of 28 candidates
    in all parameters without a filter, early_abort, and no selection."""


class RecipeFile(TrainingRecipe, _Preset):  # the preset comes first
    """Everything scientific about a study, as a file says it."""

    model_config = ConfigDict(title="Recipe")


class _FunctionSettings(FunctionRecipe, _Preset):
    """Everything about a study with a training function, as its user says it."""


def function_recipe(content: object) -> FunctionRecipe:
    """Build the recipe of a search with a training function from what its user says."""
    return _without_preset(FunctionRecipe, _FunctionSettings.from_plain(complete(content)))


def recipe_from_dict(content: object, source: str | os.PathLike[str] = "recipe") -> TrainingRecipe:
    """Build a recipe from the content of a YAML or JSON file; errors name its `source`."""
    try:
        return _without_preset(TrainingRecipe, RecipeFile.from_plain(complete(content)))
    except RecipeError as error:
        raise error.from_source(os.fspath(source)) from None


def _without_preset(kind: type[R], said: Recipe) -> R:
    return kind.from_plain({name: getattr(said, name) for name in kind.model_fields})


def search_size(search: SearchSettings) -> str:
    """How many generations of how many candidates there are, in words."""
    if search.glo is None:
        known = f"{sum(search.rounds)} trainings of known losses" if search.rounds else ""
        generations = counted(search.n_generations, "generations")
        generations = f"{generations} of {counted(search.popsize, 'candidates')}"
        return ", then ".join(filter(None, [known, generations if search.n_generations else ""]))
    stage = search.glo.coefficients
    sets = f"{counted(stage.popsize, 'sets')} of coefficients"
    generations = counted(search.glo.n_generations, "generations")
    trees = f"{generations} of {counted(search.glo.popsize, 'trees')}"
    return trees + (f", then {stage.n_generations} of {sets}" if stage.n_generations else "")


def own_loss_warning(fitness: FitnessSettings) -> str:
    """A warning for a metric that is probably the criterion's own value; empty for any other."""
    if "loss" not in fitness.metric.lower():
        return ""
    maximized = ", and it is maximized (fitness.mode: max)" if fitness.mode == "max" else ""
    return (
        f"fitness.metric {fitness.metric}{maximized}: if it is computed by self.criterion, it "
        "cannot compare candidates. Log one that does not depend on it, such as the accuracy."
    )


SCHEMA_FILE = Path(__file__).with_name("recipe.schema.json")  # for editors
