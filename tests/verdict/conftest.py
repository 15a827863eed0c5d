"""A small recipe, and a study of four candidates of it."""

import optuna
import pytest
from optuna.trial import create_trial
from searches import small_recipe

from optuna_taylorglo.attributes import N_CLASSES
from optuna_taylorglo.recipes.load import load_recipe, replace_recipe

THETA = (0.1, 0.2, 0.3, -2.0, 0.5, 2.0, 0.7, 0.0)


@pytest.fixture(scope="session")
def recipe(tmp_path_factory):
    return load_recipe(small_recipe(tmp_path_factory.mktemp("recipe") / "recipe.yaml"))


@pytest.fixture
def study(recipe):
    study = optuna.create_study(direction="maximize")
    replace_recipe(study, recipe)
    study.set_user_attr(N_CLASSES, 10)
    for number, value in enumerate((0.9, 0.99, 0.98, 0.5)):
        theta = dict(zip((f"theta_{i}" for i in range(8)), THETA, strict=True))
        theta["theta_2"] = float(number)
        space = {name: optuna.distributions.FloatDistribution(-1e3, 1e3) for name in theta}
        study.add_trial(create_trial(value=value, params=theta, distributions=space))
    return study
