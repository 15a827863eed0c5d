"""What the command line says about a search: the live line, and the line at the end."""

from __future__ import annotations

import io
from types import SimpleNamespace

import optuna
import pytest
from drawn_studies import GENERATIONS, POPULATION, searched_study
from rich.console import Console

from optuna_taylorglo.attributes import CROSS_ENTROPY
from optuna_taylorglo.cli import progress
from optuna_taylorglo.cli.progress import LiveProgress, PlainConsole, fitness_line
from optuna_taylorglo.recipes.load import freeze, frozen_recipe
from optuna_taylorglo.search.history import SearchHistory, read_history
from optuna_taylorglo.verdict.selection import Finalist, Selection


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when it is told to."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    return clock


def not_begun():
    study, other = optuna.create_study(direction="maximize"), searched_study(0)
    recipe = frozen_recipe(other)
    freeze(study, recipe)
    return SearchHistory(study, recipe)


def test_without_a_terminal_there_is_a_line_per_generation(clock):
    output = io.StringIO()
    with LiveProgress(Console(file=output)) as live:
        live.show(not_begun())
        live.show(read_history(searched_study(2)))
        assert output.getvalue() == ""
        clock.now += 120
        history = read_history(searched_study(POPULATION * 2))
        live.show(history)
        live.show(history)
    best, mean = history.best.value, history.generations[-1].mean
    assert output.getvalue().rstrip("\n") == (
        f"generation 2/{GENERATIONS} complete: best {best:.4f}, mean {mean:.4f}, "
        f"cross-entropy 0.5000, {POPULATION} evaluations/min"
    )


def test_a_cell_of_a_notebook_is_no_terminal(clock, monkeypatch, capsys):
    """Jupyter asks what a cell starts for colors, but shows each move of a bar as a new line."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with LiveProgress(PlainConsole()) as live:
        live.show(read_history(searched_study(POPULATION * 2)))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"generation 2/{GENERATIONS} complete: best ")


def test_what_was_evaluated_before_does_not_count_as_speed(clock):
    output = io.StringIO()
    live = LiveProgress(Console(file=output))
    live.show(read_history(searched_study(POPULATION + 3)))
    clock.now += 60
    live.show(read_history(searched_study(POPULATION * 2)))
    before, after = output.getvalue().splitlines()
    assert "evaluations/min" not in before
    assert after.endswith(f"{POPULATION - 3} evaluations/min")


def test_on_a_terminal_the_line_is_live():
    output = io.StringIO()
    with LiveProgress(Console(file=output, force_terminal=True, width=200)) as live:
        live.show(not_begun())
        live._bar.refresh()
        assert f"generation 1/{GENERATIONS}" in output.getvalue()
        assert "starting" in output.getvalue()
        live.show(read_history(searched_study()))
    assert f"generation {GENERATIONS}/{GENERATIONS}" in output.getvalue()
    (task,) = live._bar.tasks
    assert task.finished


@pytest.mark.parametrize("width", [80, 60])
def test_on_a_narrow_terminal_count_bar_and_time_stay_readable(width):
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=width, color_system=None)
    live = LiveProgress(console)
    live.show(read_history(searched_study(POPULATION * 3 + 1)))
    console.print(live._bar.get_renderable())
    (line,) = output.getvalue().rstrip("\n").splitlines()
    assert f"{POPULATION * 3 + 1}/{POPULATION * GENERATIONS}" in line
    assert "-:--:--" in line, "the time left has no place"
    assert line.count("━") >= 5
    assert line.startswith(f"generation 4/{GENERATIONS}")
    assert len(line) <= width
    live.show_round("selection of the winner, round 1", 13, 48)
    output.seek(0)
    output.truncate()
    console.print(live._bar.get_renderable())
    assert "13/48" in output.getvalue()
    assert "-:--:--" in output.getvalue()


def test_the_line_at_the_end_says_how_its_numbers_came_about():
    history = read_history(searched_study())
    first, second = fitness_line(history).splitlines()
    complete = len(history.ranked)
    assert 0 < complete < POPULATION * GENERATIONS
    assert first.startswith(f"val_accuracy: {history.best.value:.4f}, one training of the best of ")
    assert f"the best of {complete} candidates" in first
    expected = "cross-entropy at the same budget: 0.5000, mean of 2 seeds (0.4000 to 0.6000)"
    assert second == expected


def test_rounds_outside_the_search_are_told_once_without_a_terminal():
    output = io.StringIO()
    with LiveProgress(Console(file=output)) as live:
        for done in range(3):
            live.show_round("selection of the winner, round 1", done, 22)
        live.show_round("selection of the winner, round 2", 0, 12)
    first, second = output.getvalue().splitlines()
    assert first == "selection of the winner, round 1: 22 trainings"
    assert second == "selection of the winner, round 2: 12 trainings"


def test_the_line_at_the_end_is_of_the_chosen_loss():
    winner = Finalist(None, (0.0,), None, (0.5, 0.75), 0.625)
    first, second = fitness_line(read_history(searched_study()), Selection((winner,))).splitlines()
    assert first == (
        "val_accuracy: 0.6250, mean of 2 full trainings of the mean of the final distribution, "
        "the best of 1 losses"
    )
    assert second.startswith("cross-entropy at the evaluations' budget: 0.5000")


@pytest.mark.parametrize(
    ("mean", "length", "told"), [(0.45, 50, True), (0.55, 50, False), (0.45, 9, False)]
)
def test_a_winner_behind_cross_entropy_is_called_so(mean, length, told):
    # Only where cross-entropy was trained as long: at another length nothing is known.
    budget = {"unit": "steps", "evaluation": length, "full": 50}
    history = read_history(searched_study(budget=budget))
    winner = Finalist(None, (0.0,), None, (mean, mean), mean)
    assert ("found no loss to use instead" in fitness_line(history, Selection((winner,)))) is told


def test_the_line_at_the_end_leaves_out_what_is_not_there():
    study = searched_study(0)
    assert fitness_line(read_history(study)).startswith("cross-entropy at the same budget")
    study.set_user_attr(CROSS_ENTROPY, {})
    assert fitness_line(read_history(study)) == "No candidate is complete yet."
