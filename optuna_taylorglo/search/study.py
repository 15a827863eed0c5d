"""What makes a study a search: its recipe, where it starts, and how its trials fill slots."""

from __future__ import annotations

import shlex
import warnings
from typing import TYPE_CHECKING

from optuna.exceptions import ExperimentalWarning
from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.attributes import (
    CLASS_WEIGHTS,
    CROSS_ENTROPY,
    DRAWN,
    FIRST_TRIAL,
    GENERATION,
    N_CLASSES,
    SELECTION,
    WITHDRAWN,
)
from optuna_taylorglo.errors import (
    LossFileError,
    RecipeError,
    RecipeMismatch,
    StudyError,
)
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.tree import (
    BAIKAL,
    BAIKAL_CMA_COEFFICIENTS,
    CROSS_ENTROPY_TREE,
    Tree,
    expanded_theta,
)
from optuna_taylorglo.recipes.load import (
    CHANGEABLE,
    freeze,
    frozen_recipe,
    merged,
    recipe_differences,
    replace_recipe,
    settled_recipe,
)
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.recipes.settings import StartSettings
from optuna_taylorglo.search.generations import GenerationLog, RetryPolicy
from optuna_taylorglo.search.glo.replay import GLOReplay, TreeLog
from optuna_taylorglo.study.heartbeat import StaleTrials, WorkerProcess, fail_trial
from optuna_taylorglo.study.open import Direction, check_direction, find_evaluation_study
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.study.queue import counted_trials, has_results
from optuna_taylorglo.study.storages import shown_storage

if TYPE_CHECKING:
    from optuna_taylorglo.losses.load import EvolvedLoss
    from optuna_taylorglo.losses.taylor import TaylorLoss


def form_of(recipe: Recipe) -> Expansion:
    """The form of the losses of a Taylor search."""
    return Expansion(recipe.loss.order, recipe.loss.variables, recipe.loss.folded)


NAMED: dict[str, tuple[Tree, tuple[float, ...] | None]] = {
    "cross_entropy": (CROSS_ENTROPY_TREE, None),
    "baikal": (BAIKAL, None),
    "baikal_cma": (BAIKAL, BAIKAL_CMA_COEFFICIENTS),
}
"""Losses that are known by name, as trees with their coefficients."""


def resolve_start(recipe: Recipe) -> Recipe:
    """The recipe with the θ that its search starts at, which a study keeps in place of a file.

    Raises:
        RecipeError: If the loss cannot be read or expanded.
    """
    start, form = recipe.search.start, form_of(recipe)
    if start is None:
        return recipe
    if start.theta is None:
        start = start.changed(theta=_expansion(start, form))
    elif len(start.theta) != form.n_parameters:
        raise RecipeError(
            "search.start.theta",
            f"has {len(start.theta)} numbers, must have {form.n_parameters}: {form}",
        )
    return recipe.changed(search=recipe.search.changed(start=start))


def _expansion(start: StartSettings, form: Expansion) -> tuple[float, ...]:
    assert start.loss is not None, "a start without θ has a loss"
    tree, coefficients = NAMED.get(start.loss, (None, None))
    if tree is None:
        from optuna_taylorglo.losses.taylor import TaylorLoss

        loss = _file(start.loss)
        if isinstance(loss, TaylorLoss):
            return _same_form(loss, form, start.loss)
        tree, coefficients = loss.tree, loss.coefficients
    center = (start.at[0], start.at[1])
    try:
        return expanded_theta(tree, coefficients, form=form, center=center)
    except ValueError as error:
        raise RecipeError("search.start.at", f"{list(center)} is not allowed: {error}") from error


def _file(path: str) -> EvolvedLoss:
    from optuna_taylorglo.losses.load import load_loss

    try:
        return load_loss(path)
    except LossFileError as error:
        sentence = f"{path!r} is none of {', '.join(NAMED)}, and no loss file: {error}"
        raise RecipeError("search.start.loss", sentence) from error


