"""The sections of a recipe: each field with its limits, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator
from pydantic import ValidationError as PydanticError
from pydantic_core import InitErrorDetails, PydanticCustomError

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.presets import PAPER_SEARCH, Shape, rounds_of_known
from optuna_taylorglo.validation import PlainMapping, PlainModel, Problem, show

_MACHINE = {
    name: f"belongs to the machine, not to the recipe: give the worker --{name.replace('_', '-')}"
    for name in ("data_dir", "device", "precision", "threads")
}

# Far above what any search needs.
LONGEST = 10**9
MOST_EXAMPLES = 10**7
MOST_CANDIDATES = 10_000
MOST_GENERATIONS = 100_000
MOST_TRAININGS = 1000

DOTTED_PATH = "must be a dotted path to a class, such as my_package.module.ClassName"


class Section(PlainModel):
    """A part of the recipe."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    not_fields: ClassVar[Mapping[str, str]] = _MACHINE

    def _rules(self) -> Iterator[tuple[str, str]]:
        """The broken rules across fields: each a field and what is wrong with it."""
        yield from ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = [
            InitErrorDetails(
                type=PydanticCustomError("rule", "{said}", {"said": sentence}),
                loc=tuple(field.split(".")),
                input=None,
            )
            for field, sentence in self._rules()
        ]
        if broken:
            raise PydanticError.from_exception_data(type(self).__name__, broken)
        return self

    def changed_among(self, *names: str) -> list[str]:
        """Those of some fields that differ from their defaults."""
        fields = type(self).model_fields
        return self.different_from({name: fields[name].get_default() for name in names})

    def different_from(self, values: Mapping[str, object]) -> list[str]:
        """The fields that have other values than these."""
        return [name for name, value in values.items() if getattr(self, name) != value]

    def conflict(self, field: str, other: str, advice: str) -> tuple[str, str]:
        """A broken rule: the value of a field does not go with that of another (dotted paths)."""
        value, given = (show(attrgetter(path)(self)) for path in (field, other))
        return field, f"{value} is not allowed with {other} {given}: {advice}"

    @classmethod
    def refusal(cls, problems: Sequence[Problem]) -> RecipeError:
        """The error that reports the problems."""
        return RecipeError(*problems[0], others=problems[1:])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, from which `recipe_from_dict` builds an equal recipe."""
        return self.model_dump(mode="json")


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _class_path(path: str) -> str:
    if "." not in path or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(DOTTED_PATH)
    return path


def _arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    for name in _MACHINE.keys() & arguments:
        raise ValueError(f"{name} {_MACHINE[name]}")
    return arguments


def _ascending(milestones: tuple[int, ...]) -> tuple[int, ...]:
    if list(milestones) != sorted(set(milestones)):
        raise ValueError("must be an ascending list of whole numbers")
    return milestones


def _metric(name: str) -> str:
    if name != name.strip() or not name.isprintable() or name.lower().startswith("test"):
        raise ValueError("must be the name of a validation metric, never one of the test set")
    return name


# Both stand behind limits, which the JSON schema shows only so.
AsWhole = BeforeValidator(_whole)
FromList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)

Unit = Literal["steps", "epochs"]
WholeNumber = Annotated[int, AsWhole]
Length = Annotated[int, Field(ge=1, le=LONGEST), AsWhole]
Text = Annotated[str, Field(min_length=1)]
MetricName = Annotated[str, Field(min_length=1), AfterValidator(_metric)]
Arguments = Annotated[PlainMapping, AfterValidator(_arguments)]


class Component(Section):
    """A class and the arguments it is built with, as in LightningCLI."""

    class_path: Annotated[str, AfterValidator(_class_path)]
    """Dotted path of the class, such as my_package.module.ClassName."""
    init_args: Arguments = Field(default_factory=dict)
    """Arguments it is built with, by name; plain JSON values."""


Components = Annotated[tuple[Component, ...], FromList]


class CheckpointSettings(Section):
    """Weights that every training starts from, in place of fresh ones."""

    path: Text
    """File of a state dict or of a Lightning checkpoint; a relative path begins at the worker's
    `--data-dir`."""
    skip: Annotated[tuple[Text, ...], FromList] = ()
    """Weights whose names begin so stay fresh, such as those of a replaced head: [head.]."""


class OptimizerSettings(Section):
    """The optimizer of plain nets; fields that are left out keep PyTorch's defaults."""

    name: Literal["sgd", "adam", "adamw"]
    """Which optimizer trains."""
    lr: float = Field(gt=0)
    """Learning rate at the start."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum; sgd only."""
    nesterov: bool = False
    """Nesterov's momentum; sgd with momentum only."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay."""

    def _rules(self) -> Iterator[tuple[str, str]]:
        if self.name != "sgd":
            for name in self.changed_among("momentum", "nesterov"):
                yield self.conflict(name, "name", f"{self.name} has no {name}")
        elif self.nesterov and not self.momentum:
            yield self.conflict("nesterov", "momentum", "it needs a momentum above 0")


