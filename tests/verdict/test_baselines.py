"""Baselines: what is tried, on what, and which of it is taken."""

import math
from collections import Counter

import optuna
import pytest
import torch
from searches import small_recipe
from torch import nn
from trainings import RecordedTraining, cpu, digits_training
from verdicts import Recorder

from optuna_taylorglo.attributes import CROSS_ENTROPY, OPTIMIZER
from optuna_taylorglo.errors import Diverged, StopRequested
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.settings import DEFAULT_OPTIMIZER
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.training.training import Training
from optuna_taylorglo.verdict import baselines

MODULES_OWN = baselines.LearningRates(base=None)


@pytest.mark.parametrize("name", baselines.FAMILIES)
def test_a_standard_loss_is_tuned_jointly_with_its_learning_rate(name, recipe):
    family = baselines.FAMILIES[name]
    best_value, best_rate = family.grid[2], 0.3 * recipe.optimizer.lr
    logits, target = torch.randn(4, 10), torch.arange(4)

    def fitness(task):
        assert torch.isfinite(task.loss.criterion()(logits, target))
        assert task.loss.learning_rate is not None
        value = task.loss.settings[family.parameter]
        if value == family.grid[0]:
            return None  # diverged
        # Negative: what diverges is worse than any value.
        return -abs(math.log(task.loss.learning_rate / best_rate)) - abs(value - best_value)

    run = Recorder(fitness)
    found = baselines.baseline(name, recipe, run, baselines.LearningRates.of(recipe))
    assert found.settings == {family.parameter: best_value}
    assert found.learning_rate == pytest.approx(best_rate)
    n_tried = len(family.grid) * len(baselines.GRID_FACTORS)
    assert len(run.tasks) == n_tried
    assert f"learning rate {best_rate:.3g} (best of {n_tried})" in found.label
    assert all(family.low <= value <= family.high for value in family.grid)
    # At the length of evaluations, from the same weights, and never by the test set.
    assert {task.length for task in run.tasks} == {recipe.budget.evaluation}
    assert len({task.seed for task in run.tasks}) == 1
    assert not any(task.on_test_set for task in run.tasks)


def test_the_best_standard_loss_has_the_budget_and_the_selection_of_the_search(recipe):
    """On a problem that PolyLoss with ε = 17 at a small learning rate solves."""
    search = recipe.search.changed(popsize=8, n_generations=3, repeats=2)  # 48 trainings
    recipe = recipe.changed(search=search, budget=recipe.budget.changed(evaluation=5, full=6))
    rates, known = baselines.LearningRates.of(recipe), {}

    def value(task):
        rate = (task.loss.learning_rate or recipe.optimizer.lr) / recipe.optimizer.lr
        if rate > 5:
            return None
        off = 0.05 * math.log10(rate / 0.04) ** 2
        if task.loss.kind == "poly":
            return 0.95 - ((task.loss.settings["epsilon"] - 17) / 100) ** 2 - off
        return 0.9 - off

    def interrupted(tasks):
        for task in tasks:
            if task.key not in known:
                known[task.key] = value(task)
                if len(known) == 27:  # in the middle of a batch
                    raise StopRequested
        return [known[task.key] for task in tasks]

    run = Recorder(value)
    found = baselines.baseline("best-standard", recipe, run, rates)
    with pytest.raises(StopRequested):
        baselines.baseline("best-standard", recipe, interrupted, rates)
    assert baselines.baseline("best-standard", recipe, interrupted, rates) == found
    assert list(known) == [task.key for task in run.tasks], "it goes on where it was"
    short = [task for task in run.tasks if task.length == recipe.budget.evaluation]
    full = [task for task in run.tasks if task.length == recipe.budget.full]
    assert len(short) == len({task.seed for task in short}) == 48
    assert not {task.seed for task in short} & {task.seed for task in full}
    assert not any(task.on_test_set for task in run.tasks)
    # Ten losses with two seeds, five with two more, three with four more.
    trainings = Counter(task.loss.label for task in full)
    assert sorted(trainings.values()) == [2] * 5 + [4] * 2 + [8] * 3
    assert len(trainings) == baselines.FINALISTS
    assert len({task.seed for task in full}) == 8
    assert (found.name, found.kind) == ("best-standard", "poly")
    assert found.settings["epsilon"] == pytest.approx(17, abs=8)
    assert found.label.startswith("best standard loss, same budget: PolyLoss-1 (epsilon ")
    # It begins with cross-entropy as it is, and tries every family.
    assert short[0].loss.settings == {"label_smoothing": 0.0}
    assert short[0].loss.learning_rate == recipe.optimizer.lr
    kinds = {*baselines.FAMILIES, "cross-entropy"} - {"label-smoothing"}
    assert {task.loss.kind for task in short} == kinds