def _same_form(loss: TaylorLoss, form: Expansion, path: str) -> tuple[float, ...]:
    """θ of a Taylor loss, which needs no expansion if it is one of the recipe's."""
    if loss.form != form or loss.anchor is not None:
        base = "" if loss.anchor is None else " on cross-entropy"
        raise RecipeError(
            "search.start.loss",
            f"{path!r} has a loss of another form, {loss.form}{base}; the recipe's is {form}",
        )
    return loss.theta


_logger = get_logger(__name__)


def freeze_or_change(study: Study, recipe: Recipe) -> None:
    """Keep a recipe in a study as far as that is right.

    Raises:
        RecipeMismatch: If the study has results or workers by another recipe, one that differs in
            what results depend on.
    """
    held = frozen_recipe(study)
    if held is None or not (differences := recipe_differences(held, recipe)):
        freeze(study, recipe)
        return
    evaluation_study = find_evaluation_study(study)
    studies = [study] if evaluation_study is None else [study, evaluation_study]
    evaluated = any(map(has_results, studies))
    running = [] if evaluated else _running(studies)
    if evaluated or running:
        changed = merged(held, recipe)
        if changed is None:
            advice = (
                _advice(study, evaluation_study) if evaluated else _advice_at_work(study, running)
            )
            raise RecipeMismatch(study.study_name, differences, advice)
        _change(study, held, changed, recipe.search.n_generations)
        return
    _begin_anew(studies, recipe)
    _logger.warning(
        f"Study {study.study_name!r} begins anew with another recipe; nothing was evaluated under "
        "the one before."
    )


def check_recipe(study: Study, recipe: Recipe) -> None:
    """Make sure that what a worker does still belongs to the study.

    A recipe is replaced only while no trial runs, so a worker that asks this with a running trial
    in hand has an answer that lasts.

    Args:
        study: The study.
        recipe: The recipe that the worker works by.

    Raises:
        RecipeMismatch: If the study began anew with another recipe.
    """
    held = settled_recipe(study)
    if held is not None and merged(held, recipe) is None:
        raise RecipeMismatch(
            study.study_name,
            recipe_differences(held, recipe),
            "The study began anew with another recipe while this worker was at work. Start it "
            "again to work by that one.",
        )


def _change(study: Study, held: Recipe, changed: Recipe, asked_for: int) -> None:
    """Let a study with results go on by a recipe that changes none of them."""
    name, generations = study.study_name, changed.search.n_generations
    if asked_for < generations:
        _logger.warning(
            f"Study {name!r} has {generations} generations, more than the {asked_for} of the file; "
            "it keeps them."
        )
    if lines := recipe_differences(held, changed):
        if study.user_attrs.get(SELECTION) is not None:
            study.set_user_attr(SELECTION, None)  # the winner is to be chosen again
        replace_recipe(study, changed)
        for line in lines:
            _logger.warning(f"Changed in study {name!r}: {line}.")


def _running(studies: list[Study]) -> list[FrozenTrial]:
    found = []
    for study in studies:
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        StaleTrials(storage_of(study)).fail(running)  # those of workers that died here
        found += study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return found


def _begin_anew(studies: list[Study], recipe: Recipe) -> None:
    """Leave all trials so far out of account, and what was kept beside them."""
    study = studies[0]
    for each in studies:
        storage = storage_of(each)
        trials = each.get_trials(deepcopy=False)
        waiting = [t for t in counted_trials(each) if t.state == TrialState.WAITING]
        each.set_user_attr(FIRST_TRIAL, len(trials))
        for trial in waiting:
            fail_trial(storage, trial_id_of(trial), WITHDRAWN)
        # What somebody put into the queue of candidates by hand is still wanted.
        for trial in waiting if each is study else ():
            if GENERATION not in trial.user_attrs:
                each.add_trial(
                    create_trial(
                        state=TrialState.WAITING,
                        system_attrs=trial.system_attrs,
                        user_attrs={k: v for k, v in trial.user_attrs.items() if k != WITHDRAWN},
                    )
                )
    # Optuna has no way to remove an attribute.
    for key in (N_CLASSES, CLASS_WEIGHTS, SELECTION):
        if key in study.user_attrs:
            study.set_user_attr(key, None)
    study.set_user_attr(CROSS_ENTROPY, {})
    study.set_user_attr(DRAWN, 0)
    replace_recipe(study, recipe)


