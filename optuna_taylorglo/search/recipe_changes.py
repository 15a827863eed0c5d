"""When a study meets another recipe than its own: what changes, what begins anew, what is refused.

- Where nothing was evaluated yet, the new recipe takes the place of the old one, and trials that
  failed under it are left out of account.
- With results, the search may get more generations and the winner may be chosen otherwise.
- Anything else would mix two experiments, and is refused with the commands that help.
"""

from __future__ import annotations

import shlex

from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_taylorglo.attributes import (
    CHOICE,
    CLASS_WEIGHTS,
    CROSS_ENTROPY,
    DRAWN,
    EVALUATION_LENGTH,
    FIRST_TRIAL,
    GENERATION,
    N_CLASSES,
    WITHDRAWN,
)
from optuna_taylorglo.errors import RecipeMismatch
from optuna_taylorglo.recipes.in_study import (
    CHANGEABLE,
    freeze,
    frozen_recipe,
    merged,
    recipe_differences,
    replace_recipe,
    settled_recipe,
)
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.study.heartbeat import StaleTrials, WorkerProcess, fail_trial
from optuna_taylorglo.study.open import find_companion
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.study.queue import counted_trials, has_results
from optuna_taylorglo.study.storages import shown_storage

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
    companion = find_companion(study)
    studies = [study] if companion is None else [study, companion]
    evaluated = any(map(has_results, studies))
    running = [] if evaluated else _running(studies)
    if evaluated or running:
        changed = merged(held, recipe)
        if changed is None:
            advice = _advice(study, companion) if evaluated else _advice_at_work(study, running)
            raise RecipeMismatch(study.study_name, differences, advice)
        _change(study, held, changed, recipe.search.generations)
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
    if held is not None and recipe.budget.evaluation == "auto":
        # The pilot may have been settled since; that is no other recipe.
        held = held.changed(budget=held.budget.changed(evaluation="auto"))
    if held is not None and merged(held, recipe) is None:
        raise RecipeMismatch(
            study.study_name,
            recipe_differences(held, recipe),
            "The study began anew with another recipe while this worker was at work. Start it "
            "again to work by that one.",
        )


def _change(study: Study, held: Recipe, changed: Recipe, asked_for: int) -> None:
    """Let a study with results go on by a recipe that changes none of them."""
    name, generations = study.study_name, changed.search.generations
    if asked_for < generations:
        _logger.warning(
            f"Study {name!r} has {generations} generations, more than the {asked_for} of the file; "
            "it keeps them."
        )
    if lines := recipe_differences(held, changed):
        if study.user_attrs.get(CHOICE) is not None:
            study.set_user_attr(CHOICE, None)  # the winner is to be chosen again
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
    for key in (N_CLASSES, EVALUATION_LENGTH, CLASS_WEIGHTS, CHOICE):
        if key in study.user_attrs:
            study.set_user_attr(key, None)
    study.set_user_attr(CROSS_ENTROPY, {})
    study.set_user_attr(DRAWN, 0)
    replace_recipe(study, recipe)


def _advice(study: Study, companion: Study | None) -> str:
    name = study.study_name
    deleted = [name] if companion is None else [name, companion.study_name]
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
