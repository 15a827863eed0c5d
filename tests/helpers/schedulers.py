"""Schedulers on small searches, for tests of queues and searches."""

import optuna
from optuna.trial import TrialState

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX
from optuna_taylorglo.evolution.sampler import THETA_NAMES, TaylorGLOSampler
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.study.heartbeat import StaleTrials
from optuna_taylorglo.study.optuna_private import storage_of

COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL


def sampler(popsize=2, attempts=3, max_failures=3, overlap=0):
    return TaylorGLOSampler(
        names=THETA_NAMES,
        popsize=popsize,
        attempts=attempts,
        max_failures=max_failures,
        overlap=overlap,
    )


def new_scheduler(storage=None, n_generations=None, **rules):
    study = optuna.create_study(
        study_name="a",
        storage=storage,
        sampler=sampler(**rules),
        direction="maximize",
        load_if_exists=True,
    )
    return GenerationScheduler(study, n_generations=n_generations)


def take(scheduler):
    trial = scheduler.claim()
    assert trial is not None
    return trial


def place(trial):
    attrs = trial.user_attrs
    return attrs[GENERATION], attrs[INDEX], attrs[ATTEMPT]


def finished(scheduler, evaluate):
    """A scheduler whose search one worker has made."""
    while (trial := scheduler.claim()) is not None:
        evaluate(scheduler, trial)
    return scheduler


def searched_by_many(new_worker, evaluate, n_workers, dice):
    """The study of workers that finish in random order, die, and are replaced by new ones."""
    workers, busy = [new_worker() for _ in range(n_workers)], []
    while True:
        for worker in [w for w in workers if all(w is not one for one, _ in busy)]:
            read_anew(worker)
            if (trial := worker.claim()) is not None:
                busy.append((worker, trial))
        if not busy:
            return workers[0].study
        worker, trial = busy.pop(dice.randrange(len(busy)))
        fate = dice.random()
        if fate < 0.1:
            worker.finish(trial, state=FAIL)
        elif fate < 0.2:
            worker.release(trial)
        elif fate < 0.3:
            workers[workers.index(worker)] = new_worker()
            worker.finish(trial, state=FAIL)
        else:
            evaluate(worker, trial)


def fail_running(queue):
    """Do what another worker does when heartbeats fail to come."""
    stale = StaleTrials(storage_of(queue.study), grace_period=0.0)
    for _ in range(2):  # seen and suspect, stale
        stale.fail(queue.study.get_trials(deepcopy=False))


class _All(set[int]):
    def __contains__(self, trial_id):
        return True


def read_anew(queue):
    """Let a queue read all trials at its next claim, and add what is due without waiting."""
    queue._claimable.clear()
    queue._own = _All()
