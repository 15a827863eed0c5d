"""The sections of a recipe: each field with its limits, default and meaning."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictStr,
    model_serializer,
    model_validator,
)
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.validation import (
    Allowed,
    AsWhole,
    FromList,
    Number,
    PlainMapping,
    PlainModel,
    Problem,
    WholeNumber,
    nested_models,
    refuse,
    show,
)

Values = tuple[object, ...] | None
"""Some values of a field; None: all but its default."""


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """Some values of a field go only with some values of others.

    Attributes:
        field: Dotted path of the field.
        values: Its values that have requirements.
        needs: Dotted paths of the other fields, with the values that they may have then.
        because: The reason and the way out; may hold the last name of a needed path in braces.
    """

    field: str
    values: Values
    needs: Mapping[str, Values]
    because: str

    def problem(self, model: PlainModel) -> Problem | None:
        """What is wrong with a model whose single fields are right, or None."""
        value = _value(model, self.field)
        others = {
            path: _plain(_value(model, path))
            for path, values in self.needs.items()
            if not _among(_value(model, path), values, type(model), path)
        }
        if not others or not _among(value, self.values, type(model), self.field):
            return None
        mismatch = " and ".join(f"{path} {other}" for path, other in others.items())
        because = self.because.format_map(
            {path.rpartition(".")[2]: other for path, other in others.items()}
        )
        return Problem(self.field, f"{_plain(value)} is not allowed with {mismatch}: {because}")

    def json_schema(self, model: type[PlainModel]) -> dict[str, Any]:
        """The rule for plain values of a kind of model, whose fields may be left out."""
        needs = [_schema(values, model, path) for path, values in self.needs.items()]
        return {"if": _schema(self.values, model, self.field), "then": {"allOf": needs}}


def _value(model: PlainModel, path: str) -> object:
    return reduce(getattr, path.split("."), model)


def _among(value: object, values: Values, model: type[PlainModel], path: str) -> bool:
    return value != _default(model, path) if values is None else value in values


def _schema(values: Values, model: type[PlainModel], path: str) -> dict[str, Any]:
    default = _default(model, path)
    if values is None:
        schema: dict[str, Any] = {"not": {"enum": [default]}}
    else:
        schema = {"enum": [list(v) if isinstance(v, tuple) else v for v in values]}
    for name in reversed(path.split(".")):
        schema = {"properties": {name: schema}}
        if not _among(default, values, model, path):
            schema["required"] = [name]
    return schema


def _default(model: type[PlainModel], path: str) -> object:
    *sections, name = path.split(".")
    for section in sections:
        model = nested_models(model)[section]
    return model.model_fields[name].get_default()


def _plain(value: object) -> str:
    if isinstance(value, PlainModel):
        value = value.model_dump(mode="json")
    return value if isinstance(value, str) else show(value)


_WORKER_OPTIONS = {
    "data_dir": "--data-dir",
    "device": "--device",
    "precision": "--precision",
    "threads": "--threads",
}
MACHINE_FIELDS = {
    name: f"belongs to the machine, not to the recipe: give the worker {flag}"
    for name, flag in _WORKER_OPTIONS.items()
}

# Far above what anybody has the time for, and low enough that a slip of the pen, or of whoever
# can write the database, fills no memory and overflows no counter.
LONGEST = 10**9
MOST_EXAMPLES = 10**7
MOST_CANDIDATES = 10_000
MOST_GENERATIONS = 100_000
MOST_TRAININGS = 1000


def _add_requirements(schema: dict[str, Any], section: type[Section]) -> None:
    if section.requirements:
        schema["allOf"] = [rule.json_schema(section) for rule in section.requirements]


class Section(PlainModel):
    """A part of the recipe."""

    model_config = ConfigDict(json_schema_extra=_add_requirements)

    not_fields: ClassVar[Mapping[str, str]] = MACHINE_FIELDS
    requirements: ClassVar[tuple[Requirement, ...]] = ()
    newer: ClassVar[tuple[str, ...]] = ()
    """Fields that earlier versions did not know. At their default they are not written, because
    such a version may share the study."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if problems := self._problems_together():
            refuse(problems)
        return self

    def _problems_together(self) -> list[Problem]:
        """What is wrong across fields, once each of them is right."""
        return [problem for rule in self.requirements if (problem := rule.problem(self))]

    @model_serializer(mode="wrap")
    def _without_unwritten(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = write(self)
        for name in self._unwritten():
            content.pop(name, None)
        return content

    def _unwritten(self) -> list[str]:
        """Fields that are left out where the section is written, all of them at their default."""
        fields = type(self).model_fields
        return [name for name in self.newer if getattr(self, name) == fields[name].get_default()]

    @classmethod
    def refusal(cls, problems: Sequence[Problem]) -> RecipeError:
        """The error that tells of the problems."""
        return RecipeError(*problems[0], others=problems[1:])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, from which `recipe_from_dict` builds an equal recipe."""
        return self.model_dump(mode="json")


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


class CoefficientSettings(Section):
    """CMA-ES over the coefficients of the best tree, one for each of its nodes, starting at 1."""

    popsize: WholeNumber = Field(default=32, ge=2, le=MOST_CANDIDATES)
    """Candidates per generation."""

    n_generations: WholeNumber = Field(default=35, ge=0, le=MOST_GENERATIONS)
    """Generations; 0 leaves this stage out."""

    sigma: Number = Field(default=0.5, gt=0, lt=100)
    """First step size, in units of a coefficient."""


class GLOSettings(Section):
    """Genetic programming over trees, and after it the coefficients of the best one."""

    popsize: WholeNumber = Field(default=100, ge=2, le=MOST_CANDIDATES)
    """Trees per generation."""

    n_generations: WholeNumber = Field(default=100, ge=1, le=MOST_GENERATIONS)
    """Generations of trees."""

    elite: WholeNumber = Field(default=6, ge=1)
    """Best trees, different as functions, that go into the next generation as they are; below
    `popsize`."""

    tournament: WholeNumber = Field(default=4, ge=1, le=MOST_CANDIDATES)
    """Trees drawn at random of which the best becomes a parent."""

    crossover: Number = Field(default=0.7, ge=0, le=1)
    """Share of children that get a part of a second parent; the others a part that is new."""

    max_depth: WholeNumber = Field(default=6, ge=1, le=17)
    """Greatest depth of a tree; Baikal's is 2."""

    coefficients: CoefficientSettings = CoefficientSettings()

    def _problems_together(self) -> list[Problem]:
        problems = super()._problems_together()
        if self.elite >= self.popsize:
            sentence = f"{self.elite} is not allowed, must be below popsize, {self.popsize}"
            problems.append(Problem("elite", sentence))
        return problems


class StartSettings(Section):
    """Where the search starts in place of θ = 0: at the expansion of a loss, or at given θ."""

    loss: (
        Annotated[
            StrictStr,
            Field(min_length=1),
            Allowed("cross_entropy, baikal, baikal_cma or the path of a loss file"),
        ]
        | None
    ) = None
    """Which loss, by name or by its file; a study keeps the θ that it came to, not the path."""

    at: Annotated[
        tuple[Number, ...],
        Strict(),
        FromList,
        Field(min_length=2, max_length=2),
        Allowed("a list of two numbers, x and y"),
    ] = (0.0, 0.5)
    """Point of expansion: target x and output y."""

    theta: Annotated[tuple[Number, ...], Strict(), FromList] | None = None
    """θ itself, as many as the recipe's losses have; `loss` is then a name and no more."""

    def _problems_together(self) -> list[Problem]:
        problems = super()._problems_together()
        if self.loss is None and self.theta is None:
            problems.append(Problem("loss", "missing, must be given unless theta is"))
        return problems


_TAYLOR_ONLY = ("popsize", "sigma", "n_generations", "space", "filter", "scale", "overlap")


class SearchSettings(Section):
    """Which losses are tried, and in what order."""

    newer = ("overlap", "method", "glo", "start")
    requirements = (
        Requirement(
            field="method",
            values=("glo",),
            needs={"glo": None},
            because="its numbers stand there; write glo: {{}} for the paper's",
        ),
        Requirement(
            field="glo",
            values=None,
            needs={"method": ("glo",)},
            because="leave it out, or set method: glo",
        ),
        *(
            Requirement(
                field=name,
                values=None,
                needs={"method": ("taylor",)},
                because=f"GLO has no {name} here; what it has stands in search.glo",
            )
            for name in (*_TAYLOR_ONLY, "start")
        ),
    )

    popsize: WholeNumber = Field(default=28, ge=2, le=MOST_CANDIDATES)
    """λ, candidates per generation."""

    sigma: Number = Field(default=1.2, gt=0, lt=100)
    """First step size, in units of θ."""

    n_generations: WholeNumber = Field(default=60, ge=1, le=MOST_GENERATIONS)
    """Generations of a complete search."""

    seed: WholeNumber = Field(default=0, ge=0, le=2**32 - 1)
    """Decides every candidate and every training's seed."""

    space: Literal["theta", "canonical"] = "theta"
    """theta: all parameters; canonical: the four that matter at order 3 over (x, y)."""

    filter: Literal["none", "trainable", "steady"] = "none"
    """trainable: draw again until the loss can start learning; steady: and until it does not draw
    all predictions to one class and, with a base, starts at a pace."""

    scale: Literal["free", "normalized"] = "free"
    """normalized: every candidate's first gradient is as long as cross-entropy's; with a base s
    stays 0."""

    repeats: WholeNumber = Field(default=1, ge=1, le=MOST_TRAININGS)
    """Trainings averaged for one fitness."""

    seed_policy: Literal["independent", "common"] = "independent"
    """independent: each candidate its own training seeds; common: a generation shares them."""

    overlap: WholeNumber = Field(default=0, ge=0)
    """First candidates of each generation that are drawn without the results of the generation
    before it, so that workers begin them while its last ones still train; below `popsize`."""

    start: StartSettings | None = None
    """Left out: θ = 0."""

    method: Literal["taylor", "glo"] = "taylor"
    """taylor: CMA-ES over the parameters of a polynomial; glo: genetic programming over trees, then
    CMA-ES over the coefficients of the best one."""

    glo: GLOSettings | None = None
    """With `method: glo`."""

    @property
    def total_generations(self) -> int:
        """Generations of the whole search, of both stages of GLO."""
        if self.glo is None:
            return self.n_generations
        return self.glo.n_generations + self.glo.coefficients.n_generations

    @property
    def total_candidates(self) -> int:
        """Candidates of the whole search, those included that GLO need not evaluate again."""
        if self.glo is None:
            return self.popsize * self.n_generations
        stages = (self.glo, self.glo.coefficients)
        return sum(stage.popsize * stage.n_generations for stage in stages)

    def _unwritten(self) -> list[str]:
        return super()._unwritten() + (list(_TAYLOR_ONLY) if self.method == "glo" else [])

    def _problems_together(self) -> list[Problem]:
        problems = super()._problems_together()
        if self.overlap >= self.popsize:
            sentence = (
                f"{self.overlap} is not allowed, must be below search.popsize, "
                f"{self.popsize}: half of it is a good choice"
            )
            problems.append(Problem("overlap", sentence))
        return problems
