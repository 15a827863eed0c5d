"""Trainings on the digits that take a tenth of a second, for tests of what is built on them."""

from typing import Any

from searches import small_recipe
from torch import nn

from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

HELPERS = ("mistakes", "own_nets", "own_optimizers", "two_lightnings", "tabular")


def cpu(data_dir, *allowed):
    """A machine on which results do not depend on what the CPU can do."""
    return RuntimeConfig(data_dir, "cpu", "32-true", allowed)


class RecordedTraining(Training):
    """Trains, and remembers the criterion and the options of each training."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.criteria: list[nn.Module] = []
        self.options: list[dict[str, Any]] = []

    @property
    def seeds(self):
        return [options["seed"] for options in self.options]

    def run(self, criterion, **options):
        self.criteria.append(criterion)
        self.options.append(options)
        return super().run(criterion, **options)


def digits_training(folder, model=None, init_args=None, **changes):
    """The small digits recipe, with another model and some sections changed, ready to train."""
    if isinstance(model, str):
        model = {"class_path": model, "init_args": init_args or {}}
    recipe = small_recipe(folder / "recipe.yaml", model=model or {}, **changes)
    return RecordedTraining(load_recipe(recipe), cpu(folder, *HELPERS, "pytorch_lightning"))


class Validations(list[tuple[int, float]]):
    """Takes validations in."""

    def __call__(self, step, value):
        self.append((step, value))

    @property
    def steps(self):
        return [step for step, _ in self]

    @property
    def values(self):
        return [value for _, value in self]


def trained(training, steps, seed=1, **options):
    """The module after a training with cross-entropy."""
    modules = []
    training.run(
        nn.CrossEntropyLoss(), seed=seed, steps=steps, on_trained=modules.append, **options
    )
    return modules[0]
