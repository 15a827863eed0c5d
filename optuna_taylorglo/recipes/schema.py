"""What a recipe says: a model for each section, each field with its limits, default and meaning."""

import itertools
import os
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictStr,
    model_validator,
)

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.requirements import Requirement
from optuna_taylorglo.validation import (
    Allowed,
    AsWhole,
    FromList,
    Number,
    PlainMapping,
    PlainModel,
    Problem,
    WholeNumber,
    refuse,
    show,
)

_WORKER_OPTIONS = {
    "data_dir": "--data-dir",
    "device": "--device",
    "precision": "--precision",
    "threads": "--threads",
}
_MACHINE_FIELDS = {
    name: f"belongs to the machine, not to the recipe: give the worker {flag}"
    for name, flag in _WORKER_OPTIONS.items()
}
_NAME = r"[^\W\d]\w*"
_X_Y = ("x", "y")
_VARIABLES = [("x", *outputs, *t) for t in ((), ("t",)) for outputs in ("y", "z", "yz")]


def _arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    for name in arguments:
        if not name.isidentifier():
            raise ValueError(f"{show(name)} is no argument name")
        if name in _MACHINE_FIELDS:
            raise ValueError(f"{name} {_MACHINE_FIELDS[name]}")
    return arguments


def _ascending(milestones: tuple[int, ...]) -> tuple[int, ...]:
    if any(later <= earlier for earlier, later in itertools.pairwise(milestones)):
        raise ValueError
    return milestones


def _known_variables(variables: tuple[str, ...]) -> tuple[str, ...]:
    if variables not in _VARIABLES:
        raise ValueError
    return variables


Unit = Literal["steps", "epochs"]
Length = Annotated[int, Strict(), Field(ge=1), AsWhole]

ClassPath = Annotated[
    StrictStr,
    Field(pattern=rf"^{_NAME}(\.{_NAME})+$"),
    Allowed("a dotted path to a class, such as my_package.module.ClassName"),
]
Arguments = Annotated[
    PlainMapping,
    AfterValidator(_arguments),
    Field(
        json_schema_extra={
            "propertyNames": {"pattern": f"^{_NAME}$", "not": {"enum": list(_MACHINE_FIELDS)}}
        }
    ),
    Allowed("a mapping from argument names to plain JSON values"),
]
Milestones = Annotated[
    tuple[Length, ...],
    Strict(),
    FromList,
    AfterValidator(_ascending),
    Field(json_schema_extra={"uniqueItems": True}),
    Allowed("an ascending list of whole numbers of at least 1"),
]
Variables = Annotated[
    tuple[StrictStr, ...],
    Strict(),
    FromList,
    AfterValidator(_known_variables),
    Field(json_schema_extra={"enum": [list(names) for names in _VARIABLES]}),
    Allowed("x, then y or z or both, then perhaps t, in this order, such as [x, y]"),
]


def _add_requirements(schema: dict[str, Any], section: "type[Section]") -> None:
    if section.requirements:
        schema["allOf"] = [rule.json_schema(section) for rule in section.requirements]


class Section(PlainModel):
    """A part of the recipe."""

    model_config = ConfigDict(json_schema_extra=_add_requirements)

    not_fields = _MACHINE_FIELDS
    requirements: ClassVar[tuple[Requirement, ...]] = ()

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if problems := self._problems_together():
            refuse(problems)
        return self

    def _problems_together(self) -> list[Problem]:
        """What is wrong across fields, once each of them is right."""
        return [problem for rule in self.requirements if (problem := rule.problem(self))]

    @classmethod
    def refusal(cls, problems: Sequence[Problem]) -> RecipeError:
        """The error that tells of the problems."""
        return RecipeError(*problems[0], others=problems[1:])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, from which `recipe_from_dict` builds an equal recipe."""
        return self.model_dump(mode="json")


class Component(Section):
    """A class and the arguments it is built with, as in LightningCLI."""

    class_path: ClassPath
    """Dotted path of the class."""

    init_args: Arguments = Field(default_factory=dict)
    """Arguments it is built with."""


class OptimiserSettings(Section):
    """The optimiser of every training; what is not named here keeps PyTorch's default."""

    requirements = (
        *(
            Requirement(
                field=name,
                values=None,
                needs={"name": ("sgd",)},
                because=f"{{name}} has no {name}",
            )
            for name in ("momentum", "nesterov")
        ),
        Requirement(
            field="nesterov",
            values=None,
            needs={"momentum": None},
            because="it needs a momentum above 0",
        ),
    )

    name: Literal["sgd", "adam", "adamw"]
    """Which optimiser trains."""

    lr: Number = Field(gt=0)
    """Learning rate at the start."""

    momentum: Number = Field(default=0.0, ge=0, lt=1)
    """Momentum; sgd only."""

    nesterov: StrictBool = False
    """Nesterov's momentum; sgd with momentum only."""

    weight_decay: Number = Field(default=0.0, ge=0)
    """Weight decay."""


class ScheduleSettings(Section):
    """Learning-rate steps. A shorter evaluation stops early; the schedule does not shrink."""

    unit: Unit = "epochs"
    """What the milestones count."""

    milestones: Milestones = ()
    """When the learning rate is multiplied by `gamma`; empty for a constant rate."""

    gamma: Number = Field(default=0.1, gt=0)
    """Factor at each milestone."""


