"""How far a run is: search or selection."""

from __future__ import annotations

from functools import cached_property

from optuna_taylorglo.cli.options import OpenedStudy
from optuna_taylorglo.cli.progress import LiveProgress
from optuna_taylorglo.search.candidates import new_log
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.study.open import create_evaluation_study
from optuna_taylorglo.verdict.runner import TaskQueue
from optuna_taylorglo.verdict.selection import Round, WinnerSelection
from optuna_taylorglo.verdict.winner import is_undecided


class Stages:
    """Tells from a study what its workers are busy with.

    Args:
        opened: The study.
    """

    def __init__(self, opened: OpenedStudy) -> None:
        self._study = opened.study
        self._recipe = opened.recipe
        self._choosing: WinnerSelection | None = None
        # Kept, so that each look costs what is new only.
        self._log = new_log(opened.recipe)
        self._url = opened.url

    @cached_property
    def _queue(self) -> TaskQueue:
        return TaskQueue(create_evaluation_study(self._study, self._url))

    def show(self, live: LiveProgress) -> None:
        """Bring the progress up to date."""
        before = self._recipe
        # Somebody may make the search longer while it runs.
        self._recipe = attach_recipe(self._study, None)
        if self._recipe != before:
            self._choosing = None
            self._log = new_log(self._recipe)
        live.show(SearchHistory(self._study, self._recipe, self._log))
        if is_undecided(self._study, self._recipe):
            self._show_selection(live)

    def _show_selection(self, live: LiveProgress) -> None:
        # With the weights that a worker has settled since.
        recipe = attach_recipe(self._study, None)
        self._choosing = self._choosing or WinnerSelection(self._study, recipe)
        step = self._choosing.next_step(self._queue.results)
        if isinstance(step, Round):
            done = self._queue.count_done(step.tasks)
            live.show_round(f"selection of the winner, round {step.number}", done, len(step.tasks))
