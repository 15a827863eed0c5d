"""Baselines: what is tried, on what, and which of it is taken."""

import inspect
import itertools
import math
import re
import warnings
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
from optuna_taylorglo.verdict.tasks import ComparedLoss

MODULES_OWN = baselines.LearningRates(base=None)


@pytest.mark.parametrize("name", baselines.FAMILIES)
def test_a_standard_loss_is_tuned_jointly_with_its_learning_rate(name, recipe):
    settings = baselines.FAMILIES[name].settings()
    best, best_rate = settings[2], 0.3 * recipe.optimizer.lr
    logits, target = torch.randn(4, 10), torch.arange(4)

    def fitness(task):
        assert torch.isfinite(task.loss.criterion()(logits, target))
        assert task.loss.learning_rate is not None
        # PyTorch's own label smoothing ignores rates below 0.
        smoothing = task.loss.settings.get("label_smoothing", -1.0)
        assert task.loss.kind == ("cross-entropy" if smoothing >= 0 else name)
        if task.loss.settings == settings[0]:
            return None  # diverged
        # Negative: what diverges is worse than any value.
        off = abs(math.log(task.loss.learning_rate / best_rate))
        return -off - settings.index(task.loss.settings) % 2

    run = Recorder(fitness)
    found = baselines.baseline(name, recipe, run, baselines.LearningRates.of(recipe))
    assert found.settings == best
    assert found.learning_rate == pytest.approx(best_rate)
    n_tried = len(settings) * len(baselines.GRID_FACTORS)
    assert len(run.tasks) == n_tried
    assert f"learning rate {best_rate:.3g} (best of {n_tried})" in found.label
    assert all(f"{value:.3g}" in found.label for value in best.values())
    # At the length of evaluations, from the same weights, and never by the test set.
    assert {task.length for task in run.tasks} == {recipe.budget.evaluation}
    assert len({task.seed for task in run.tasks}) == 1
    assert not any(task.on_test_set for task in run.tasks)


@pytest.mark.parametrize("name", baselines.FAMILIES)
def test_a_family_has_all_parameters_of_its_loss_and_settings_within_their_ranges(name):
    family = baselines.FAMILIES[name]
    loss = ComparedLoss(name, name, name, settings=family.settings()[0]).criterion()
    assert set(family.ranges) == set(inspect.signature(type(loss)).parameters) - {"settings"}
    settings = family.settings()
    assert 3 <= len(settings) == len({tuple(each.values()) for each in settings})
    for each in settings:
        assert all(low <= each[key] <= high for key, (low, high, _) in family.ranges.items())
    # At the ends of the ranges too, gradients are finite and the target's output is pushed up.
    for ends in itertools.product(*((low, high) for low, high, _ in family.ranges.values())):
        corner = dict(zip(family.ranges, ends, strict=True))
        logits = torch.zeros(1, 10, requires_grad=True)
        loss = ComparedLoss(name, name, name, settings=corner).criterion()
        (gradient,) = torch.autograd.grad(loss(logits, torch.tensor([3])), logits)
        assert torch.isfinite(gradient).all()
        assert gradient.argmin() == 3 or corner == {"epsilon": -1.0}


def solved_by_poly(task):
    """A problem that PolyLoss with ε = 17 at a small learning rate solves."""
    rate = task.loss.learning_rate / 0.1
    if rate > 5:
        return None
    off = 0.05 * math.log10(rate / 0.04) ** 2
    if task.loss.kind == "poly":
        return 0.95 - ((task.loss.settings["epsilon"] - 17) / 100) ** 2 - off
    return 0.9 - off


RATES = baselines.LearningRates(base=0.1)


def test_the_best_standard_loss_has_the_budget_and_the_selection_of_the_search(recipe):
    known = {}

    def interrupted(tasks):
        for task in tasks:
            if task.key not in known:
                known[task.key] = solved_by_poly(task)
                if len(known) == 107:  # in the middle of a batch
                    raise StopRequested
        return [known[task.key] for task in tasks]

    search = recipe.search.changed(popsize=8, n_generations=10, repeats=2)  # 160 trainings
    recipe = recipe.changed(search=search, budget=recipe.budget.changed(evaluation=5, full=6))
    run = Recorder(solved_by_poly)
    found = baselines.baseline("best-standard", recipe, run, RATES)
    with pytest.raises(StopRequested):
        baselines.baseline("best-standard", recipe, interrupted, RATES)
    assert baselines.baseline("best-standard", recipe, interrupted, RATES) == found
    assert list(known) == [task.key for task in run.tasks], "it goes on where it was"
    short = [task for task in run.tasks if task.length == recipe.budget.evaluation]
    full = [task for task in run.tasks if task.length == recipe.budget.full]
    assert len(short) == len({task.seed for task in short}) == 160
    assert not {task.seed for task in short} & {task.seed for task in full}
    assert not any(task.on_test_set for task in run.tasks)
    # Ten losses with two seeds, five with two more, three with four more.
    trainings = Counter(task.loss.label for task in full)
    assert sorted(trainings.values()) == [2] * 5 + [4] * 2 + [8] * 3
    assert len(trainings) == baselines.FINALISTS
    assert len({task.seed for task in full}) == 8
    assert (found.name, found.kind) == ("best-standard", "poly")
    assert found.settings["epsilon"] == pytest.approx(17, abs=8)
    assert found.label.startswith("the best standard loss, same budget: PolyLoss-1 (epsilon ")


