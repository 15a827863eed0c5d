"""A trial to a fitness: builds the candidate's loss, trains with it, reports on the way."""

from __future__ import annotations

import math
import statistics
import threading

import optuna
import torch
from optuna.trial import Trial

from optuna_taylorglo.attributes import ATTEMPT, DIVERGED, GENERATION, INDEX, STOPPED
from optuna_taylorglo.errors import Diverged
from optuna_taylorglo.search.candidates import candidate_loss
from optuna_taylorglo.search.pruners import EarlyEndPruner
from optuna_taylorglo.search.scheduler import GenerationSampler
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.study.storages import release_connections
from optuna_taylorglo.training.training import Training


class Objective:
    """Evaluates trials of a `GenerationScheduler`; `stop` ends one with `StopRequested`."""

    def __init__(
        self, training: Training, sampler: GenerationSampler, stop: threading.Event | None = None
    ) -> None:
        self.training, self.sampler, self.stop = training, sampler, stop

    def __call__(self, trial: Trial) -> float:
        """The candidate's fitness, the mean over the recipe's repeats; TrialPruned if it fails."""
        recipe = self.training.recipe
        parameters = self.sampler.suggest(trial)
        try:
            loss = candidate_loss(recipe, parameters, self.training.n_classes)
        except ValueError as error:
            raise optuna.TrialPruned(str(error)) from error
        return statistics.fmean(
            self._train(trial, loss, repeat) for repeat in range(recipe.search.repeats)
        )

    def _train(self, trial: Trial, loss: torch.nn.Module, repeat: int) -> float:
        recipe, search = self.training.recipe, self.training.recipe.search
        place = (trial.user_attrs[key] for key in (GENERATION, INDEX, ATTEMPT))

        def on_validation(step: int, value: float) -> None:
            if not math.isfinite(value):
                raise Diverged(f"{recipe.fitness.metric} is {value} at step {step}")
            # Reports of further repeats would collide with the first one's steps.
            if repeat == 0:
                trial.report(value, step)
                if trial.should_prune():
                    pruner = trial.study.pruner
                    if isinstance(pruner, EarlyEndPruner) and pruner.reason == "stop":
                        trial.set_user_attr(STOPPED, True)
                    raise optuna.TrialPruned(f"{value:.4f} at step {step}")
                release_connections(trial.storage)

        try:
            return self.training.run(
                loss,
                seed=training_seed(search.seed, *place, repeat=repeat, policy=search.seed_policy),
                steps=self.training.in_steps(recipe.budget.evaluation, recipe.budget.unit),
                check_at=check_steps(self.training),
                on_validation=on_validation,
                stop=self.stop,
                name=f"trial_{trial.number}",
            )
        except Diverged as error:
            trial.set_user_attr(DIVERGED, str(error))
            raise optuna.TrialPruned(str(error)) from error


def check_steps(training: Training) -> list[int]:
    """Optimizer steps at which a candidate is checked before the end of its evaluation."""
    rules = (training.recipe.early_abort, training.recipe.early_stop)
    return [training.in_steps(rule.at, rule.unit) for rule in rules if rule is not None]
