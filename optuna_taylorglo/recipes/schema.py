"""What a recipe says: frozen dataclasses, each field with its rule, default and meaning."""

import dataclasses
import json
import re
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, cast, get_args, get_type_hints

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes import rules
from optuna_taylorglo.recipes.rules import Rule, show

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

_CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_VARIABLES = ("x", "y", "z", "t")


def _setting(rule: Rule, doc: str) -> dict[str, Any]:
    return {"rule": rule, "doc": doc}


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the recipe; its fields are checked by their rules when it is built."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            rule: Rule | None = item.metadata.get("rule")
            if rule is not None:
                value = rule.apply(item.name, getattr(self, item.name))
                object.__setattr__(self, item.name, value)
        self._check_together()

    def _check_together(self) -> None:
        """Rules that concern several fields at once."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, from which `recipe_from_dict` builds an equal recipe."""
        return cast("dict[str, Any]", json.loads(json.dumps(dataclasses.asdict(self))))


@dataclass(frozen=True, kw_only=True)
class Component(Section):
    """A class and the arguments it is built with, as in LightningCLI."""

    class_path: str = field(
        metadata=_setting(
            rules.text(
                "a dotted path to a class, such as my_package.module.ClassName",
                lambda path: _CLASS_PATH.fullmatch(path) is not None,
            ),
            "Dotted path of the class.",
        )
    )
    init_args: dict[str, Any] = field(
        default_factory=dict,
        metadata=_setting(rules.json_mapping(MACHINE_FIELDS), "Arguments it is built with."),
    )


@dataclass(frozen=True, kw_only=True)
class OptimiserSettings(Section):
    """The optimiser of every training; what is not named here keeps PyTorch's default."""

    name: str = field(
        metadata=_setting(rules.choice("sgd", "adam", "adamw"), "Which optimiser trains.")
    )
    lr: float = field(metadata=_setting(rules.number(above=0), "Learning rate at the start."))
    momentum: float = field(
        default=0.0,
        metadata=_setting(rules.number(at_least=0, below=1), "Momentum; sgd only."),
    )
    nesterov: bool = field(
        default=False,
        metadata=_setting(rules.boolean(), "Nesterov's momentum; sgd with momentum only."),
    )
    weight_decay: float = field(
        default=0.0, metadata=_setting(rules.number(at_least=0), "Weight decay.")
    )

    def _check_together(self) -> None:
        for name in ("momentum", "nesterov"):
            if self.name != "sgd" and getattr(self, name):
                value = show(getattr(self, name))
                raise RecipeError(name, f"{value} is not allowed, {self.name} has no {name}")
        if self.nesterov and not self.momentum:
            raise RecipeError("nesterov", "true is not allowed, it needs a momentum above 0")


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings(Section):
    """Learning-rate steps. A shorter evaluation stops early; the schedule does not shrink."""

    unit: str = field(
        default="epochs",
        metadata=_setting(rules.choice("steps", "epochs"), "What the milestones count."),
    )
    milestones: tuple[int, ...] = field(
        default=(),
        metadata=_setting(
            rules.sequence(
                "an ascending list of whole numbers of at least 1",
                rules.integer(1),
                lambda items: list(items) == sorted(set(items)),
            ),
            "When the learning rate is multiplied by `gamma`; empty for a constant rate.",
        ),
    )
    gamma: float = field(
        default=0.1,
        metadata=_setting(rules.number(above=0), "Factor at each milestone."),
    )


@dataclass(frozen=True, kw_only=True)
class BudgetSettings(Section):
    """How long trainings last."""

    unit: str = field(
        metadata=_setting(rules.choice("steps", "epochs"), "What the two lengths count.")
    )
    evaluation: int = field(
        metadata=_setting(rules.integer(1), "Length of a candidate's training in the search.")
    )
    full: int = field(
        metadata=_setting(rules.integer(1), "Length of a full training, for the verdict.")
    )

    def _check_together(self) -> None:
        if self.evaluation > self.full:
            raise RecipeError(
                "evaluation",
                f"{self.evaluation} is not allowed, must be at most budget.full, {self.full}",
            )


