"""The recipe: all of its sections, and its reference for people and editors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Literal, get_origin

from pydantic import AfterValidator, ConfigDict, Field, Strict, StrictBool, StrictStr
from pydantic.json_schema import GenerateJsonSchema

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.settings import (
    LONGEST,
    MOST_EXAMPLES,
    MOST_TRAININGS,
    CheckpointSettings,
    Component,
    Length,
    OptimizerSettings,
    Requirement,
    ScheduleSettings,
    SearchSettings,
    Section,
    TrainerSettings,
    Unit,
)
from optuna_taylorglo.validation import (
    Allowed,
    FromList,
    Number,
    PlainModel,
    Problem,
    WholeNumber,
    allowed,
    nested_models,
    show,
)

_X_Y = ("x", "y")
_VARIABLES = [("x", *outputs, *t) for t in ((), ("t",)) for outputs in ("y", "z", "yz")]


def _known_variables(variables: tuple[str, ...]) -> tuple[str, ...]:
    if variables not in _VARIABLES:
        raise ValueError
    return variables


Variables = Annotated[
    tuple[StrictStr, ...],
    Strict(),
    FromList,
    AfterValidator(_known_variables),
    Field(json_schema_extra={"enum": [list(names) for names in _VARIABLES]}),
    Allowed("x, then y or z or both, then perhaps t, in this order, such as [x, y]"),
]
ClassWeights = Annotated[
    tuple[Annotated[Number, Field(gt=0)], ...],
    Strict(),
    FromList,
]


class BudgetSettings(Section):
    """How long trainings last."""

    unit: Unit
    """What the two lengths count."""

    evaluation: Length
    """Length of a candidate's training in the search."""

    full: WholeNumber = Field(ge=1, le=LONGEST)
    """Length of a full training, for selection and verdict."""

    def _problems_together(self) -> list[Problem]:
        if self.evaluation <= self.full:
            return []
        sentence = f"{self.evaluation} is not allowed, must be at most budget.full, {self.full}"
        return [Problem("evaluation", sentence)]


class FitnessSettings(Section):
    """What the search makes as great, or as small, as it can."""

    model_config = ConfigDict(regex_engine="python-re")  # for the look-ahead
    newer = ("mode",)

    metric: Annotated[
        StrictStr,
        Field(pattern=r"^(?![Tt][Ee][Ss][Tt])\S([\S ]*\S)?$(?!\n)"),
        Allowed("the name of a logged validation metric, never one of the test set"),
    ] = "val_accuracy"
    """The metric, as the Lightning module logs it."""

    mode: Literal["max", "min"] = "max"
    """Whether greater or smaller is better."""

    take: Literal["last", "best"] = "last"
    """The last validation's value or the best one's."""

    @property
    def sign(self) -> int:
        """What a value is multiplied by so that greater is better."""
        return 1 if self.mode == "max" else -1


class EarlyAbortSettings(Section):
    """When a candidate is given up before its budget's end.

    A check later than the budget's end never happens. That is allowed: the paper's MNIST
    evaluations end in their fourth epoch, under its rule for the tenth.
    """

    unit: Unit = "epochs"
    """What `at` counts."""

    at: WholeNumber = Field(default=10, ge=1, le=LONGEST)
    """When the metric is looked at."""

    threshold: Number = 0.15
    """A metric worse than this, below it or with `fitness.mode: min` above it, aborts the attempt;
    the default is an accuracy, so with any other metric it must be given."""

    attempts: WholeNumber = Field(default=3, ge=1, le=MOST_TRAININGS)
    """Trainings a candidate gets in all, each from fresh weights."""


class EarlyStopSettings(Section):
    """When a candidate that falls behind is stopped; it is ranked below all that went on.

    The generation before sets the pace, because it is finished: who is stopped then depends on
    results alone, never on which worker was faster.
    """

    unit: Unit = "steps"
    """What `at` counts."""

    at: WholeNumber = Field(ge=1, le=LONGEST)
    """When the metric is looked at."""

    keep: Number = Field(default=0.5, gt=0, lt=1)
    """Share of the generation before that a candidate must keep up with at that time."""