def test_rates_are_factors_on_the_modules_own(recipe):
    run = Recorder(lambda task: -abs((task.loss.learning_rate_factor or 1) - 3))
    best = baselines.baseline("ce-tuned", recipe, run, MODULES_OWN)
    assert best.label == "cross-entropy, learning rate × 3 (tuned)"
    assert (best.learning_rate, best.learning_rate_factor) == (None, 3.0)
    tried = {task.loss.learning_rate_factor for task in run.tasks}
    assert tried == {None, *baselines.LEARNING_RATE_FACTORS} - {1.0}
    smoothed = baselines.baseline("label-smoothing", recipe, run, MODULES_OWN)
    assert "at learning rate × 3 (best of 20)" in smoothed.label
    run = Recorder(lambda task: 0.5)
    baselines.baseline("best-standard", recipe, run, MODULES_OWN)
    factors = {task.loss.learning_rate_factor for task in run.tasks} - {None}
    assert len(factors) > 5
    assert 0.01 <= min(factors) < max(factors) <= 10
    assert {task.loss.learning_rate for task in run.tasks} == {None}


def test_a_module_is_asked_whether_it_has_rates_of_its_own(tmp_path, recipe):
    study, runtime = optuna.create_study(), cpu(tmp_path, "own_optimizers", "own_nets")
    for name, obstacle in (("Scheduled", None), ("WithoutRate", "RatelessOptimizer has no")):
        model = {"class_path": f"own_optimizers.{name}"}
        own = load_recipe(small_recipe(tmp_path / "own.yaml", model=model, optimizer={"lr": 0.1}))
        rates = baselines.LearningRates.find(study, own, runtime)
        assert rates.base is None
        assert (obstacle or "") in (rates.obstacle or "")
        assert (rates.obstacle is None) == (obstacle is None)
    bundled = baselines.LearningRates.find(study, recipe, runtime)
    assert bundled == baselines.LearningRates(recipe.optimizer.lr)
    own = recipe.changed(model=recipe.model.changed(class_path="own_nets.DigitsCNN"))
    assert baselines.has_own_optimizer(study, own) is None
    assert baselines.LearningRates.find(study, own, runtime) == bundled
    unnamed = own.changed(optimizer=None)
    found = baselines.LearningRates.find(study, unnamed, runtime)
    assert found == baselines.LearningRates(DEFAULT_OPTIMIZER.lr)
    baselines.save_optimizer_owner(study, Training(unnamed, runtime))
    assert study.user_attrs[OPTIMIZER] == DEFAULT_OPTIMIZER.to_dict()
    assert baselines.has_own_optimizer(study, own) is False


@pytest.mark.parametrize("policy", ["independent", "common"])
def test_cross_entropy_is_trained_as_the_first_candidates_are(tmp_path, policy):
    budget = {"unit": "epochs", "evaluation": 1, "full": 3}
    search = {"seed": 5, "seed_policy": policy}
    training = digits_training(tmp_path, search=search, budget=budget, fitness={"take": "best"})
    study = optuna.create_study(direction="maximize")
    values = baselines.evaluate_cross_entropy(study, training, 2)
    places = [(0, n) if policy == "independent" else (n, 0) for n in range(2)]
    seeds = [training_seed(5, *place, 0, policy=policy) for place in places]
    assert training.seeds == seeds != seeds[::-1]
    stored = {str(seed): value for seed, value in zip(seeds, values, strict=True)}
    assert study.user_attrs[CROSS_ENTROPY] == stored
    assert all(type(criterion) is nn.CrossEntropyLoss for criterion in training.criteria)
    # With `take: best` each validation is a chance, so both must have the same ones.
    for options in training.options:
        assert (options["steps"], options["check_at"]) == (training.steps_per_pass, [4, 5])
    again = training.run(nn.CrossEntropyLoss(), seed=seeds[0], steps=16, check_at=[4, 5])
    assert values[0] == again


class Ends(RecordedTraining):
    """Ends its second training early."""

    def run(self, criterion, **options):
        if len(self.options) == 1:
            self.options.append(options)
            raise self.end
        return super().run(criterion, **options)


def test_cross_entropy_is_not_trained_twice_and_results_are_stored_after_each(tmp_path, caplog):
    training = digits_training(tmp_path)
    study = optuna.create_study(direction="maximize")
    interrupted = Ends(training.recipe, training.runtime)
    interrupted.end = StopRequested()
    with pytest.raises(StopRequested):
        baselines.evaluate_cross_entropy(study, interrupted, 3)
    assert list(study.user_attrs[CROSS_ENTROPY]) == [str(interrupted.seeds[0])]
    values = baselines.evaluate_cross_entropy(study, training, 3)
    assert interrupted.seeds[0] not in training.seeds
    assert baselines.evaluate_cross_entropy(study, training, 2) == values[:2]
    assert len(training.seeds) == 2
    diverging = Ends(training.recipe, training.runtime)
    diverging.end = Diverged("the loss is nan at step 3")
    other = optuna.create_study(direction="maximize")
    assert baselines.evaluate_cross_entropy(other, diverging, 3) == [values[0], None, values[2]]
    assert list(other.user_attrs[CROSS_ENTROPY].values()) == [values[0], values[2]]
    assert "cross-entropy diverged with seed" in caplog.text