DEFAULT_OPTIMIZER = OptimizerSettings(name="sgd", lr=0.05, momentum=0.9)
"""What trains a plain net when the recipe names no optimizer."""


class ScheduleSettings(Section):
    """How the learning rate of plain nets changes. A shorter evaluation stops early; the schedule
    does not shrink."""

    kind: Literal["steps", "cosine", "one_cycle"] = "steps"
    """steps: times `gamma` at each milestone; cosine: falls to 0 at the end of a full training;
    one_cycle: PyTorch's OneCycleLR over a full training, with `optimizer.lr` as its peak."""
    unit: Unit = "epochs"
    """What the milestones and `warmup` count."""
    milestones: Annotated[tuple[Length, ...], FromList, AfterValidator(_ascending)] = ()
    """When the learning rate is multiplied by `gamma`, ascending; empty for a constant rate."""
    gamma: float = Field(default=0.1, gt=0)
    """Factor at each milestone."""
    warmup: WholeNumber = Field(default=0, ge=0, le=LONGEST)
    """How long the learning rate rises to `optimizer.lr` at first, linearly, step by step."""

    @property
    def is_constant(self) -> bool:
        """Whether the learning rate never changes."""
        return self.kind == "steps" and not self.milestones and not self.warmup

    def _rules(self) -> Iterator[tuple[str, str]]:
        if self.kind != "steps":
            for name in self.changed_among("milestones", "gamma"):
                yield self.conflict(name, "kind", f"a {self.kind} schedule has no {name}")
        if self.kind == "one_cycle" and self.warmup:
            yield self.conflict("warmup", "kind", "one_cycle has a rise of its own")
        if self.milestones and self.milestones[0] <= self.warmup:
            yield self.conflict("milestones", "warmup", "they must begin after it")


_NOT_OF_TRAINER = {
    "max_steps max_epochs min_steps min_epochs max_time": "belongs to the budget",
    "accelerator devices num_nodes strategy": _MACHINE["device"],
    "val_check_interval check_val_every_n_epoch num_sanity_val_steps": "is decided by the search",
    "limit_train_batches limit_val_batches limit_test_batches overfit_batches": (
        "would change the data that losses are judged by: let the data module have fewer"
    ),
    "enable_checkpointing enable_progress_bar enable_model_summary fast_dev_run": (
        "is off in a search; checkpoints are written by a callback that you name"
    ),
    "logger": "did you mean loggers, a list?",
}


class TrainerSettings(Section):
    """Options of Lightning's Trainer."""

    not_fields = _MACHINE | {
        name: advice for names, advice in _NOT_OF_TRAINER.items() for name in names.split()
    }

    gradient_clip_val: Annotated[float, Field(gt=0)] | None = None
    """Gradients are clipped to this before each step."""
    gradient_clip_algorithm: Literal["norm", "value"] = "norm"
    """norm: that of all gradients together; value: each entry."""
    accumulate_grad_batches: WholeNumber = Field(default=1, ge=1, le=LONGEST)
    """Batches whose gradients make one optimizer step; lengths count optimizer steps."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] | None = None
    """In place of the worker's `--precision`."""
    deterministic: bool = False
    """Only algorithms of PyTorch that repeat themselves."""
    callbacks: Components = ()
    """Callbacks of either Lightning, built anew for every training."""
    loggers: Components = ()
    """Loggers of either Lightning, built anew for every training."""

    def _rules(self) -> Iterator[tuple[str, str]]:
        if self.gradient_clip_algorithm != "norm" and self.gradient_clip_val is None:
            yield self.conflict("gradient_clip_algorithm", "gradient_clip_val", "it needs one")