class LossSettings(Section):
    """The family of losses that is searched: Taylor polynomials f, alone or on cross-entropy."""

    newer = ("class_weights", "label_smoothing", "ignore_index")

    base: Literal["none", "cross_entropy"] = "none"
    """none: L = -f, the paper's; cross_entropy: L = e^s (CE_ε - f), with s and ε searched too."""

    order: WholeNumber = Field(default=3, ge=1, le=10)
    """Order k of the polynomial."""

    variables: Variables = _X_Y
    """x target, y softmax output, z raw logits, t training progress."""

    folded: StrictBool = False
    """Whether the factors 1/α! are already in θ, as in published numbers."""

    class_reduction: Literal["mean", "sum"] = "mean"
    """mean: the paper's 1/n over classes; sum: as its code ran."""

    class_weights: ClassWeights | Literal["balanced"] | None = None
    """Weight of each class, in every candidate and in every loss that it is compared with, as in
    `nn.CrossEntropyLoss`; balanced: n/(K n_k), by the number n_k of training labels of each of
    the K classes."""

    label_smoothing: Number = Field(default=0.0, ge=0, lt=1)
    """ε: the targets x of every candidate and of every loss that it is compared with become
    (1 - ε) x + ε/K; a baseline that has its label smoothing tuned has its own."""

    ignore_index: WholeNumber = Field(default=-100, ge=-LONGEST, le=LONGEST)
    """Label that neither losses nor metrics count, as in `nn.CrossEntropyLoss`."""


class SelectionSettings(Section):
    """How the winner is chosen when the search is over: by full trainings on validation.

    Left out, it is the single best evaluation, the paper's rule.
    """

    candidates: WholeNumber = Field(default=10, ge=1, le=100)
    """How many of the best candidates, different as functions, are trained fully; the mean of the
    final distribution is trained besides."""


class Recipe(Section):
    """Everything scientific about a study."""

    requirements = (
        *(
            Requirement(
                field=f"loss.{name}",
                values=None,
                needs={"search.method": ("taylor",)},
                because=f"trees have no {name}; leave it out",
            )
            for name in ("base", "order", "variables", "folded")
        ),
        *(
            Requirement(
                field="search.start",
                values=None,
                needs={path: values},
                because=because,
            )
            for path, values, because in (
                ("loss.variables", (_X_Y,), "losses are expanded in x and y"),
                ("loss.base", ("none",), "that family starts at cross-entropy"),
            )
        ),
        Requirement(
            field="search.space",
            values=("canonical",),
            needs={"loss.order": (3,), "loss.variables": (_X_Y,)},
            because="the canonical form is that of order 3 over [x, y]; use theta",
        ),
        # These two rest on the gradient at the uniform prediction, a number that for a loss in z
        # or t does not speak for the rest of training.
        Requirement(
            field="search.filter",
            values=("trainable",),
            needs={"loss.variables": (_X_Y,)},
            because="it has a meaning over [x, y] only; use none",
        ),
        Requirement(
            field="search.scale",
            values=("normalized",),
            needs={"loss.variables": (_X_Y,)},
            because="it has a meaning over [x, y] only; use free",
        ),
        Requirement(
            field="search.filter",
            values=("steady",),
            needs={"loss.order": (1, 2, 3), "loss.variables": (_X_Y,)},
            because="the collapse ratio is that of order 3 or less over [x, y]; use trainable or "
            "none",
        ),
        Requirement(
            field="loss.base",
            values=("cross_entropy",),
            needs={"loss.variables": (_X_Y, ("x", "y", "t"))},
            because="cross-entropy is a function of probabilities; leave out z",
        ),
        Requirement(
            field="loss.label_smoothing",
            values=None,
            needs={"loss.base": ("none",)},
            because="the label smoothing of that family is searched; leave it out",
        ),
        Requirement(
            field="search.scale",
            values=("normalized",),
            needs={"search.filter": ("trainable", "steady")},
            because="a loss that cannot start learning has no scale; use trainable or steady",
        ),
    )

    newer = ("checkpoint", "optimizer", "trainer", "selection")

    data: Component
    model: Component
    checkpoint: CheckpointSettings | None = None
    """Left out: fresh weights."""

    optimizer: OptimizerSettings | None = None
    """Left out: that of a LightningModule; a plain net needs it."""

    schedule: ScheduleSettings = ScheduleSettings()
    trainer: TrainerSettings = TrainerSettings()
    batch_size: WholeNumber = Field(ge=1, le=MOST_EXAMPLES)
    """Examples per batch."""

    budget: BudgetSettings
    fitness: FitnessSettings = FitnessSettings()
    early_abort: EarlyAbortSettings | None = None
    early_stop: EarlyStopSettings | None = None
    loss: LossSettings = LossSettings()
    search: SearchSettings = SearchSettings()
    selection: SelectionSettings | None = None

    def _problems_together(self) -> list[Problem]:
        problems = super()._problems_together()
        abort, metric = self.early_abort, self.fitness.metric
        is_accuracy = "accuracy" in metric and self.fitness.mode == "max"
        if not is_accuracy and abort and "threshold" not in abort.model_fields_set:
            sentence = (
                f"missing, must be given with fitness.metric {metric} and mode "
                f"{self.fitness.mode}: the default {abort.threshold:g} is an accuracy"
            )
            problems.append(Problem("early_abort.threshold", sentence))
        schedule, budget = self.schedule, self.budget
        if schedule.unit == budget.unit and schedule.warmup >= budget.full:
            sentence = f"{schedule.warmup} is not allowed, must be below budget.full, {budget.full}"
            problems.append(Problem("schedule.warmup", sentence))
        return problems


