"""CMA-ES that gives the same trials for any number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import optuna

# Private, but all samplers of Optuna that search a continuous space use it.
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_taylorglo import TaylorGLOSampler
from optuna_taylorglo.attributes import GENERATION
from optuna_taylorglo.evolution.sampler import CMAReplay
from optuna_taylorglo.evolution.scheduler import GenerationScheduler, check_integer, params_of
from optuna_taylorglo.study.heartbeat import heartbeats
from optuna_taylorglo.study.open import open_storage
from optuna_taylorglo.study.optuna_private import CachedStorage, storage_of
from optuna_taylorglo.study.queue import record_failure
from optuna_taylorglo.study.storages import file_of

Distribution = FloatDistribution | IntDistribution

SETTINGS = "taylorglo_cmaes:settings"  # user attribute of a study
_logger = optuna.logging.get_logger("optuna.taylorglo_cmaes")


class TaylorGLOCmaEsSampler(TaylorGLOSampler):
    """CMA-ES whose trials depend on the seed only, for any number of processes, kills and restarts.

    Each process calls :meth:`optimize` in place of ``study.optimize``. A plain ``study.optimize``
    in one process gives the same trials.

    Args:
        search_space: Every parameter that the objective suggests, by name. Logarithmic ones are
            searched in the logarithm; integers and steps are rounded.
        popsize: Candidates per generation (λ); the default is ``4 + floor(3 ln n)``.
        sigma0: Initial standard deviation as a share of each range; the default is a sixth.
        seed: Seed of the search.
        x0: Of some parameters, where the search starts in place of the middle of the range.
        max_failures: How often a trial that raised an exception of ``catch`` is repeated; more
            than 0 needs :meth:`optimize`.
    """

    def __init__(
        self,
        search_space: Mapping[str, Distribution],
        *,
        popsize: int | None = None,
        sigma0: float | None = None,
        seed: int = 0,
        x0: Mapping[str, float] | None = None,
        max_failures: int = 0,
    ) -> None:
        x0 = dict(x0 or {})
        _check_arguments(search_space, sigma0, x0)
        self.search_space: dict[str, BaseDistribution] = dict(search_space)
        # To the unit cube and back.
        self._transform = _SearchSpaceTransform(self.search_space, transform_0_1=True)
        n = len(search_space)
        start = self._transform.transform(self._transform.untransform(np.full(n, 0.5)) | x0)
        super().__init__(
            names=tuple(search_space),
            popsize=4 + math.floor(3 * math.log(n)) if popsize is None else popsize,
            sigma=1 / 6 if sigma0 is None else sigma0,
            seed=seed,
            max_failures=max_failures,
            limits=dict.fromkeys(search_space, (0.0, 1.0)),
            x0=dict(zip(search_space, start.tolist(), strict=True)),
        )

    def optimize(
        self,
        study: Study,
        objective: Callable[[Trial], float],
        n_trials: int,
        *,
        catch: type[Exception] | tuple[type[Exception], ...] = (),
        grace_period: float = 240.0,
    ) -> None:
        """Evaluate trials, together with all other processes that call this, until all are done.

        If the objective raises an exception, so does this method, and another process, or the next
        call, evaluates the same candidate again.

        Args:
            study: Study of one objective without trials of another sampler.
            objective: Called with a trial; returns its value or raises ``TrialPruned``.
            n_trials: Candidates to evaluate in total, by all processes and earlier calls; rounded
                up to whole generations.
            catch: Exceptions after which this process goes on, as in ``study.optimize``. After
                ``max_failures`` repetitions the candidate counts as worse than all others.
            grace_period: Seconds without a heartbeat after which a process on another machine
                counts as dead. One on the same machine is noticed at once.
        """
        check_integer("n_trials", n_trials, 1)
        name, storage, pruner = study.study_name, _with_atomic_claims(study), study.pruner
        study = optuna.load_study(study_name=name, storage=storage, sampler=self, pruner=pruner)
        self._check_study(study)
        n_generations = math.ceil(n_trials / self.policy.popsize)
        beat = {"heartbeat_interval": grace_period / 4, "grace_period": grace_period}
        queue = GenerationScheduler(study, n_generations=n_generations, **beat)
        while (trial := queue.wait_for_trial()) is not None:
            with heartbeats(trial, queue.heartbeat_interval):
                _evaluate(queue, trial, objective, catch)

    def _check_study(self, study: Study) -> None:
        """Refuse a study whose trials are of another sampler, or of other arguments."""
        ended = [t for t in study.get_trials(deepcopy=False) if t.state.is_finished()]
        if n := sum(GENERATION not in trial.user_attrs for trial in ended):
            raise ValueError(f"Study {study.study_name!r} has {n} trials of another sampler.")
        settings = f"{self.search_space} {self.settings}"
        if SETTINGS not in study.user_attrs:
            study.set_user_attr(SETTINGS, settings)
        if (stored := study.user_attrs[SETTINGS]) != settings:
            begun = f"Study {study.study_name!r} was begun with other arguments of the sampler"
            raise ValueError(f"{begun}: use the same, or a new study.\n{stored}\n{settings}")

    def _new_replay(self, *, maximize: bool) -> CMAReplay:
        return CMAReplay(self.settings, self._stored, maximize=maximize)

    def _stored(self, trial: FrozenTrial) -> Sequence[float] | None:
        """A trial's point in the unit cube; an enqueued one out of range counts as on its limit."""
        params = params_of(trial)
        if not all(isinstance(params.get(name), Real) for name in self.names):
            return None
        space = self.search_space.items()
        inside = {name: max(d.low, min(d.high, params[name])) for name, d in space}
        return self._transform.transform(inside).tolist()

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        return dict(self.search_space)

    def as_trial(self, candidate: Sequence[float]) -> tuple[dict[str, Any], Any, dict[str, Any]]:
        return self._transform.untransform(np.array(candidate)), self.distributions, {}

    def validate(self, enqueued: FrozenTrial) -> str | None:
        params, space = params_of(enqueued), self.search_space.items()
        bad = ((n, d) for n, d in space if n in params and not _is_in(params[n], d))
        return next((f"{name} {params[name]!r}, not in {d}" for name, d in bad), None)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        # A random value would depend on the process that draws it.
        expected = self.search_space.get(name, f"only {', '.join(self.names)}")
        raise ValueError(
            f"The objective suggests {name} from {distribution}; search_space has {expected}."
        )