class CoefficientSettings(Section):
    """CMA-ES over the coefficients of the best tree, one for each of its nodes, starting at 1."""

    popsize: WholeNumber = Field(default=32, ge=2, le=MOST_CANDIDATES)
    """Candidates per generation."""
    n_generations: WholeNumber = Field(default=35, ge=0, le=MOST_GENERATIONS)
    """Generations; 0 leaves this stage out."""
    sigma: float = Field(default=0.5, gt=0, lt=100)
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
    crossover: float = Field(default=0.7, ge=0, le=1)
    """Share of children that get a part of a second parent; the others a part that is new."""
    max_depth: WholeNumber = Field(default=6, ge=1, le=17)
    """Greatest depth of a tree; Baikal's is 2."""
    coefficients: CoefficientSettings = CoefficientSettings()

    def _rules(self) -> Iterator[tuple[str, str]]:
        if self.elite >= self.popsize:
            yield self.conflict("elite", "popsize", "it must be below popsize")


class StartSettings(Section):
    """Where the search starts. With a base: at the best of known losses, which are trained first,
    each at several scales, with some standard ones. Without a base: at the expansion of a loss, or
    at given θ, in place of θ = 0."""

    losses: Annotated[tuple[Text, ...], FromList] = ()
    """With `loss.base: cross_entropy`: losses of the library, or paths of loss files, of which the
    study keeps the shapes and not the paths."""
    study: Text | None = None
    """With `loss.base: cross_entropy`: a study in the same storage, whose winner is one more."""
    shapes: Annotated[tuple[Annotated[Shape, FromList], ...], FromList] | None = None
    """α, β, γ, δ and ε of each of them; left out, they are read when the study begins."""
    loss: Text | None = None
    """With `loss.base: none`: cross_entropy, baikal, baikal_cma or the path of a loss file, of
    which the study keeps the θ and not the path."""
    at: Annotated[tuple[float, float], FromList] = (0.0, 0.5)
    """Point of expansion: target x and output y."""
    theta: Annotated[tuple[float, ...], FromList] | None = None
    """θ itself, as many as the recipe's losses have; `loss` is then only a name."""

    @property
    def n_known(self) -> int:
        """Number of known losses that are trained first."""
        return len(self.losses) + (self.study is not None)

    def _rules(self) -> Iterator[tuple[str, str]]:
        if not self.n_known and self.loss is None and self.theta is None:
            yield "losses", "is missing: give losses or a study, or without a base loss or theta"
        if self.shapes is not None and len(self.shapes) != self.n_known:
            yield "shapes", f"has {len(self.shapes)}, must have one for each of {self.n_known}"


StartOrNone = Annotated[
    StartSettings | None,
    BeforeValidator(
        lambda value: None if value == "none" else value,
        json_schema_input_type=StartSettings | Literal["none"] | None,
    ),
]

SearchedScale = Literal["auto", "free", "learning_rate", "fixed", "normalized"]

_TAYLOR_ONLY = PAPER_SEARCH | {"overlap": 0}  # what GLO's recipes have there


