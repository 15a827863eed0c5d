"""Tables of results are those of the verdicts that lie beside them."""

import re
import sys

import pytest
from searches import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
RESULTS = ROOT / "docs" / "results"
STUDIES = sorted(path.stem for path in (RESULTS / "verdicts").glob("*.json"))


def test_the_pages_show_what_the_verdicts_say(capsys):
    from results import print_brief, print_summary, print_table, read_verdicts

    found = read_verdicts(RESULTS / "verdicts")
    print_summary(found)
    summary = capsys.readouterr().out.splitlines()
    for recipe, verdicts in found.items():
        print_table(recipe, verdicts)
    tables = capsys.readouterr().out.splitlines()
    page = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(summary) == 2 + len(found)
    for line in [*summary, *filter(None, tables)]:
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
    page = (ROOT / "docs" / "glo.md").read_text(encoding="utf-8")
    assert "<!-- glo -->\n" + "\n".join(lines) + "\n<!-- end of glo -->" in page


@pytest.mark.parametrize("study", STUDIES)
def test_every_verdict_has_its_loss_and_its_recipe(study):
    from optuna_taylorglo import load_loss

    loss = load_loss(RESULTS / "losses" / f"{study}.json")
    recipe = re.sub(r"_seed_\d+$", "", study)
    assert (ROOT / "studies" / f"{recipe}.yaml").is_file()
    assert loss.origin.study == study
    assert loss.anchor is not None