def _is_in(value: object, distribution: Distribution) -> bool:
    return isinstance(value, Real) and distribution.low <= value <= distribution.high


def _check_arguments(space: Any, sigma0: Any, x0: dict[str, Any]) -> None:
    if not isinstance(space, Mapping) or not space:
        raise ValueError(f"search_space must map names to distributions, got {space!r}.")
    for name, each in space.items():
        if not isinstance(each, Distribution) or each.single():
            kinds = "a FloatDistribution or an IntDistribution with low < high"
            raise ValueError(f"search_space must give {name!r} {kinds}, got {each}.")
    if sigma0 is not None and not (isinstance(sigma0, Real) and 0 < sigma0 <= 1):
        raise ValueError(f"sigma0 must be a share of the ranges, in (0, 1], got {sigma0!r}.")
    for name, value in x0.items():
        if name not in space:
            raise ValueError(f"x0 has {name!r}; the parameters are {', '.join(space)}.")
        if not _is_in(value, space[name]):
            raise ValueError(f"x0 has {name} {value!r}, which is not in {space[name]}.")


def _with_atomic_claims(study: Study) -> Any:
    """The study's storage; a SQLite file is opened anew, lest two processes claim one trial."""
    storage = storage_of(study)
    database = storage._backend if isinstance(storage, CachedStorage) else None
    is_sqlite = isinstance(database, RDBStorage) and database.engine.dialect.name == "sqlite"
    is_file = is_sqlite and file_of(database.url) is not None
    return open_storage(database.url) if is_file else storage


def _evaluate(
    queue: GenerationScheduler, trial: Trial, objective: Callable[[Trial], float], catch: Any
) -> None:
    """Evaluate one trial and store its outcome."""
    try:
        value = float(objective(trial))
    except optuna.TrialPruned:
        queue.finish(trial, state=TrialState.PRUNED)
        _logger.info(f"Trial {trial.number} pruned.")
    except UpdateFinishedTrialError:
        _logger.warning(f"Trial {trial.number} counted as stale; it is repeated.")
    except catch as error:
        record_failure(trial, error)
        queue.finish(trial, state=TrialState.FAIL)
        _logger.warning(f"Trial {trial.number} failed: {error!r}")
    except BaseException:
        queue.release(trial)
        raise
    else:
        if queue.finish(trial, value):
            _logger.info(f"Trial {trial.number} finished with value: {value}.")
