"""The losses that one would take instead of an evolved loss, each tuned on validation."""

from __future__ import annotations

import logging
import math
import statistics
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.study import Study
from optuna.trial import Trial, TrialState

from optuna_taylorglo.attributes import CROSS_ENTROPY, LR_FACTOR, OPTIMIZER
from optuna_taylorglo.errors import Diverged
from optuna_taylorglo.evolution.candidates import loss_conventions
from optuna_taylorglo.evolution.history import direction_of
from optuna_taylorglo.losses.files import load_loss
from optuna_taylorglo.recipes.load import BUNDLED_PACKAGE
from optuna_taylorglo.recipes.schema import FunctionRecipe, Recipe, TrainingRecipe
from optuna_taylorglo.seeds import Stage, candidate_seed, training_seed
from optuna_taylorglo.study.open import create_in_memory
from optuna_taylorglo.verdict.selection import halve
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import (
    ComparedLoss,
    Runner,
    compared_evolved_loss,
    cross_entropy,
    stage_task,
)

if TYPE_CHECKING:  # these import PyTorch
    from optuna_taylorglo.training.candidate import Trainer
    from optuna_taylorglo.training.runtime import RuntimeConfig
    from optuna_taylorglo.training.training import Training

logger = logging.getLogger(__name__)

# Learning rates are relative to the recipe's or the module's own.
LEARNING_RATE_FACTORS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # of cross-entropy
LOSS_RATE_FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # of a loss with a scale of its own
TUNING_SEEDS = 2  # trainings at each of them
GRID_FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0)  # with a parameter; robust losses want smaller ones
NO_LR_FACTOR = "train does not multiply its learning rate by candidate.lr_factor"
RATE_BOUNDS = (0.01, 10.0)  # in the search among the standard losses
BATCH = 8  # trainings that TPE proposes together, however many workers there are
FINALISTS = 10  # standard losses that are trained fully, unless the search's selection has others


