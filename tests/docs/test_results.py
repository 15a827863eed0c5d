"""Tables of results are those of the verdicts and outcomes in the repository."""

import json
import lzma
import re
import sys

import pytest
from searches import ROOT, load

from optuna_taylorglo import load_loss
from optuna_taylorglo.recipes.load import frozen_recipe, load_recipe, recipe_differences
from optuna_taylorglo.verdict.output import from_json, to_markdown
from optuna_taylorglo.verdict.selection import selected_loss

pytestmark = pytest.mark.pages

sys.path.insert(0, str(ROOT / "benchmarks"))
RESULTS = ROOT / "docs" / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")


def test_the_pages_show_what_the_verdicts_say(capsys):
    from results import print_brief, print_summary, read_verdicts

    found = read_verdicts(RESULTS / "verdicts")
    print_summary(found)
    summary = capsys.readouterr().out.splitlines()
    assert len(summary) == 2 + len(found)
    assert [line for line in summary if line not in PAGE.splitlines()] == []
    print_brief(found)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"<!-- results -->\n{capsys.readouterr().out}<!-- end of results -->" in readme


def test_the_page_shows_the_outcomes_of_glo_and_the_verdict_on_mnist(capsys):
    from glo import print_table, read_file

    files = sorted((RESULTS / "glo").glob("*.jsonl"))
    print_table([outcome for file in files for outcome in read_file(file)])
    assert f"<!-- glo -->\n{capsys.readouterr().out}<!-- end of glo -->" in PAGE
    verdict = from_json(json.loads((RESULTS / "mnist" / "judged.json").read_text()))
    assert to_markdown(verdict).strip() in PAGE


@pytest.mark.parametrize("family", ["short", "anchored"])
def test_the_searches_on_mnist_can_go_on_and_hold_the_losses_beside_them(tmp_path, family):
    file = tmp_path / f"{family}.db"
    file.write_bytes(lzma.decompress((RESULTS / "mnist" / f"{family}.db.xz").read_bytes()))
    name = f"mnist_basic_cnn_{family}"
    study = load(f"sqlite:///{file}", name)
    held, recipe = frozen_recipe(study), load_recipe(ROOT / "studies" / f"{name}.yaml")
    assert held is not None
    assert not recipe_differences(held, recipe)
    saved = load_loss(RESULTS / "mnist" / f"{name}.json")
    assert saved.theta == selected_loss(study).loss.theta


def test_every_verdict_has_its_loss_and_its_recipe():
    for file in (RESULTS / "verdicts").glob("*.json"):
        loss = load_loss(RESULTS / "losses" / file.name)
        recipe = re.sub(r"_seed_\d+$", "", file.stem)
        assert (ROOT / "studies" / f"{recipe}.yaml").is_file()
        assert loss.origin.study == file.stem
        assert loss.anchor is not None


def test_the_page_of_the_library_shows_its_outcomes(capsys):
    from library import print_table

    print_table()
    page = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    assert f"<!-- library -->\n{capsys.readouterr().out}<!-- end of library -->" in page
