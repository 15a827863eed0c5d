"""Does the trainings that a verdict consists of."""

from __future__ import annotations

import json
import threading

from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import loss_conventions
from optuna_taylorglo.training.curve import OnCurve
from optuna_taylorglo.training.machine import Machine
from optuna_taylorglo.training.run import OnTrained, Training
from optuna_taylorglo.verdict.tasks import Task


class TaskRunner:
    """Does tasks as a recipe says.

    Args:
        recipe: The recipe of the study that the tasks belong to.
        machine: Where it runs.
        stop: Ends a task with `StopRequested` when set.
    """

    def __init__(
        self, recipe: Recipe, machine: Machine, stop: threading.Event | None = None
    ) -> None:
        self.recipe = recipe
        self.machine = machine
        self.stop = stop
        self._trainings: dict[str, Training] = {}

    def __call__(
        self,
        task: Task,
        on_trained: OnTrained = lambda module: None,
        on_curve: OnCurve | None = None,
    ) -> float:
        """Train, and return the metric that judges.

        Args:
            task: The task.
            on_trained: Called with the trained module.
            on_curve: Called with the validation metric over the course of a verdict's training.

        Raises:
            Diverged: If the loss stopped being finite.
        """
        training = self._training(task)
        return training.run(
            task.loss.criterion(loss_conventions(training.recipe)),
            seed=task.seed,
            steps=training.in_steps(task.length, task.unit),
            on_test_set=task.on_test_set,
            on_trained=on_trained,
            stop=self.stop,
            # A sweep's trainings have none: nobody looks at so many.
            on_curve=on_curve if task.on_test_set and not task.data_args else None,
        )

    def _training(self, task: Task) -> Training:
        variant = json.dumps(task.data_args, sort_keys=True)
        if variant not in self._trainings:
            recipe = self.recipe
            if task.data_args:
                data = recipe.data.changed(init_args=recipe.data.init_args | task.data_args)
                recipe = recipe.changed(data=data)
            self._trainings[variant] = Training(recipe, self.machine)
        training = self._trainings[variant]
        rate, factor = task.loss.learning_rate, task.loss.learning_rate_factor
        if factor is not None:
            return training.at_learning_rate_factor(factor)
        return training if rate is None else training.at_learning_rate(rate)
