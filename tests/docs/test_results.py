"""Tables of results are those of the verdicts that lie beside them."""

import json
import lzma
import re
import sys

import pytest
from searches import ROOT, load

sys.path.insert(0, str(ROOT / "benchmarks"))
RESULTS = ROOT / "docs" / "results"
STUDIES = sorted(path.stem for path in (RESULTS / "verdicts").glob("*.json"))


def test_the_pages_show_what_the_verdicts_say(capsys):
    from results import print_brief, print_summary, read_verdicts

    found = read_verdicts(RESULTS / "verdicts")
    print_summary(found)
    summary = capsys.readouterr().out.splitlines()
    page = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(summary) == 2 + len(found)
    for line in summary:
        assert line in page
    print_brief(found)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"<!-- results -->\n{capsys.readouterr().out}<!-- end of results -->" in readme


def test_the_page_of_glo_shows_what_the_kept_outcomes_say():
    from glo import HEADER, read_file, rows

    files = sorted((RESULTS / "glo").glob("*.jsonl"))
    found = rows([outcome for file in files for outcome in read_file(file)])
    lines = [f"| {' | '.join(row)} |" for row in (HEADER, *found)]
    lines.insert(1, "|" + "---|" * len(HEADER))
    page = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    assert "<!-- glo -->\n" + "\n".join(lines) + "\n<!-- end of glo -->" in page


def test_the_page_of_the_search_on_mnist_shows_its_verdict():
    from optuna_taylorglo.verdict.output import from_json, to_markdown

    page = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    verdict = from_json(json.loads((RESULTS / "mnist" / "judged.json").read_text()))
    assert to_markdown(verdict).strip() in page


def test_the_searches_on_mnist_can_go_on_and_hold_the_losses_beside_them(tmp_path):
    from optuna_taylorglo import load_loss
    from optuna_taylorglo.recipes.load import frozen_recipe, load_recipe, recipe_differences
    from optuna_taylorglo.verdict.selection import selected_loss

    for family in ("short", "anchored"):
        file = tmp_path / f"{family}.db"
        file.write_bytes(lzma.decompress((RESULTS / "mnist" / f"{family}.db.xz").read_bytes()))
        name = f"mnist_basic_cnn_{family}"
        study = load(f"sqlite:///{file}", name)
        held, recipe = frozen_recipe(study), load_recipe(ROOT / "studies" / f"{name}.yaml")
        assert held is not None
        assert not recipe_differences(held, recipe)
        kept = load_loss(RESULTS / "mnist" / f"{name}.json")
        assert kept.theta == selected_loss(study).loss.theta


@pytest.mark.parametrize("study", STUDIES)
def test_every_verdict_has_its_loss_and_its_recipe(study):
    from optuna_taylorglo import load_loss

    loss = load_loss(RESULTS / "losses" / f"{study}.json")
    recipe = re.sub(r"_seed_\d+$", "", study)
    assert (ROOT / "studies" / f"{recipe}.yaml").is_file()
    assert loss.origin.study == study
    assert loss.anchor is not None
