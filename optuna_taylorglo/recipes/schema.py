"""What a recipe says: a model for each section, each field with its limits, default and meaning."""

import itertools
import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, Strict, StrictBool, StrictStr

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.requirements import Requirement
from optuna_taylorglo.recipes.search_settings import SearchSettings
from optuna_taylorglo.recipes.section import (
    LONGEST,
    MACHINE_FIELDS,
    MOST_EXAMPLES,
    MOST_TRAININGS,
    Section,
)
from optuna_taylorglo.validation import (
    Allowed,
    AsWhole,
    FromList,
    Number,
    PlainMapping,
    Problem,
    WholeNumber,
    show,
)

_NAME = r"[^\W\d]\w*"
_X_Y = ("x", "y")
_VARIABLES = [("x", *outputs, *t) for t in ((), ("t",)) for outputs in ("y", "z", "yz")]


def _arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    for name in arguments:
        if not name.isidentifier():
            raise ValueError(f"{show(name)} is no argument name")
        if name in MACHINE_FIELDS:
            raise ValueError(f"{name} {MACHINE_FIELDS[name]}")
    return arguments


def _ascending(milestones: tuple[int, ...]) -> tuple[int, ...]:
    if any(later <= earlier for earlier, later in itertools.pairwise(milestones)):
        raise ValueError
    return milestones


def _known_variables(variables: tuple[str, ...]) -> tuple[str, ...]:
    if variables not in _VARIABLES:
        raise ValueError
    return variables


def _not_empty(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    if "" in prefixes:
        raise ValueError("an empty text would leave everything out")
    return prefixes


Unit = Literal["steps", "epochs"]
Length = Annotated[int, Strict(), Field(ge=1, le=LONGEST), AsWhole]

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
            "propertyNames": {"pattern": f"^{_NAME}$", "not": {"enum": list(MACHINE_FIELDS)}}
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
    Allowed(f"an ascending list of whole numbers of at least 1 and at most {LONGEST}"),
]
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


class Component(Section):
    """A class and the arguments it is built with, as in LightningCLI."""

    class_path: ClassPath
    """Dotted path of the class."""

    init_args: Arguments = Field(default_factory=dict)
    """Arguments it is built with."""


Components = Annotated[
    tuple[Component, ...],
    Strict(),
    FromList,
    Allowed("a list of mappings with class_path and init_args"),
]


class CheckpointSettings(Section):
    """Weights that every training starts from, in place of fresh ones."""

    path: Annotated[StrictStr, Field(min_length=1)]
    """File of a state dict or of a Lightning checkpoint; a relative path begins at the worker's
    `--data-dir`."""

    skip: Annotated[
        tuple[StrictStr, ...],
        Strict(),
        FromList,
        AfterValidator(_not_empty),
        Field(json_schema_extra={"items": {"type": "string", "minLength": 1}}),
        Allowed("a list of texts with which names of weights begin, such as [head.]"),
    ] = ()
    """Weights whose names begin so stay fresh, such as those of a replaced head."""


class OptimiserSettings(Section):
    """The optimiser of plain nets; what is not named here keeps PyTorch's default."""

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
    """How the learning rate of plain nets changes. A shorter evaluation stops early; the schedule
    does not shrink."""

    newer = ("kind", "warmup")
    requirements = (
        *(
            Requirement(
                field=name,
                values=None,
                needs={"kind": ("steps",)},
                because=f"a {{kind}} schedule has no {name}",
            )
            for name in ("milestones", "gamma")
        ),
        Requirement(
            field="warmup",
            values=None,
            needs={"kind": ("steps", "cosine")},
            because="one_cycle has a rise of its own",
        ),
    )

    kind: Literal["steps", "cosine", "one_cycle"] = "steps"
    """steps: times `gamma` at each milestone; cosine: falls to 0 at the end of a full training;
    one_cycle: PyTorch's OneCycleLR over a full training, with `optimiser.lr` as its peak."""

    unit: Unit = "epochs"
    """What the milestones and `warmup` count."""

    milestones: Milestones = ()
    """When the learning rate is multiplied by `gamma`; empty for a constant rate."""

    gamma: Number = Field(default=0.1, gt=0)
    """Factor at each milestone."""

    warmup: WholeNumber = Field(default=0, ge=0, le=LONGEST)
    """How long the learning rate rises to `optimiser.lr` at first, linearly, step by step."""

    @property
    def is_constant(self) -> bool:
        """Whether the learning rate never changes."""
        return self.kind == "steps" and not self.milestones and not self.warmup

    def _problems_together(self) -> list[Problem]:
        problems = super()._problems_together()
        if self.milestones and self.milestones[0] <= self.warmup:
            sentence = (
                f"{show(list(self.milestones))} is not allowed, must begin after warmup, "
                f"{self.warmup}"
            )
            problems.append(Problem("milestones", sentence))
        return problems


