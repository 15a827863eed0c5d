"""The notebook: what it shows was run, and what it says holds when it is run again."""

import copy
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from nbformat import NotebookNode

FILE = Path(__file__).parents[2] / "docs" / "examples" / "wrong_labels.ipynb"

CLAIMS = """
assert wrong.round(decimals=2) == 0.36
assert study.best_value < 0.64
assert all(verdict.beats(contrast.against) for contrast in verdict.contrasts)
assert {contrast.against for contrast in verdict.contrasts} >= {"ce", "ce-tuned", "gce"}
assert min(evolved_loss) > max(cross_entropy)
"""


@pytest.fixture(scope="module")
def notebook() -> NotebookNode:
    return nbformat.read(FILE, as_version=nbformat.NO_CONVERT)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_keeps_the_format_and_is_small(notebook: NotebookNode) -> None:
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert FILE.stat().st_size < 400_000


def test_every_code_cell_is_python_and_was_run_in_order(notebook: NotebookNode) -> None:
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    for cell in cells:
        compile(TransformerManager().transform_cell(cell.source), cell.id, "exec")
        assert cell.outputs, cell.id


def test_its_figures_show_without_scripts_and_its_outputs_tell_of_no_machine(
    notebook: NotebookNode,
) -> None:
    for cell in code_cells(notebook):
        for output in cell.outputs:
            assert output.output_type != "error", cell.id
            shown = output.get("data", {"text/plain": output.get("text")})
            assert set(shown) <= {"image/svg+xml", "text/markdown", "text/plain"}, cell.id
            for text in shown.values():
                assert not re.search(r"/(home|root|tmp|work|Users|content)/|\x1b|<script", text)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_run_again_it_finds_a_loss_that_is_better(
    notebook: NotebookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    again = copy.deepcopy(notebook)
    again.cells.append(nbformat.v4.new_code_cell(CLAIMS))
    NotebookClient(again, timeout=3000, resources={"metadata": {"path": str(tmp_path)}}).execute()
