"""The page about the rooms shows those that there are, in the order that is checked."""

import re
import tomllib

import pytest
from searches import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LAYOUT = PAGE.split("## The rooms")[1].split("```")[1]


def test_every_room_is_shown_and_no_other() -> None:
    told = set(re.findall(r"^  (\w+)/", LAYOUT, flags=re.MULTILINE))
    rooms = {path.parent.name for path in (ROOT / "optuna_taylorglo").glob("*/__init__.py")}
    assert told == rooms
    for folder in re.findall(r"^(\w+)/", LAYOUT, flags=re.MULTILINE):
        assert (ROOT / folder).is_dir()


def test_rooms_stand_in_the_order_that_the_linter_checks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]
    order = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    shown = re.findall(r"^  (\w+)/", LAYOUT, flags=re.MULTILINE)
    heights = [next(row for row, layer in enumerate(order) if name in layer) for name in shown]
    assert heights == sorted(heights)
    picture = (ROOT / "docs" / "architecture" / "rooms.svg").read_text(encoding="utf-8")
    below = picture.split("What knows what")[1]
    found = [re.search(rf"\b{layer[0]}\b", below) for layer in order]
    places = [match.start() for match in found if match]
    assert len(places) == len(order)
    assert places == sorted(places)


WALKED = sorted(set(re.findall(r"`((?:optuna_taylorglo|lightning_modules)/[\w/.]+)`", PAGE)))


@pytest.mark.parametrize("path", WALKED)
def test_what_the_page_sends_people_to_is_there(path: str) -> None:
    assert (ROOT / path).exists()