class BudgetSettings(Section):
    """How long trainings last."""

    unit: Unit
    """What the two lengths count."""

    evaluation: Length | Literal["auto"]
    """Length of a candidate's training in the search; auto: a pilot takes a tenth of `full`, a
    third or the whole, the shortest that ranks candidates like full trainings."""

    full: WholeNumber = Field(ge=1)
    """Length of a full training, for choice and verdict."""

    @property
    def evaluation_length(self) -> int:
        """The length of an evaluation as a number, which auto has only after the pilot."""
        if self.evaluation == "auto":
            raise RecipeError("budget.evaluation", "auto is not settled yet: no pilot was made")
        return self.evaluation

    def _problems_together(self) -> list[Problem]:
        if self.evaluation == "auto" or self.evaluation <= self.full:
            return []
        sentence = f"{self.evaluation} is not allowed, must be at most budget.full, {self.full}"
        return [Problem("evaluation", sentence)]


class FitnessSettings(Section):
    """What the search maximises."""

    model_config = ConfigDict(regex_engine="python-re")  # for the look-ahead

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
        """1 where greater is better, -1 where smaller is: times it, greater is always better."""
        return 1 if self.mode == "max" else -1


class EarlyAbortSettings(Section):
    """When a candidate is given up before its budget's end.

    A check later than the budget's end never happens. That is allowed: the paper's MNIST
    evaluations end in their fourth epoch, under its rule for the tenth.
    """

    unit: Unit = "epochs"
    """What `at` counts."""

    at: WholeNumber = Field(default=10, ge=1)
    """When the metric is looked at."""

    threshold: Number = 0.15
    """A metric below this aborts the attempt."""

    attempts: WholeNumber = Field(default=3, ge=1)
    """Trainings a candidate gets in all, each from fresh weights."""


class EarlyStopSettings(Section):
    """When a candidate that falls behind is stopped; it is ranked below all that went on.

    The generation before sets the pace, because it is finished: who is stopped then depends on
    results alone, never on which worker was faster.
    """

    unit: Unit = "steps"
    """What `at` counts."""

    at: WholeNumber = Field(ge=1)
    """When the metric is looked at."""

    keep: Number = Field(default=0.5, gt=0, lt=1)
    """Share of the generation before that a candidate must keep up with at that time."""


class LossSettings(Section):
    """The family of losses that is searched: Taylor polynomials f, alone or on cross-entropy."""

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


class SearchSettings(Section):
    """CMA-ES and what it works on."""

    population: WholeNumber = Field(default=28, ge=2)
    """λ, candidates per generation."""

    sigma: Number = Field(default=1.2, gt=0, lt=100)
    """First step size, in units of θ."""

    generations: WholeNumber = Field(default=60, ge=1)
    """Generations of a complete search."""

    seed: WholeNumber = Field(default=0, ge=0, le=2**32 - 1)
    """Decides every candidate and every training's seed."""

    space: Literal["theta", "canonical"] = "theta"
    """theta: all parameters; canonical: the four that matter at order 3 over (x, y)."""

    filter: Literal["none", "trainable", "steady"] = "none"
    """trainable: draw again until the loss can start learning; steady: and until it does not draw
    all predictions to one class and, with a base, starts at a pace."""

    scale: Literal["free", "normalised"] = "free"
    """normalised: every candidate's first gradient is as long as cross-entropy's; with a base s
    stays 0."""

    repeats: WholeNumber = Field(default=1, ge=1)
    """Trainings averaged for one fitness."""

    seed_policy: Literal["independent", "common"] = "independent"
    """independent: each candidate its own training seeds; common: a generation shares them."""


class ChoiceSettings(Section):
    """How the winner is chosen when the search is over: by full trainings on validation.

    Left out, it is the single best evaluation, the paper's rule.
    """

    candidates: WholeNumber = Field(default=10, ge=1, le=100)
    """How many of the best candidates, different as functions, are trained fully; the mean of the
    final distribution is trained besides."""


class Recipe(Section):
    """Everything scientific about a study."""

    requirements = (
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
            values=("normalised",),
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
            field="search.scale",
            values=("normalised",),
            needs={"search.filter": ("trainable", "steady")},
            because="a loss that cannot start learning has no scale; use trainable or steady",
        ),
    )

    data: Component
    model: Component
    optimiser: OptimiserSettings
    schedule: ScheduleSettings = ScheduleSettings()
    batch_size: WholeNumber = Field(ge=1)
    """Examples per training step."""

    budget: BudgetSettings
    fitness: FitnessSettings = FitnessSettings()
    early_abort: EarlyAbortSettings | None = None
    early_stop: EarlyStopSettings | None = None
    loss: LossSettings = LossSettings()
    search: SearchSettings = SearchSettings()
    choice: ChoiceSettings | None = None

    def to_dict(self) -> dict[str, Any]:
        content = super().to_dict()
        if self.choice is None:
            del content["choice"]  # earlier versions did not know it, and may share the study
        return content


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