class Range(NamedTuple):
    """The values that a parameter may take in a search; whole numbers if `low` is an int."""

    low: float
    high: float
    log: bool = False

    def suggest(self, trial: Trial, name: str) -> float:
        """A value for a trial."""
        if isinstance(self.low, int):
            return trial.suggest_int(name, self.low, int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Family:
    """A standard loss and its parameters."""

    label: str
    ranges: Mapping[str, Range]
    grid: tuple[tuple[float, ...], ...]  # values in the order of `ranges`; the first is the default

    def settings(self) -> list[dict[str, float]]:
        """Published or usual settings, the most usual first."""
        return [dict(zip(self.ranges, values, strict=True)) for values in self.grid]


_ACTIVE, _PASSIVE = Range(0.1, 100.0, log=True), Range(0.01, 100.0, log=True)  # weights of parts

# Sources of settings: the papers that the losses cite, and for wrong labels the configurations of
# Zhou et al. (github.com/hitcszx/ALFs), Ye et al. (github.com/Virusdoll/Active-Negative-Loss) and
# Wang et al. (github.com/cswjl/eps-softmax): of CIFAR-10 first, then CIFAR-100 and others.
FAMILIES: Mapping[str, Family] = {
    "label-smoothing": Family(
        "label smoothing",
        {"label_smoothing": Range(-1.0, 0.9)},
        ((0.1,), (0.05,), (0.2,), (0.4,), (-0.2,), (-0.8,)),
    ),
    "gce": Family(
        "generalized cross-entropy", {"q": Range(0.05, 1.0)}, ((0.7,), (0.3,), (0.5,), (0.9,))
    ),
    "sce": Family(
        "symmetric cross-entropy",
        {"alpha": Range(0.01, 10.0, log=True), "beta": Range(0.01, 10.0, log=True)},
        ((0.1, 1.0), (6.0, 0.1), (0.01, 1.0), (1.0, 1.0)),
    ),
    "nce-rce": Family(
        "NCE + RCE",
        {"alpha": _ACTIVE, "beta": _PASSIVE},
        ((1.0, 1.0), (10.0, 0.1), (1.0, 10.0), (50.0, 0.1)),
    ),
    "nce-agce": Family(
        "NCE + AGCE",
        {
            "alpha": _ACTIVE,
            "beta": _PASSIVE,
            "a": Range(0.01, 10.0, log=True),
            "q": Range(0.1, 4.0),
        },
        ((1.0, 4.0, 6.0, 1.5), (10.0, 0.1, 1.8, 3.0), (50.0, 0.1, 2.5, 3.0)),
    ),
    "anl-ce": Family(
        "ANL-CE",
        {"alpha": _ACTIVE, "beta": _PASSIVE},
        ((5.0, 5.0), (10.0, 1.0), (1.0, 1.0), (20.0, 1.0)),
    ),
    "eps-softmax": Family(
        "ε-softmax",
        {
            "m": Range(1.0, 1e6, log=True),
            "alpha": Range(0.001, 1.0, log=True),
            "beta": Range(0.1, 10.0, log=True),
        },
        ((1e5, 0.01, 5.0), (1e3, 0.02, 5.0), (1e4, 0.05, 1.0), (1e2, 0.007, 1.0)),
    ),
    "jal-ce": Family(
        "JAL-CE",
        {"alpha": _ACTIVE, "beta": _PASSIVE, "a": Range(1.0, 50.0, log=True)},
        ((1.0, 1.0, 20.0), (1.0, 1.0, 10.0), (1.0, 1.0, 30.0), (1.0, 1.0, 40.0)),
    ),
    "ldr-kl": Family(
        "LDR-KL",
        {"temperature": Range(0.1, 100.0, log=True), "margin": Range(0.01, 10.0, log=True)},
        ((10.0, 0.1), (1.0, 0.1), (1.0, 2.0)),
    ),
    "logit-clip": Family(
        "logit clipping",
        {"tau": Range(0.1, 100.0, log=True)},
        ((2.5,), (0.5,), (1.0,), (1.5,)),
    ),
    "poly": Family("PolyLoss-1", {"epsilon": Range(-1.0, 30.0)}, ((2.0,), (1.0,), (8.0,), (30.0,))),
    "focal": Family("focal loss", {"gamma": Range(0.0, 5.0)}, ((2.0,), (0.5,), (1.0,), (5.0,))),
    "taylor-ce": Family(
        "Taylor cross-entropy", {"order": Range(1, 32, log=True)}, ((2,), (1,), (4,), (8,))
    ),
}
"""By the short names of the command line, in the order in which the published ones are tried."""

BASELINES = ("ce", "ce-tuned", "baikal", "baikal-cma", *FAMILIES, "best-standard")
DEFAULT_BASELINES = ("ce", "ce-tuned", "label-smoothing", "best-standard")


def has_own_optimizer(study: Study, recipe: Recipe) -> bool | None:
    """Whether the module brings its optimizer; None if the first worker has not found out yet."""
    if not isinstance(recipe, TrainingRecipe):
        return True
    if recipe.model.class_path.startswith(f"{BUNDLED_PACKAGE}."):
        return False
    owner = study.user_attrs.get(OPTIMIZER)
    return None if owner is None else owner == "module"


def save_optimizer_owner(study: Study, training: Training) -> None:
    """Store in the study which optimizer trains, the module's own or with what settings."""
    optimizer = None if training.own_optimizer else training.recipe.optimizer
    study.set_user_attr(OPTIMIZER, "module" if optimizer is None else optimizer.to_dict())


@dataclass(frozen=True)
class LearningRates:
    """How learning rates are varied: rates are numbers, or factors on a module's or function's own.

    Where a function does not follow `candidate.lr_factor`, the scale of a loss takes its place.
    """

    base: float | None  # the recipe's learning rate; None for a module's or function's own
    obstacle: str | None = None  # why it cannot be varied
    by_scale: bool = False

    @classmethod
    def of(cls, recipe: Recipe) -> LearningRates:
        """Those of a recipe whose optimizer trains the network, if it has one."""
        optimizer = recipe.optimizer if isinstance(recipe, TrainingRecipe) else None
        return cls(None if optimizer is None else optimizer.lr)

    @classmethod
    def of_function(cls, study: Study, recipe: FunctionRecipe) -> LearningRates:
        """Those of a training function."""
        if study.user_attrs.get(LR_FACTOR):
            return cls(None)
        if recipe.search.scale == "free":
            return cls(None, by_scale=True)
        return cls(None, NO_LR_FACTOR)

    @classmethod
    def find(cls, study: Study, recipe: TrainingRecipe, runtime: RuntimeConfig) -> LearningRates:
        """Those of a study; a module's own are tried for one step."""
        from optuna_taylorglo.training.training import Training

        if recipe.optimizer is None or has_own_optimizer(study, recipe) is not False:
            training = Training(recipe, runtime)
            if training.own_optimizer:
                return cls(None, training.learning_rate_obstacle())
            recipe = training.recipe
        return cls.of(recipe)

    @property
    def start(self) -> float:
        """The rate before any tuning."""
        return 1.0 if self.base is None else self.base

    def times(self, factors: Sequence[float]) -> list[float]:
        """The rates to try; a single one where it cannot be varied."""
        return [self.start * factor for factor in factors] if self.obstacle is None else [1.0]

    def settings(self, rate: float) -> dict[str, Any]:
        """Fields of a `ComparedLoss` that is trained at a rate."""
        if self.base is not None:
            return {"learning_rate": rate}
        return {} if rate == 1 else {"scale" if self.by_scale else "learning_rate_factor": rate}

    def label(self, rate: float) -> str:
        """A rate in words."""
        if self.by_scale:
            return f"scale {rate:.3g}"
        return f"learning rate {'' if self.base is not None else '× '}{rate:.3g}"

    @property
    def note(self) -> str:
        """What a verdict says about them; empty if they were tuned."""
        if self.obstacle is None:
            return ""
        return (
            f"No learning rate was tuned: {self.obstacle}. Cross-entropy at a "
            "tuned rate is left out, and the other losses were tried at its own rate only."
        )


def baseline(name: str, recipe: Recipe, run: Runner, rates: LearningRates) -> ComparedLoss:
    """The loss of a name out of `BASELINES`, tuned if the name says so, or of a loss file."""
    if name == "ce":
        return cross_entropy(role=Role.REFERENCE)
    if name in ("baikal", "baikal-cma"):
        return ComparedLoss(name, {"baikal": "Baikal", "baikal-cma": "BaikalCMA"}[name], name)
    if name == "best-standard":
        return best_standard_loss(recipe, run, rates)
    if name == "ce-tuned":
        return tuned_rates(recipe, run, rates)[0].loss
    if name in FAMILIES:
        tried = [
            standard_loss(name, name, settings, rates, rate)
            for settings in FAMILIES[name].settings()
            for rate in rates.times(GRID_FACTORS)
        ]
        means = _means_on_validation(tried, 1, recipe, run)
        best = tried[means.index(max(means))]
        return replace(best, label=f"{best.label} (best of {len(tried)})")
    return compared_evolved_loss(Path(name).stem, name, Role.BASELINE, load_loss(name))


def standard_loss(
    name: str, family: str, settings: dict[str, float], rates: LearningRates, rate: float
) -> ComparedLoss:
    """The loss of a family with these parameters at a learning rate."""
    kind, label = family, FAMILIES[family].label
    if family == "label-smoothing":
        smoothing = settings["label_smoothing"]
        kind = "cross-entropy" if smoothing >= 0 else kind  # PyTorch's own where it can
        label += f" {smoothing:.3g}"
    else:
        label += f" ({', '.join(f'{key} {value:.3g}' for key, value in settings.items())})"
    label += f" at {rates.label(rate)}"
    return ComparedLoss(name, label, kind, settings=settings, **rates.settings(rate))


class TunedRate(NamedTuple):
    """A loss at a learning rate."""

    rate: float  # or a factor on a module's or function's own
    label: str
    mean: float  # validation metric, of several trainings; NaN if one diverged
    loss: ComparedLoss


def tuned_rates(
    recipe: Recipe, run: Runner, rates: LearningRates, loss: ComparedLoss | None = None
) -> list[TunedRate]:
    """Cross-entropy, or another loss, at several learning rates, the best on validation first."""
    factors = LEARNING_RATE_FACTORS if loss is None else LOSS_RATE_FACTORS
    loss = loss or cross_entropy("ce-tuned")
    values = rates.times([factor * (loss.learning_rate_factor or 1.0) for factor in factors])
    losses = [
        replace(loss, label=f"{loss.label}, {rates.label(rate)} (tuned)", **rates.settings(rate))
        for rate in values
    ]
    scores = _means_on_validation(losses, TUNING_SEEDS, recipe, run)
    sign = recipe.fitness.sign
    order = sorted(range(len(values)), key=lambda i: -scores[i])
    means = [math.nan if score == -math.inf else sign * score for score in scores]
    return [TunedRate(values[i], rates.label(values[i]), means[i], losses[i]) for i in order]


def _means_on_validation(
    tried: Sequence[ComparedLoss], n_seeds: int, recipe: Recipe, run: Runner
) -> list[float]:
    """The mean score of each loss at the length of an evaluation."""
    length = recipe.budget.evaluation
    tasks = [
        stage_task(recipe, loss, Stage.TUNE, seed, length=length)
        for loss in tried
        for seed in range(n_seeds)
    ]
    scores = [_score(value, recipe) for value in run(tasks)]
    return [statistics.fmean(scores[i : i + n_seeds]) for i in range(0, len(scores), n_seeds)]


def _score(value: float | None, recipe: Recipe) -> float:
    """A result so that greater is better; diverged trainings are the worst."""
    return -math.inf if value is None else recipe.fitness.sign * value


def best_standard_loss(recipe: Recipe, run: Runner, rates: LearningRates) -> ComparedLoss:
    """Search with TPE among the standard losses, with the budget that the loss search had."""
    search, length = recipe.search, recipe.budget.evaluation
    published = [(name, family.settings()[0]) for name, family in FAMILIES.items()]
    # Cross-entropy as in the recipe comes first.
    first = [("label-smoothing", {"label_smoothing": recipe.loss.label_smoothing}), *published]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=candidate_seed(search.seed, Stage.STANDARD, 0),
            # All that is not deprecated, so that results do not follow Optuna's defaults.
            n_startup_trials=len(first) + 2 * BATCH,
            n_ei_candidates=24,
            multivariate=True,
            group=True,
            constant_liar=True,
        )
    study = create_in_memory("standard losses", direction_of(recipe))
    study.sampler = sampler
    for family, settings in first:
        parameters = {_parameter_name(family, key): value for key, value in settings.items()}
        if rates.obstacle is None:
            parameters[_parameter_name(family, "learning rate")] = rates.start
        study.enqueue_trial({"loss": family, **parameters})
    tried: list[tuple[ComparedLoss, float | None]] = []
    n_trainings = search.total_candidates * search.repeats
    n_finalists = FINALISTS if recipe.selection is None else recipe.selection.candidates + 1
    while len(tried) < n_trainings:
        trials, losses = [], []
        for _ in range(min(BATCH, n_trainings - len(tried))):
            trials.append(study.ask())
            losses.append(_suggest(trials[-1], rates))
        tasks = [
            stage_task(recipe, loss, Stage.STANDARD, trial.number, length=length)
            for trial, loss in zip(trials, losses, strict=True)
        ]
        values = run(tasks)
        for trial, value in zip(trials, values, strict=True):
            # TPE ranks pruned trials below all others.
            study.tell(trial, value, TrialState.PRUNED if value is None else None)
        tried += zip(losses, values, strict=True)
    tried.sort(key=lambda pair: -_score(pair[1], recipe))
    finalists = [loss for loss, _ in tried[:n_finalists]]
    best = finalists[halve(finalists, recipe, run, Stage.STANDARD_SELECTION)[0].index]
    return replace(best, label=f"the best standard loss, same budget: {best.label}")