def _advice(study: Study, evaluation_study: Study | None) -> str:
    name = study.study_name
    deleted = [name] if evaluation_study is None else [name, evaluation_study.study_name]
    commands = "\n".join("  " + _command("optuna", "delete-study", study, each) for each in deleted)
    return (
        f"The study has results, so only {CHANGEABLE} may change. Give the new recipe a study of "
        f"its own with\n  --study-name {shlex.quote(name + '-2')}\n"
        "or go on with the study's own recipe with\n"
        f"  {_command('taylorglo-worker', '', study, name)}\n"
        f"or delete the study, with all its results, and start again:\n{commands}"
    )


def _advice_at_work(study: Study, running: list[FrozenTrial]) -> str:
    worker = WorkerProcess.of(running[0])
    return (
        f"Nothing is evaluated yet, but worker {worker or 'of another program'} is at work by the "
        "study's recipe. Stop the workers, and the new recipe takes its place; or give it a study "
        f"of its own with\n  --study-name {shlex.quote(study.study_name + '-2')}"
    )


def _command(program: str, verb: str, study: Study, name: str) -> str:
    words = [program, *([verb] if verb else []), "--study-name", name]
    url = shown_storage(storage_of(study))
    return shlex.join([*words, *([] if url is None else ["--storage", url])])


MAX_FAILURES = 3
"""Crashes of a candidate's evaluation that are made up for; one more, and it is the worst."""


def attach_recipe(study: Study, recipe: Recipe | None) -> Recipe:
    """Freeze a recipe into a study, change what may be changed, or take the one frozen there.

    Args:
        study: The study.
        recipe: The recipe to work by, or None for the study's.

    Returns:
        The study's recipe.

    Raises:
        RecipeMismatch: If the study has results, or workers, by another recipe.
        StudyError: If there is none at all, or the study has the other direction.
    """
    if recipe is not None:
        recipe = resolve_start(recipe)
        check_direction(study, direction_of(recipe))
        # Of two recipes that are given in the same moment the last one stays, and workers with
        # the other one end at their next trial (`check_recipe`).
        freeze_or_change(study, recipe)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names([recipe.fitness.metric])
    settled = settled_recipe(study)
    if settled is None:
        raise StudyError(
            f"study {study.study_name!r} has no recipe yet: give the first worker one, such as\n"
            "  --recipe studies/digits_cnn.yaml"
        )
    return settled


def direction_of(recipe: Recipe) -> Direction:
    """The direction of the recipe's studies."""
    return "maximize" if recipe.fitness.mode == "max" else "minimize"


def retry_policy(recipe: Recipe) -> RetryPolicy:
    """How the trials of a recipe's study fill the slots of its generations."""
    attempts = 1 if recipe.early_abort is None else recipe.early_abort.attempts
    search = recipe.search
    popsize = search.popsize if search.glo is None else search.glo.popsize
    return RetryPolicy(popsize, attempts, MAX_FAILURES, search.overlap)


def new_log(recipe: Recipe) -> GenerationLog:
    """The slots of a recipe's study, before its trials are read."""
    rules, search = retry_policy(recipe), recipe.search
    if search.glo is None:
        return GenerationLog(rules)
    maximize = recipe.fitness.mode == "max"
    return TreeLog(rules, GLOReplay(search.glo, rules, search.seed, maximize=maximize))