@pytest.mark.parametrize("rates", [RATES, MODULES_OWN, baselines.LearningRates(None, "fixed")])
def test_published_settings_are_tried_first_at_the_recipe_s_own_rate(recipe, rates):
    recipe = recipe.changed(
        search=recipe.search.changed(popsize=8, n_generations=5, repeats=1),
        loss=recipe.loss.changed(label_smoothing=0.3),
        budget=recipe.budget.changed(evaluation=5, full=6),
    )
    run = Recorder(lambda task: 0.5)
    baselines.baseline("best-standard", recipe, run, rates)
    short = [task.loss for task in run.tasks if task.length == 5]
    assert len(short) == 40
    own = {"learning_rate": rates.base, "learning_rate_factor": None}
    names = list(baselines.FAMILIES)
    published = [baselines.FAMILIES[name].settings()[0] for name in names]
    assert [loss.settings for loss in short[: 1 + len(names)]] == [
        {"label_smoothing": 0.3},  # cross-entropy as it is
        *published,
    ]
    kinds = ["cross-entropy", "cross-entropy", *names[1:]]
    assert [loss.kind for loss in short[: 1 + len(names)]] == kinds
    assert published[names.index("nce-agce")] == {"alpha": 1.0, "beta": 4.0, "a": 6.0, "q": 1.5}
    for loss in short[: 1 + len(names)]:
        assert {key: getattr(loss, key) for key in own} == own
    # Then others, within the ranges and with parameters of their own family only.
    for loss in short[1 + len(names) :]:
        family = "label-smoothing" if loss.kind == "cross-entropy" else loss.kind
        ranges = baselines.FAMILIES[family].ranges
        assert loss.settings.keys() == ranges.keys()
        assert all(low <= loss.settings[key] <= high for key, (low, high, _) in ranges.items())
        assert loss.settings not in published
        if rates.obstacle is None:
            factor = loss.learning_rate_factor or loss.learning_rate / (rates.base or math.nan)
            assert 0.01 <= factor <= 10


def test_a_small_budget_ends_among_the_published_settings(recipe):
    search = recipe.search.changed(popsize=5, n_generations=2, repeats=1)
    run = Recorder(lambda task: -task.seed % 7)
    found = baselines.baseline("best-standard", recipe.changed(search=search), run, RATES)
    names = list(baselines.FAMILIES)[1:9]
    kinds = [task.loss.kind for task in run.tasks[:10]]
    assert kinds == ["cross-entropy", "cross-entropy", *names]
    assert found.kind in kinds


def test_no_default_of_optuna_decides_what_is_tried(recipe, monkeypatch):
    """Every argument of the sampler is given, but deprecated ones and constraints."""
    sampler, given = optuna.samplers.TPESampler, {}

    class Recorded(sampler):
        def __init__(self, **arguments):
            given.update(arguments)
            super().__init__(**arguments)

    monkeypatch.setattr(optuna.samplers, "TPESampler", Recorded)
    search = recipe.search.changed(popsize=8, n_generations=1, repeats=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # none of them is deprecated
        baselines.best_standard_loss(
            recipe.changed(search=search), Recorder(lambda task: 0.5), RATES
        )
    arguments = inspect.signature(sampler.__init__).parameters.keys() - {"self"}
    documented = inspect.getdoc(sampler).partition("Args:")[2]
    sections = re.split(r"\n    (\w+):\n", documented)
    deprecated = {
        name
        for name, text in zip(sections[1::2], sections[2::2], strict=True)
        if "Deprecated in" in text
    }
    assert {"gamma", "weights", "constraints_func"} <= deprecated
    assert given.keys() == arguments - deprecated


def test_rates_are_factors_on_the_modules_own(recipe):
    run = Recorder(lambda task: -abs((task.loss.learning_rate_factor or 1) - 3))
    best = baselines.baseline("ce-tuned", recipe, run, MODULES_OWN)
    assert best.label == "cross-entropy, learning rate × 3 (tuned)"
    assert (best.learning_rate, best.learning_rate_factor) == (None, 3.0)
    tried = {task.loss.learning_rate_factor for task in run.tasks}
    assert tried == {None, *baselines.LEARNING_RATE_FACTORS} - {1.0}
    smoothed = baselines.baseline("label-smoothing", recipe, run, MODULES_OWN)
    assert "at learning rate × 3 (best of 30)" in smoothed.label
    run = Recorder(lambda task: 0.5)
    recipe = recipe.changed(search=recipe.search.changed(popsize=8, n_generations=3))
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
