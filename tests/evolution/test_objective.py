"""From a trial to a fitness: trained with the candidate's loss, reported, and ended early."""

import math
import statistics
import threading

import optuna
import pytest
from optuna.trial import TrialState
from schedulers import finished, place, take
from searches import small_recipe
from trainings import cpu, digits_training

from optuna_taylorglo.attributes import DIVERGED, GENERATION, STOPPED
from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.evolution.candidates import make_pruner, make_sampler
from optuna_taylorglo.evolution.history import SearchHistory, direction_of
from optuna_taylorglo.evolution.objective import Objective
from optuna_taylorglo.evolution.sampler import THETA_NAMES
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.training.training import Training


class Search:
    """A search in memory, as a worker sets it up."""

    def __init__(self, training):
        self.training = training
        recipe = training.recipe
        self.sampler = make_sampler(recipe, training.n_classes)
        pruner, direction = make_pruner(recipe, training.in_steps), direction_of(recipe)
        self.study = optuna.create_study(direction=direction, sampler=self.sampler, pruner=pruner)
        n_generations = recipe.search.n_generations
        self.scheduler = GenerationScheduler(self.study, n_generations=n_generations)
        self.stop = threading.Event()
        self.objective = Objective(training, self.sampler, self.stop)

    def evaluate(self, scheduler, trial):
        """As a worker does; the first training to its end fails."""
        try:
            value = self.objective(trial)
        except optuna.TrialPruned:
            scheduler.finish(trial, state=TrialState.PRUNED)
        else:
            has_failed = any(t.state == TrialState.FAIL for t in self.study.trials)
            scheduler.finish(trial, value, state=None if has_failed else TrialState.FAIL)

    def take(self):
        return take(self.scheduler)

    def reports(self, trial):
        return self.study.trials[trial.number].intermediate_values

    def seed(self, trial, **options):
        return training_seed(self.training.recipe.search.seed, *place(trial), **options)


def new_search(folder, **changes):
    return Search(digits_training(folder, **({"early_abort": {"threshold": -1.0}} | changes)))


def test_the_candidate_is_trained_and_reported_at_the_checks_and_the_end(tmp_path):
    search = new_search(tmp_path)
    search.take()
    trial = search.take()
    fitness = search.objective(trial)
    reports = search.reports(trial)
    assert list(reports) == [4, 5, 6]
    assert fitness == reports[6]
    (loss,) = search.training.criteria
    assert isinstance(loss, TaylorLoss)
    assert loss.theta == tuple(trial.params[name] for name in THETA_NAMES)
    assert loss.class_reduction == "sum"
    assert search.training.seeds == [search.seed(trial)]


def test_a_candidate_below_the_threshold_is_aborted_and_one_that_falls_behind_is_stopped(tmp_path):
    search = new_search(tmp_path, early_abort={"threshold": 1.1})
    trial = search.take()
    with pytest.raises(optuna.TrialPruned, match="at step 4"):
        search.objective(trial)
    assert list(search.reports(trial)) == [4]
    assert not {STOPPED, DIVERGED} & trial.user_attrs.keys()
    search = new_search(tmp_path)
    for _ in range(search.training.recipe.search.popsize):
        fast = search.take()
        fast.report(2.0, 5)
        search.scheduler.finish(fast, 1.0)
    slow = search.take()
    assert slow.user_attrs[GENERATION] == 1
    with pytest.raises(optuna.TrialPruned, match="at step 5"):
        search.objective(slow)
    assert list(search.reports(slow)) == [4, 5]
    assert slow.user_attrs[STOPPED] is True


def test_a_loss_or_metric_that_is_not_finite_is_marked(tmp_path, monkeypatch):
    search = new_search(tmp_path, optimizer={"lr": 1e30, "momentum": 0.0})
    trial = search.take()
    with pytest.raises(optuna.TrialPruned, match="not finite"):
        search.objective(trial)
    assert "the loss is not finite at step 4" in trial.user_attrs[DIVERGED]
    assert STOPPED not in trial.user_attrs

    def run(criterion, *, on_validation, **options):
        on_validation(4, math.nan)
        pytest.fail("training went on")

    monkeypatch.setattr(search.training, "run", run)
    with pytest.raises(optuna.TrialPruned):
        search.objective(trial)
    assert trial.user_attrs[DIVERGED] == "val_accuracy is nan at step 4"
    # Not every database can hold it.
    assert search.reports(trial) == {}


@pytest.mark.filterwarnings("error:The reported value is ignored")
def test_repeats_are_averaged_and_only_the_first_reports(tmp_path):
    search = new_search(tmp_path, search={"repeats": 2})
    trial = search.take()
    fitness = search.objective(trial)
    seeds = [search.seed(trial, repeat=repeat) for repeat in (0, 1)]
    assert search.training.seeds == seeds
    loss = search.training.criteria[0]
    alone = [search.training.run(loss, seed=seed, steps=6) for seed in seeds]
    assert len(set(alone)) == 2
    assert fitness == statistics.fmean(alone)
    assert search.reports(trial)[6] == alone[0]


def test_a_candidate_without_a_scale_to_normalize_is_aborted_untrained(tmp_path):
    search = new_search(tmp_path, search={"scale": "normalized"})
    search.study.enqueue_trial(dict.fromkeys(THETA_NAMES, 0.0))
    with pytest.raises(optuna.TrialPruned):
        search.objective(search.take())
    assert search.training.options == []


def test_a_request_to_stop_passes_through_and_common_seeds_are_used(tmp_path):
    search = new_search(tmp_path, search={"seed_policy": "common"})
    search.stop.set()
    trial = search.take()
    with pytest.raises(StopRequested):
        search.objective(trial)
    assert search.training.seeds == [search.seed(trial, policy="common")]
    assert DIVERGED not in trial.user_attrs


def test_a_search_that_minimizes_is_the_one_that_maximizes_the_negative(tmp_path):
    outcomes, orders = [], []
    for mode, metric, sign in (("min", "val_nll", 1), ("max", "val_log_likelihood", -1)):
        path = small_recipe(
            tmp_path / f"{mode}.yaml",
            model={"class_path": "own_nets.LogsLikelihood", "init_args": {}},
            fitness={"metric": metric, "mode": mode},
            early_abort={"threshold": 2.32 * sign},
            early_stop={"keep": 0.25},
            search={"n_generations": 3},
        )
        search = Search(Training(load_recipe(path), cpu(tmp_path, "own_nets")))
        study = finished(search.scheduler, search.evaluate).study
        outcomes.append([])
        for t in study.trials:
            values = [
                sign * value for value in (*(t.values or ()), *t.intermediate_values.values())
            ]
            outcomes[-1].append((t.params, t.state, t.user_attrs.get(STOPPED), values))
        history = SearchHistory(study, search.training.recipe)
        assert history.finished
        best = (min if sign == 1 else max)(trial.value for trial in history.ranked)
        assert history.best.value == best
        candidates = [*history.ranked, *history.new_bests]
        orders.append([t.number for t in candidates] + [c.trial for c in history.best_of_each])
    assert outcomes[0] == outcomes[1]
    assert orders[0] == orders[1]
    # All that may become of a candidate was seen.
    states = {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}
    assert {outcome[1] for outcome in outcomes[0]} == states
    assert {outcome[2] for outcome in outcomes[0]} == {None, True}