class SearchSettings(Section):
    """Which losses are tried, and in what order."""

    method: Literal["taylor", "glo"] = "taylor"
    """taylor: CMA-ES over the parameters of a polynomial; glo: genetic programming over trees, then
    CMA-ES over the coefficients of the best one."""
    popsize: WholeNumber = Field(default=8, ge=2, le=MOST_CANDIDATES)
    """λ, candidates per generation; 16 without known losses to start from."""
    sigma: float = Field(default=0.5, gt=0, lt=100)
    """First step size, in units of θ; 1.2 without known losses."""
    n_generations: WholeNumber = Field(default=2, ge=0, le=MOST_GENERATIONS)
    """Generations of CMA-ES; 12 without known losses, and with them 0 if tuning is enough."""
    seed: WholeNumber = Field(default=0, ge=0, le=2**32 - 1)
    """Decides every candidate and every training's seed."""
    space: Literal["theta", "canonical"] = "canonical"
    """theta: all parameters, the default for other orders and variables; canonical: the four that
    matter at order 3 over (x, y)."""
    filter: Literal["none", "trainable", "steady"] = "steady"
    """trainable: draw again until the loss can start learning, the default above order 3; steady:
    and until it does not draw all predictions to one class and, with a base, starts at a pace;
    none: the default for other variables."""
    scale: SearchedScale = "auto"
    """How the scale of losses, with a base e^s, is searched. free: as part of the loss;
    learning_rate: e^s multiplies the learning rate in its place, for optimizers that undo the scale
    of a loss, as Adam does; fixed: s stays 0, for modules whose learning rate cannot be multiplied
    either; auto: as a step at two scales shows; normalized: every candidate's first gradient is as
    long as cross-entropy's, with a base s stays 0."""
    repeats: WholeNumber = Field(default=1, ge=1, le=MOST_TRAININGS)
    """Trainings averaged for one fitness."""
    seed_policy: Literal["independent", "common"] = "independent"
    """independent: each candidate its own training seeds; common: a generation shares them."""
    overlap: WholeNumber = Field(default=0, ge=0)
    """First candidates of each generation that are drawn without the results of the generation
    before it, so that workers begin them while its last ones still train; below `popsize`."""
    start: StartOrNone = StartSettings(losses=("wrong-labels",))
    """Left out: the loss wrong-labels of the library and some standard ones; without a base, with
    class_reduction mean or for other orders, variables and spaces none. none: CMA-ES starts at
    θ = 0, with a base in the middle of a box, and takes more generations."""
    glo: GLOSettings | None = None
    """With `method: glo`."""

    @property
    def _stages(self) -> tuple[SearchSettings | GLOSettings | CoefficientSettings, ...]:
        return (self,) if self.glo is None else (self.glo, self.glo.coefficients)

    @property
    def has_scale(self) -> bool:
        """Whether the scale of an anchored loss is searched."""
        return self.scale not in ("fixed", "normalized")

    @property
    def rounds(self) -> tuple[int, ...]:
        """Numbers of known losses that are trained first, in each round."""
        if self.start is None or not self.start.n_known:
            return ()
        return rounds_of_known(self.start.n_known, scaled=self.has_scale)

    @property
    def total_generations(self) -> int:
        """Generations of the whole search: rounds of known losses, and both stages of GLO."""
        return len(self.rounds) + sum(stage.n_generations for stage in self._stages)

    @property
    def total_candidates(self) -> int:
        """Candidates of the whole search, including those that GLO need not evaluate again."""
        return sum(self.rounds) + sum(s.popsize * s.n_generations for s in self._stages)

    def _rules(self) -> Iterator[tuple[str, str]]:
        if self.method == "glo":
            if self.glo is None:
                yield self.conflict("method", "glo", "write glo: {} for the paper's settings")
            for name in self.different_from(_TAYLOR_ONLY):
                yield self.conflict(name, "method", f"GLO's settings are in search.glo, no {name}")
            if self.scale == "normalized":
                yield self.conflict("scale", "method", "that of trees is not normalized")
        elif self.glo is not None:
            yield self.conflict("glo", "method", "leave it out, or set method: glo")
        elif self.overlap >= self.popsize:
            yield self.conflict("overlap", "popsize", "it must be below popsize, such as half")
        elif self.overlap and self.rounds:
            advice = "known losses are trained before; use start: none"
            yield self.conflict("overlap", "start", advice)
        if not self.n_generations and not self.rounds:
            yield "n_generations", "is 0, must be 1 or more where no known losses are trained first"
