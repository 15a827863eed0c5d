"""The notebook: its outputs are those of a run, and its claims hold when it is run again."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from searches import ROOT

pytestmark = pytest.mark.pages

FILE = ROOT / "docs" / "examples" / "wrong_labels.ipynb"

CLAIMS = """
assert wrong.round(decimals=2) == 0.36
assert study.best_value < 0.64
assert all(verdict.beats(contrast.against) for contrast in verdict.contrasts)
assert {contrast.against for contrast in verdict.contrasts} >= {"ce", "ce-tuned", "gce"}
assert min(evolved_loss) > max(cross_entropy)
"""


@pytest.fixture
def notebook() -> NotebookNode:
    return nbformat.read(FILE, as_version=nbformat.NO_CONVERT)


def test_its_outputs_are_of_one_run_small_and_without_scripts_or_paths(
    notebook: NotebookNode,
) -> None:
    nbformat.validate(notebook)
    assert FILE.stat().st_size < 400_000
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert all(cell.outputs for cell in cells)
    for output in (output for cell in cells for output in cell.outputs):
        assert output.output_type != "error"
        shown = output.get("data", {"text/plain": output.get("text")})
        assert set(shown) <= {"image/svg+xml", "text/markdown", "text/plain"}
        for text in shown.values():
            assert not re.search(r"/(home|root|tmp|work|Users|content)/|\x1b|<script", text)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_run_again_it_finds_a_loss_that_is_better(
    notebook: NotebookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook.cells.append(nbformat.v4.new_code_cell(CLAIMS))
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=3000, resources=resources).execute()