_NOT_OF_TRAINER = {
    **dict.fromkeys(
        ("max_steps", "max_epochs", "min_steps", "min_epochs", "max_time"),
        "belongs to the budget: set budget.full and budget.evaluation",
    ),
    **dict.fromkeys(
        ("accelerator", "devices", "num_nodes", "strategy"),
        "belongs to the machine, not to the recipe: give the worker --device",
    ),
    **dict.fromkeys(
        ("val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps"),
        "is decided by the search: see early_abort, early_stop and fitness.take",
    ),
    **dict.fromkeys(
        ("limit_train_batches", "limit_val_batches", "limit_test_batches", "overfit_batches"),
        "would change the data that losses are judged by: let the data module have fewer",
    ),
    **dict.fromkeys(
        ("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "fast_dev_run"),
        "is off in a search; checkpoints are written by a callback that you name",
    ),
    "logger": "did you mean loggers, a list?",
}


class TrainerSettings(Section):
    """Options of Lightning's Trainer."""

    not_fields = MACHINE_FIELDS | _NOT_OF_TRAINER
    requirements = (
        Requirement(
            field="gradient_clip_algorithm",
            values=None,
            needs={"gradient_clip_val": None},
            because="it needs gradient_clip_val",
        ),
    )

    gradient_clip_val: Annotated[Number, Field(gt=0)] | None = None
    """Gradients are clipped to this before each step."""

    gradient_clip_algorithm: Literal["norm", "value"] = "norm"
    """norm: that of all gradients together; value: each entry."""

    accumulate_grad_batches: WholeNumber = Field(default=1, ge=1, le=LONGEST)
    """Batches whose gradients make one optimiser step; lengths count optimiser steps."""

    precision: Literal["32-true", "bf16-mixed", "16-mixed"] | None = None
    """In place of the worker's `--precision`."""

    deterministic: StrictBool = False
    """Only algorithms of PyTorch that repeat themselves."""

    callbacks: Components = ()
    """Callbacks of either Lightning, built anew for every training."""

    loggers: Components = ()
    """Loggers of either Lightning, built anew for every training."""


class BudgetSettings(Section):
    """How long trainings last."""

    unit: Unit
    """What the two lengths count."""

    evaluation: Length | Literal["auto"]
    """Length of a candidate's training in the search; auto: a pilot takes a tenth of `full`, a
    third or the whole, the shortest that ranks candidates like full trainings."""

    full: WholeNumber = Field(ge=1, le=LONGEST)
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
        *(
            Requirement(
                field=f"loss.{name}",
                values=None,
                needs={"search.method": ("taylor",)},
                because=f"trees have no {name}; leave it out",
            )
            for name in ("base", "order", "variables", "folded")
        ),
        Requirement(
            field="budget.evaluation",
            values=("auto",),
            needs={"search.method": ("taylor",)},
            because="most trees of a pilot would not learn at all; give a number",
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
            field="loss.label_smoothing",
            values=None,
            needs={"loss.base": ("none",)},
            because="the label smoothing of that family is searched; leave it out",
        ),
        Requirement(
            field="search.scale",
            values=("normalised",),
            needs={"search.filter": ("trainable", "steady")},
            because="a loss that cannot start learning has no scale; use trainable or steady",
        ),
    )

    newer = ("checkpoint", "optimiser", "trainer", "choice")

    data: Component
    model: Component
    checkpoint: CheckpointSettings | None = None
    """Left out: fresh weights."""

    optimiser: OptimiserSettings | None = None
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
    choice: ChoiceSettings | None = None

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
