"""Studies that version 0.1 began, before the package had rooms, go on where they were."""

import json
import platform
import shutil
from pathlib import Path

import pytest
from optuna.trial import TrialState
from searches import load, process, small_recipe

from optuna_taylorglo import cli, worker
from optuna_taylorglo.attributes import GENERATION, INDEX

DATA = Path(__file__).parent / "data"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A search of 3 generations of 4, left after its sixth trial."""
    return shutil.copy(DATA / "half_a_search_of_version_0_1.journal", tmp_path / "old.journal")


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="candidates depend on the processor"
)
def test_a_search_goes_on_with_the_candidates_it_would_have_had(
    journal, tmp_path, capsys, monkeypatch
):
    # The kind of processor on which version 0.1 drew them: kernels of another kind turn those axes
    # of CMA-ES that are of equal length in another way.
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    before = load(str(journal), "small").trials
    assert len(before) == 6
    words = ["--study-name", "small", "--storage", str(journal), "--data-dir", str(tmp_path)]
    # The very recipe it was started with is not taken for another one.
    recipe = small_recipe(tmp_path / "small.yaml", search={"population": 4, "generations": 3})
    words += ["--recipe", str(recipe)]
    going_on = process("optuna_taylorglo.worker", *words, cwd=tmp_path)
    assert going_on.wait() == worker.DONE, going_on.stdout.read()
    trials = load(str(journal), "small").trials
    assert trials[: len(before)] == before
    finished = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    places = {(t.user_attrs[GENERATION], t.user_attrs[INDEX]) for t in finished}
    assert places == {(generation, index) for generation in range(3) for index in range(4)}
    # What version 0.1 proposed, from the same results of the first generation.
    expected = json.loads((DATA / "second_generation_of_version_0_1.json").read_text())
    for trial in finished:
        if trial.user_attrs[GENERATION] == 1:
            theta = [trial.params[f"theta_{i}"] for i in range(8)]
            assert theta == pytest.approx(expected[trial.user_attrs[INDEX]], rel=1e-9)
    assert cli.main(["status", "small", "--storage", str(journal)]) == cli.DONE
    assert "Generations: 3 of 3 complete" in capsys.readouterr().out
