"""What the command line says about a search: the live line, and the line at the end."""

from __future__ import annotations

import io

import optuna
import pytest
from drawn_studies import GENERATIONS, POPULATION, searched_study
from rich.console import Console
from rich.table import Table

from optuna_taylorglo.attributes import CROSS_ENTROPY
from optuna_taylorglo.evolution.history import SearchHistory, read_history
from optuna_taylorglo.progress import LiveProgress, PlainConsole
from optuna_taylorglo.report.dashboard import fitness_line
from optuna_taylorglo.verdict.selection import Finalist, Selection


@pytest.fixture(scope="module")
def history():
    return read_history(searched_study())


def test_without_a_terminal_there_is_a_line_per_generation_and_stage(monkeypatch, capsys):
    # Jupyter asks what a cell starts for colors, but shows each move of a bar as a new line.
    monkeypatch.setenv("FORCE_COLOR", "1")
    begun = read_history(searched_study(2))
    with LiveProgress(PlainConsole()) as live:
        fresh = optuna.create_study(direction="maximize")
        live.show(SearchHistory(fresh, begun.recipe))
        live.show(begun)
        assert capsys.readouterr().out == ""
        history = read_history(searched_study(POPULATION * 2))
        live.show(history)
        live.show(history)
        for done in range(3):
            live.show_round("selection of the winner", done, 22)
    best, mean = history.best.value, history.generations[-1].mean
    assert capsys.readouterr().out.splitlines() == [
        f"generation 2/{GENERATIONS} complete: best {best:.4f}, mean {mean:.4f}, "
        "cross-entropy 0.5000",
        "selection of the winner: 22 trainings",
    ]


def test_on_a_terminal_the_line_is_live_and_stays_readable_if_it_is_narrow(history):
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=60, color_system=None)
    live = LiveProgress(console)
    live.show(read_history(searched_study(POPULATION * 3 + 1)))
    console.print(live.get_renderable())
    (line,) = output.getvalue().splitlines()
    assert line.startswith(f"generation 4/{GENERATIONS}")
    for part in (f"{POPULATION * 3 + 1}/{POPULATION * GENERATIONS}", "-:--:--", "━"):
        assert part in line
    assert len(line) <= 60
    live.show(history)
    assert live.finished


def test_the_console_takes_nothing_for_an_instruction(capsys):
    name = "x[/red]y :smile: [bold]\x1b[31m"
    table = Table(name, title=name, caption=name)
    table.add_row(name)
    PlainConsole().print(name, table)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.replace("\n", " ").count("x[/red]y :smile: [bold]\\x1b[31m") >= 1
    assert out.count("x[/red]y") == 5


def test_the_line_at_the_end_says_how_its_numbers_came_about(history):
    complete = len(history.ranked)
    assert 0 < complete < POPULATION * GENERATIONS
    assert fitness_line(history).splitlines() == [
        f"val_accuracy: {history.best.value:.4f}, one training of the best of {complete} "
        "candidates (expect worse on other seeds)",
        "cross-entropy at the same budget: 0.5000, mean of 2 seeds (0.4000 to 0.6000)",
    ]
    winner = Finalist(None, (0.0,), None, (0.5, 0.75), 0.625)
    first, second = fitness_line(history, Selection((winner,))).splitlines()
    assert first.startswith("val_accuracy: 0.6250, mean of 2 full trainings of the mean of")
    assert second.startswith("cross-entropy at the evaluations' budget: 0.5000")
    study = searched_study(0)
    assert fitness_line(read_history(study)).startswith("cross-entropy at the same budget")
    study.set_user_attr(CROSS_ENTROPY, {})
    assert fitness_line(read_history(study)) == "No candidate is complete yet."


@pytest.mark.parametrize(
    ("mean", "length", "told"), [(0.45, 50, True), (0.55, 50, False), (0.45, 9, False)]
)
def test_a_winner_behind_cross_entropy_is_called_so(mean, length, told):
    # Only where cross-entropy was trained as long: at another length nothing is known.
    budget = {"unit": "steps", "evaluation": length, "full": 50}
    history = read_history(searched_study(budget=budget))
    winner = Finalist(None, (0.0,), None, (mean, mean), mean)
    assert ("found no loss to use instead" in fitness_line(history, Selection((winner,)))) is told