def _suggest(trial: Trial, rates: LearningRates) -> ComparedLoss:
    # Each family has its own parameters and learning rate: which is best depends on the others.
    family = trial.suggest_categorical("loss", list(FAMILIES))
    settings = {
        name: values.suggest(trial, _parameter_name(family, name))
        for name, values in FAMILIES[family].ranges.items()
    }
    rate = rates.start
    if rates.obstacle is None:
        low, high = rates.times(RATE_BOUNDS)
        rate = trial.suggest_float(_parameter_name(family, "learning rate"), low, high, log=True)
    return standard_loss("best-standard", family, settings, rates, rate)


def _parameter_name(family: str, parameter: str) -> str:
    return f"{parameter} of {family}"


def evaluate_cross_entropy(
    study: Study, trainer: Trainer, n_seeds: int, stop: threading.Event | None = None
) -> list[float | None]:
    """Train with cross-entropy and the seeds of the first candidates; None where it diverged.

    Results are stored in the study, and those that are there are not trained again.
    """
    from torch import nn

    from optuna_taylorglo.training.candidate import Candidate

    recipe = trainer.recipe
    known: dict[str, float] = dict(study.user_attrs.get(CROSS_ENTROPY, {}))
    policy = recipe.search.seed_policy
    # A generation with common seeds has one seed; those of the next generations follow.
    places = [(n, 0) if policy == "common" else (0, n) for n in range(n_seeds)]
    seeds = [training_seed(recipe.search.seed, *place, 0, policy=policy) for place in places]
    for seed in (seed for seed in seeds if str(seed) not in known):
        loss = nn.CrossEntropyLoss(**loss_conventions(recipe))
        try:
            known[str(seed)] = trainer.evaluate(Candidate(loss, seed, stop=stop))
        except Diverged as error:
            logger.warning("cross-entropy diverged with seed %d: %s", seed, error)
            continue
        study.set_user_attr(CROSS_ENTROPY, known)
    return [known.get(str(seed)) for seed in seeds]
