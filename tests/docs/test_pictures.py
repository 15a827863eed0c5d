"""Pictures: one command draws them all, pages show them, and they read on light and dark pages."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from searches import ROOT

pytestmark = pytest.mark.pages

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

from figures import KINDS  # noqa: E402
from pictures import architecture  # noqa: E402
from pictures.style import luminance  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
PAGES = [ROOT / "README.md", *DOCS.rglob("*.md")]
PICTURES = sorted(DOCS.rglob("*.svg"))
BACKGROUNDS = ((255, 255, 255), (0x1E, 0x21, 0x29))


def test_the_command_draws_every_picture_and_pages_show_it() -> None:
    figures = [file for kind in KINDS for file in kind.pictures()]
    assert sorted([*figures, *architecture.drawings()]) == PICTURES
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", page.read_text("utf-8"))
    }
    assert set(PICTURES) <= shown
    assert sum(picture.stat().st_size for picture in PICTURES) < 2_000_000


def test_diagrams_are_those_that_the_command_draws() -> None:
    for file, draw in architecture.drawings().items():
        assert file.read_text(encoding="utf-8") == draw()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda file: file.stem)
def test_a_picture_stands_alone_and_is_seen_on_light_and_dark_pages(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    for element in root.iter():
        assert element.tag.removeprefix(SVG) not in {"script", "style", "foreignObject"}
        for attribute, value in element.attrib.items():
            assert not attribute.endswith("href") or value.startswith(("#", "data:"))
            assert re.findall(r"url\((?!#)", value) == []
    colors = list(_drawn_colors(root, {}, 1.0))
    assert len(colors) > 5
    for color in colors:
        for background in BACKGROUNDS:
            low, high = sorted((luminance(color), luminance(background)))
            assert (high + 0.05) / (low + 0.05) >= 3, f"{color} on {background}"


def _drawn_colors(
    element: ElementTree.Element, inherited: dict[str, str], opacity: float
) -> Iterator[tuple[int, ...]]:
    """Colors of letters, and of lines that are not faint on purpose, as grids are."""
    own = dict(element.attrib) | {
        name: value.strip()
        for name, value in re.findall(r"([\w-]+)\s*:\s*([^;]+)", element.get("style", ""))
    }
    opacity *= float(own.get("opacity", 1))
    properties = inherited | own
    is_text = element.tag in {f"{SVG}text", f"{SVG}tspan"}
    kind = "fill" if is_text else "stroke"
    color = _rgb(properties.get(kind, "rgb(0, 0, 0)" if is_text else "none"))
    solid = opacity * float(properties.get(f"{kind}-opacity", 1))
    has_ink = (element.text or "").strip() if is_text else element.get("d")
    if has_ink and color is not None and (is_text or solid > 0.6):
        assert not is_text or solid == 1, f"faint letters: {element.text}"
        yield color
    for child in element:
        if child.tag != f"{SVG}defs":
            yield from _drawn_colors(child, properties, opacity)


def _rgb(value: str) -> tuple[int, ...] | None:
    if match := re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", value):
        return tuple(map(int, match.groups()))
    if match := re.fullmatch(r"#(..)(..)(..)", value):
        return tuple(int(part, 16) for part in match.groups())
    assert value in {"none", "transparent"} or value.startswith("url("), f"a color: {value}"
    return None