def recipe_from_dict(content: object, source: str | os.PathLike[str] = "recipe") -> Recipe:
    """Builds a recipe from plain values.

    Args:
        content: What a YAML or JSON file holds.
        source: Where it came from, for messages.

    Raises:
        RecipeError: If it is no mapping or breaks a rule.
    """
    try:
        return Recipe.from_plain(content)
    except RecipeError as error:
        raise error.from_source(os.fspath(source)) from None


def search_size(search: SearchSettings) -> str:
    """How many generations of how many candidates there are, in words."""
    if search.glo is None:
        return f"{search.n_generations} generations of {search.popsize} candidates"
    stage = search.glo.coefficients
    coefficients = f", then {stage.n_generations} of {stage.popsize} sets of coefficients"
    trees = f"{search.glo.n_generations} generations of {search.glo.popsize} trees"
    return trees + (coefficients if stage.n_generations else "")


def own_loss_warning(fitness: FitnessSettings) -> str:
    """A warning for a metric that is probably the criterion's own value; empty for any other."""
    if "loss" not in fitness.metric.lower():
        return ""
    maximized = ", and it is maximized (fitness.mode: max)" if fitness.mode == "max" else ""
    return (
        f"fitness.metric {fitness.metric}{maximized}: if it is computed by self.criterion, it is "
        "each candidate's own loss and cannot compare candidates. Log one that does not depend on "
        "it, such as the cross-entropy of the predictions with mode: min, or the accuracy."
    )


SCHEMA_FILE = Path(__file__).with_name("recipe.schema.json")


def recipe_reference() -> str:
    """A Markdown table of every field: what is allowed, its default and its meaning."""
    rows = [("Field", "Allowed", "Default", "Meaning"), ("---",) * 4, *_rows(Recipe)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def recipe_json_schema() -> str:
    """The JSON schema of recipes, by which editors complete and check them."""
    schema = Recipe.model_json_schema(schema_generator=_Untitled)
    content = {"$schema": GenerateJsonSchema.schema_dialect, **schema}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


class _Untitled(GenerateJsonSchema):
    """Without titles that only repeat the names of fields."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def _rows(section: type[PlainModel], prefix: str = "") -> list[tuple[str, ...]]:
    """A row for each field, and for each of those within it."""
    rows: list[tuple[str, ...]] = []
    # A list of sections is a field like any other.
    lists = [
        n for n, field in section.model_fields.items() if get_origin(field.annotation) is tuple
    ]
    sections = {n: inner for n, inner in nested_models(section).items() if n not in lists}
    for name, field in section.model_fields.items():
        if name not in sections:
            rows.append(_row(section, name, prefix))
            continue
        if field.default is None:
            meaning = " ".join((field.description or "Left out: none.").split())
            rows.append((f"`{prefix}{name}`", "null or the fields below", "`null`", meaning))
        rows += _rows(sections[name], f"{prefix}{name}.")
    return rows


def _row(section: type[PlainModel], name: str, prefix: str = "") -> tuple[str, str, str, str]:
    field = section.model_fields[name]
    default = "required"
    if not field.is_required():
        default = f"`{show(field.get_default(call_default_factory=True))}`"
    meaning = " ".join((field.description or "").split())
    return f"`{prefix}{name}`", allowed(section, name), default, meaning