@dataclass(frozen=True, kw_only=True)
class FitnessSettings(Section):
    """What the search maximises."""

    metric: str = field(
        default="val_accuracy",
        metadata=_setting(
            rules.text(
                "the name of a logged validation metric, never one of the test set",
                lambda name: (
                    name.isprintable()
                    and name == name.strip() != ""
                    and not name.lower().startswith("test")
                ),
            ),
            "The metric, as the Lightning module logs it; greater is better.",
        ),
    )
    take: str = field(
        default="last",
        metadata=_setting(
            rules.choice("last", "best"), "The last validation's value or the best one's."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class EarlyAbortSettings(Section):
    """When a candidate is given up before its budget's end.

    A check later than the budget's end never happens. That is allowed: the paper's MNIST
    evaluations end in their fourth epoch, under its rule for the tenth.
    """

    unit: str = field(
        default="epochs",
        metadata=_setting(rules.choice("steps", "epochs"), "What `at` counts."),
    )
    at: int = field(
        default=10, metadata=_setting(rules.integer(1), "When the metric is looked at.")
    )
    threshold: float = field(
        default=0.15,
        metadata=_setting(rules.number(), "A metric below this aborts the attempt."),
    )
    attempts: int = field(
        default=3,
        metadata=_setting(
            rules.integer(1), "Trainings a candidate gets in all, each from fresh weights."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class EarlyStopSettings(Section):
    """When a candidate that falls behind is stopped; it is ranked below all that went on.

    The generation before sets the pace, because it is finished: who is stopped then depends on
    results alone, never on which worker was faster.
    """

    unit: str = field(
        default="steps",
        metadata=_setting(rules.choice("steps", "epochs"), "What `at` counts."),
    )
    at: int = field(metadata=_setting(rules.integer(1), "When the metric is looked at."))
    keep: float = field(
        default=0.5,
        metadata=_setting(
            rules.number(above=0, below=1),
            "Share of the generation before that a candidate must keep up with at that time.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class LossSettings(Section):
    """The family of Taylor polynomials that is searched."""

    order: int = field(
        default=3, metadata=_setting(rules.integer(1, 10), "Order k of the polynomial.")
    )
    variables: tuple[str, ...] = field(
        default=("x", "y"),
        metadata=_setting(
            rules.sequence(
                "x, then y or z or both, then perhaps t, in this order, such as [x, y]",
                rules.choice(*_VARIABLES),
                lambda names: (
                    list(names) == [v for v in _VARIABLES if v in names]
                    and "x" in names
                    and ("y" in names or "z" in names)
                ),
            ),
            "x target, y softmax output, z raw logits, t training progress.",
        ),
    )
    folded: bool = field(
        default=False,
        metadata=_setting(
            rules.boolean(), "Whether the factors 1/α! are already in θ, as in published numbers."
        ),
    )
    class_reduction: str = field(
        default="mean",
        metadata=_setting(
            rules.choice("mean", "sum"), "mean: the paper's 1/n over classes; sum: as its code ran."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class SearchSettings(Section):
    """CMA-ES and what it works on."""

    population: int = field(
        default=28, metadata=_setting(rules.integer(2), "λ, candidates a generation.")
    )
    sigma: float = field(
        default=1.2,
        metadata=_setting(rules.number(above=0, below=100), "First step size, in units of θ."),
    )
    generations: int = field(
        default=60, metadata=_setting(rules.integer(1), "Generations of a complete search.")
    )
    seed: int = field(
        default=0,
        metadata=_setting(
            rules.integer(0, 2**32 - 1), "Decides every candidate and every training's seed."
        ),
    )
    space: str = field(
        default="theta",
        metadata=_setting(
            rules.choice("theta", "canonical"),
            "theta: all parameters; canonical: the four that matter at order 3 over (x, y).",
        ),
    )
    filter: str = field(
        default="none",
        metadata=_setting(
            rules.choice("none", "trainable", "steady"),
            "trainable: draw again until the loss can start learning; steady: and until it does "
            "not draw all predictions to one class.",
        ),
    )
    scale: str = field(
        default="free",
        metadata=_setting(
            rules.choice("free", "normalised"),
            "normalised: every candidate's first gradient is as long as cross-entropy's.",
        ),
    )
    repeats: int = field(
        default=1, metadata=_setting(rules.integer(1), "Trainings averaged for one fitness.")
    )
    seed_policy: str = field(
        default="independent",
        metadata=_setting(
            rules.choice("independent", "common"),
            "independent: each candidate its own training seeds; common: a generation shares them.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Recipe(Section):
    """Everything scientific about a study."""

    data: Component
    model: Component
    optimiser: OptimiserSettings
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    batch_size: int = field(metadata=_setting(rules.integer(1), "Examples a training step."))
    budget: BudgetSettings
    fitness: FitnessSettings = field(default_factory=FitnessSettings)
    early_abort: EarlyAbortSettings | None = None
    early_stop: EarlyStopSettings | None = None
    loss: LossSettings = field(default_factory=LossSettings)
    search: SearchSettings = field(default_factory=SearchSettings)

    def __post_init__(self) -> None:
        for name, section in section_types(Recipe).items():
            value = getattr(self, name)
            optional = Recipe.__dataclass_fields__[name].default is None
            if not isinstance(value, section) and not (optional and value is None):
                raise RecipeError(name, f"{show(value)} is not allowed, must be {section.__name__}")
        super().__post_init__()

    def _check_together(self) -> None:
        """Search options that exist only for some losses."""
        over_x_y = self.loss.variables == ("x", "y")
        if self.search.space == "canonical" and not (over_x_y and self.loss.order == 3):
            raise RecipeError(
                "search.space",
                "canonical is not allowed with loss.order "
                f"{self.loss.order} over {show(self.loss.variables)}: the canonical form is that "
                "of order 3 over [x, y]; use theta",
            )
        # Both rest on the gradient at the uniform prediction, a number that for a loss in z or t
        # does not speak for the rest of training.
        for name, wanted, otherwise in (
            ("filter", "trainable", "none"),
            ("scale", "normalised", "free"),
        ):
            if getattr(self.search, name) == wanted and not over_x_y:
                raise RecipeError(
                    f"search.{name}",
                    f"{wanted} is not allowed with loss.variables {show(self.loss.variables)}: "
                    f"it has a meaning over [x, y] only; use {otherwise}",
                )
        if self.search.filter == "steady" and not (over_x_y and self.loss.order <= 3):
            raise RecipeError(
                "search.filter",
                f"steady is not allowed with loss.order {self.loss.order} over "
                f"{show(self.loss.variables)}: the collapse ratio is that of order 3 or less over "
                "[x, y]; use trainable or none",
            )
        if self.search.scale == "normalised" and self.search.filter == "none":
            raise RecipeError(
                "search.scale",
                "normalised is not allowed with search.filter none: a loss that cannot start "
                "learning has no scale; use trainable or steady",
            )


def section_types(cls: type[Section]) -> dict[str, type[Section]]:
    """The fields of `cls` that are themselves sections, with their types."""
    return {
        name: member
        for name, hint in get_type_hints(cls).items()
        for member in (get_args(hint) if isinstance(hint, UnionType) else (hint,))
        if isinstance(member, type) and issubclass(member, Section)
    }
