"""The guide quotes the results as they are."""

import re

from searches import ROOT

DOCS = ROOT / "docs"


def test_numbers_of_the_guide_stand_in_the_pages_that_it_quotes() -> None:
    guide = (DOCS / "when_it_helps.md").read_text(encoding="utf-8")
    quoted = "".join(
        (DOCS / page).read_text(encoding="utf-8")
        for page in ("results/README.md", "results-mnist.md", "examples/README.md")
    )
    numbers = set(re.findall(r"0\.\d{3,4}\b", guide))
    own = {"0.0019"}  # one of 537 images
    assert len(numbers) > 20
    assert {number for number in numbers - own if number not in quoted} == set()
