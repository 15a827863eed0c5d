"""How to cite: a file that tools can read, of the version that this is."""

from importlib.metadata import version

import yaml
from searches import ROOT


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "docs" / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version("optuna-taylorglo")
    assert citation["license"] == "MIT"
