"""A trial to a fitness: builds the candidate's loss, trains with it, reports on the way."""

from __future__ import annotations

import math
import statistics
import threading

import optuna
from optuna.trial import Trial

from optuna_taylorglo.attributes import ATTEMPT, DIVERGED, GENERATION, INDEX, STOPPED
from optuna_taylorglo.errors import Diverged
from optuna_taylorglo.evolution.candidates import candidate_loss
from optuna_taylorglo.evolution.pruners import EarlyEndPruner
from optuna_taylorglo.evolution.scheduler import GenerationSampler
from optuna_taylorglo.losses.tree_loss import EvolvedLoss
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.study.storages import release_connections
from optuna_taylorglo.training.candidate import Candidate, Trainer


class Objective:
    """Evaluates trials of a `GenerationScheduler`; `stop` ends one with `StopRequested`."""

    def __init__(
        self, trainer: Trainer, sampler: GenerationSampler, stop: threading.Event | None = None
    ) -> None:
        self.trainer, self.sampler, self.stop = trainer, sampler, stop

    def __call__(self, trial: Trial) -> float:
        """The candidate's fitness, the mean over the recipe's repeats; TrialPruned if it fails."""
        recipe = self.trainer.recipe
        parameters = self.sampler.suggest(trial)
        try:
            loss = candidate_loss(recipe, parameters, self.trainer.n_classes)
        except ValueError as error:
            raise optuna.TrialPruned(str(error)) from error
        return statistics.fmean(
            self._train(trial, loss, repeat) for repeat in range(recipe.search.repeats)
        )

    def _train(self, trial: Trial, loss: EvolvedLoss, repeat: int) -> float:
        recipe, search = self.trainer.recipe, self.trainer.recipe.search
        place = (trial.user_attrs[key] for key in (GENERATION, INDEX, ATTEMPT))
        reported: set[int] = set()

        def on_report(step: int, value: float) -> None:
            if not math.isfinite(value):
                raise Diverged(f"{recipe.fitness.metric} is {value} at step {step}")
            # Reports of further repeats would collide with the first one's steps.
            if repeat == 0:
                reported.add(step)
                trial.report(value, step)
                if trial.should_prune():
                    pruner = trial.study.pruner
                    if isinstance(pruner, EarlyEndPruner) and pruner.reason == "stop":
                        trial.set_user_attr(STOPPED, True)
                    raise optuna.TrialPruned(f"{value:.4f} at step {step}")
                release_connections(trial.storage)

        candidate = Candidate(
            loss,
            training_seed(search.seed, *place, repeat=repeat, policy=search.seed_policy),
            lr_factor=1.0 if loss.lr_factor is None else loss.lr_factor,
            on_report=on_report,
            stop=self.stop,
            name=f"trial_{trial.number}",
        )
        try:
            value = self.trainer.evaluate(candidate)
        except Diverged as error:
            trial.set_user_attr(DIVERGED, str(error))
            raise optuna.TrialPruned(str(error)) from error
        if repeat == 0:
            # Only now: a training that ends early is ranked by its checks.
            for step, reached in candidate.curve:
                if step not in reported:
                    trial.report(reached, step)
        return value
