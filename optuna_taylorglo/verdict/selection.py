"""The winner of a search, selected by full trainings on validation."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from optuna.study import Study
from optuna.trial import FrozenTrial
from pydantic import TypeAdapter

from optuna_taylorglo.attributes import SELECTION
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.evolution.candidates import (
    Point,
    candidate_loss,
    make_sampler,
    stored_candidate,
)
from optuna_taylorglo.evolution.glo import GLOSampler, TreePoint
from optuna_taylorglo.evolution.history import (
    SearchHistory,
    ranked_trials,
    recipe_and_classes,
    trial_loss,
    winner,
)
from optuna_taylorglo.evolution.sampler import TaylorGLOSampler
from optuna_taylorglo.losses.files import Origin
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import ComparedLoss, Runner, compared_evolved_loss, stage_task

if TYPE_CHECKING:
    from torch import Tensor

    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

Values = Sequence[float | None]

FINAL_MEAN = "the mean of the final distribution"
SAME_FUNCTION = 0.03  # relative distance of gradients up to which losses count as the same
SEEDS_BY_ROUND = (2, 2, 4)  # that each round of successive halving adds
SEEDS_OF_FEW = (4,)  # the same for one loss or two
LAST_ROUND = 3  # losses of the last round, at most


@dataclass(frozen=True)
class Finalist:
    """A loss that is trained fully for the selection."""

    trial: int | None  # None for the mean of the final distribution
    parameters: Point
    evaluation: float | None  # fitness in the search; None for the mean
    values: tuple[float | None, ...] = ()  # of full trainings; None for one that diverged
    mean: float | None = None  # of the values, with diverged trainings as bad as the worst

    @property
    def name(self) -> str:
        return loss_name(self.trial)


@dataclass(frozen=True)
class Selection:
    """The finalists, from the winner to the worst."""

    finalists: tuple[Finalist, ...]

    @property
    def winner(self) -> Finalist:
        return self.finalists[0]


@dataclass(frozen=True)
class SelectedLoss:
    """The loss that a search ends with, or its best one so far."""

    loss: EvolvedLoss
    trial: FrozenTrial | None  # None for the mean of the final distribution

    @property
    def name(self) -> str:
        return loss_name(None if self.trial is None else self.trial.number)


def loss_name(trial: int | None) -> str:
    """What a loss is called, by the number of its trial."""
    return FINAL_MEAN if trial is None else f"trial {trial}"


def is_undecided(study: Study, recipe: Recipe) -> bool:
    """Whether a selection by full trainings is due and not made."""
    return (
        recipe.selection is not None
        and study.user_attrs.get(SELECTION) is None
        and SearchHistory(study, recipe).finished
        and winner(study) is not None
    )


def save_selection(study: Study, selection: Selection, recipe: Recipe) -> bool:
    """Store a selection, unless there is one or the recipe changed; whether it was stored."""
    if study.user_attrs.get(SELECTION) is not None or settled_recipe(study) != recipe:
        return False
    # Two workers that get here at once write the same selection.
    study.set_user_attr(SELECTION, asdict(selection))
    return True


def load_selection(study: Study) -> Selection | None:
    """The selection that was made, if there is one."""
    content = study.user_attrs.get(SELECTION)
    return None if content is None else TypeAdapter(Selection).validate_python(content)


def selected_loss(study: Study) -> SelectedLoss:
    """The loss that a search ends with: the selected one, else that of the best evaluation."""
    selection = load_selection(study)
    if selection is None:
        best = winner(study)
        if best is None:
            raise StudyError(f"study {study.study_name!r} has no complete trial yet.")
        return SelectedLoss(trial_loss(study, best), best)
    selected = selection.winner
    recipe, n_classes = recipe_and_classes(study)
    loss = candidate_loss(recipe, selected.parameters, n_classes)
    loss.origin = Origin(
        study=study.study_name,
        trial=selected.trial,
        recipe=recipe.to_dict(),
        validation_accuracy=selected.evaluation,
        final_mean=selected.trial is None,
        full_validation=selected.mean,
    )
    trials = study.get_trials(deepcopy=False)
    return SelectedLoss(loss, None if selected.trial is None else trials[selected.trial])


def choose(study: Study, recipe: Recipe, run: Runner) -> SelectedLoss:
    """The winner, selected now if that is due; `StudyError` if it cannot be selected yet."""
    if is_undecided(study, recipe):
        save_selection(study, select_winner(study, recipe, run), recipe)
    if recipe.selection is not None and study.user_attrs.get(SELECTION) is None:
        due = f"when all {recipe.search.total_generations} generations are complete."
        raise StudyError(f"study {study.study_name!r} has no winner yet: it is selected {due}")
    return selected_loss(study)


def select_winner(study: Study, recipe: Recipe, run: Runner) -> Selection:
    """Rank the finalists of a finished search by full trainings."""
    candidates = finalists(study, recipe)
    _, n_classes = recipe_and_classes(study)
    made = [(c.name, candidate_loss(recipe, c.parameters, n_classes)) for c in candidates]
    losses = [compared_evolved_loss("finalist", name, Role.EVOLVED, loss) for name, loss in made]
    # The mean lies amid many good candidates. The best of them may lie at an edge beyond which
    # trainings fail, and owe its place to seeds that did not; the best known loss does not.
    means = (i for i, c in enumerate(candidates) if c.trial is None and not recipe.search.rounds)
    favorite = next(means, None)
    ranking = halve(losses, recipe, run, Stage.SELECTION, favorite=favorite)
    return Selection(
        tuple(replace(candidates[r.index], values=r.values, mean=r.mean) for r in ranking)
    )


def finalists(study: Study, recipe: Recipe) -> list[Finalist]:
    """The best candidates that differ as functions, then the mean of the final distribution.

    The best known loss comes first: several trainings chose it, the others one each.
    """
    from optuna_taylorglo.losses.describe import logit_gradients, relative_distance

    _, n_classes = recipe_and_classes(study)
    limit = recipe.selection.candidates if recipe.selection is not None else 1
    found: list[Finalist] = []
    gradients: list[Tensor] = []
    sampler = make_sampler(recipe, n_classes)
    ranked = ranked_trials(study)
    if isinstance(sampler, TaylorGLOSampler) and (start := sampler.start(study)) is not None:
        ranked.sort(key=lambda trial: stored_candidate(recipe, trial) != tuple(start))
    for trial in ranked:
        loss = trial_loss(study, trial)
        # Where the optimizer undoes the scale of a loss, the rate makes the step.
        gradient = (loss.lr_factor or 1.0) * logit_gradients(loss, n_classes)
        if all(relative_distance(gradient, other) > SAME_FUNCTION for other in gradients):
            gradients.append(gradient)
            parameters = stored_candidate(recipe, trial)
            assert parameters is not None, "ranked trials are candidates"
            found.append(Finalist(trial.number, parameters, trial.values[0]))
        if len(found) == limit:
            break
    states = sampler.search_state(study)
    if found and len(states) > 1:  # a GLO search may have no second stage
        mean: Point = states[-1].mean
        if isinstance(sampler, GLOSampler) and sampler.best_tree is not None:
            mean = TreePoint(tuple(sampler.best_tree.to_prefix()), states[-1].mean)
        with contextlib.suppress(ValueError):  # it cannot learn, so it has no scale to normalize
            candidate_loss(recipe, mean, n_classes)
            found.append(Finalist(None, mean, None))
    return found


@dataclass(frozen=True)
class Ranked:
    """A loss in a ranking, with the values and the mean that a `Finalist` gets."""

    index: int
    values: tuple[float | None, ...]
    mean: float


def halve(
    losses: Sequence[ComparedLoss],
    recipe: Recipe,
    run: Runner,
    stage: Stage,
    *,
    favorite: int | None = None,
) -> list[Ranked]:
    """Rank losses by successive halving over seeds of full trainings.

    The stage decides the seeds. A favorite, named by its index, goes on to the last round in any
    case, and wins unless another's mean is better by more than a standard error of the difference.
    """
    values: list[list[float | None]] = [[] for _ in losses]
    staying, left = list(range(len(losses))), list[int]()
    n_done, sign, rounds = 0, recipe.fitness.sign, _rounds(len(losses))
    for number, n_seeds in enumerate(rounds, start=1):
        seeds = range(n_done, n_done + n_seeds)
        tasks = [stage_task(recipe, losses[i], stage, s) for i in staying for s in seeds]
        results = run(tasks)
        for place, i in enumerate(staying):
            values[i] += results[place * n_seeds : (place + 1) * n_seeds]
        n_done += n_seeds
        means = _means(values, sign)
        staying.sort(key=lambda i: (-sign * means[i], i))
        if number < len(rounds):
            n_kept = _n_kept(len(staying), number)
            going = [i for i in staying[n_kept:] if i != favorite]
            staying, left = [i for i in staying if i not in going], going + left
    if favorite in staying and not _clearly_better(values[staying[0]], values[favorite], sign):
        staying.remove(favorite)
        staying.insert(0, favorite)
    return [Ranked(i, tuple(values[i]), means[i]) for i in staying + left]


def n_selection_trainings(n_losses: int) -> int:
    """Trainings of `halve` among so many losses without a favorite."""
    total, n_left = 0, n_losses
    for number, n_seeds in enumerate(_rounds(n_losses), start=1):
        total += n_left * n_seeds
        n_left = _n_kept(n_left, number)
    return total


def _rounds(n_losses: int) -> tuple[int, ...]:
    """Seeds that each round adds."""
    return SEEDS_BY_ROUND if n_losses > 2 else SEEDS_OF_FEW


def _n_kept(n: int, number: int) -> int:
    """Losses that stay after a round, of so many."""
    n_kept = max(2, math.ceil(n / 2))
    return min(n_kept, LAST_ROUND) if number == len(SEEDS_BY_ROUND) - 1 else n_kept


def _clearly_better(values: Values, others: Values, sign: int) -> bool:
    """Whether a mean is better by more than a standard error of the paired differences."""
    if None in others:
        return True  # a favorite must not diverge
    if None in values:
        return False
    pairs = zip(values, others, strict=True)
    differences = [sign * (a - b) for a, b in pairs if a is not None and b is not None]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences) > error


def _means(values: Sequence[Values], sign: int) -> list[float]:
    # The worst is at most 0, which is the worst accuracy, but not the worst negative metric.
    worst = sign * min([0.0, *(sign * v for row in values for v in row if v is not None)])
    return [statistics.fmean(worst if v is None else v for v in row) for row in values]
