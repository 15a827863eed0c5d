"""What a recipe says of how a network is trained; each field with its limits and meaning."""

import itertools
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Strict, StrictBool, StrictStr

from optuna_taylorglo.recipes.requirements import Requirement
from optuna_taylorglo.recipes.section import LONGEST, MACHINE_FIELDS, Section
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


class OptimizerSettings(Section):
    """The optimizer of plain nets; what is not named here keeps PyTorch's default."""

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
    """Which optimizer trains."""

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
    one_cycle: PyTorch's OneCycleLR over a full training, with `optimizer.lr` as its peak."""

    unit: Unit = "epochs"
    """What the milestones and `warmup` count."""

    milestones: Milestones = ()
    """When the learning rate is multiplied by `gamma`; empty for a constant rate."""

    gamma: Number = Field(default=0.1, gt=0)
    """Factor at each milestone."""

    warmup: WholeNumber = Field(default=0, ge=0, le=LONGEST)
    """How long the learning rate rises to `optimizer.lr` at first, linearly, step by step."""

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
    """Batches whose gradients make one optimizer step; lengths count optimizer steps."""

    precision: Literal["32-true", "bf16-mixed", "16-mixed"] | None = None
    """In place of the worker's `--precision`."""

    deterministic: StrictBool = False
    """Only algorithms of PyTorch that repeat themselves."""

    callbacks: Components = ()
    """Callbacks of either Lightning, built anew for every training."""

    loggers: Components = ()
    """Loggers of either Lightning, built anew for every training."""
