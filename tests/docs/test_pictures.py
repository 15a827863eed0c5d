"""Pictures: one command draws them all, pages show them, and they read on any page.

They are looked at as they lie there; drawing them takes a browser.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from searches import ROOT

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

from figures import KINDS  # noqa: E402
from pictures import architecture, style  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PICTURES = sorted(file for file in DOCS.rglob("*") if file.suffix in {".svg", ".png", ".jpg"})
SVGS = [file for file in PICTURES if file.suffix == ".svg"]

WHITE, DARK = (255, 255, 255), (0x1E, 0x21, 0x29)
BACKGROUNDS = (WHITE, DARK)


def name_of(file: Path) -> str:
    return str(file.relative_to(DOCS))


def test_the_command_draws_every_picture_and_no_other() -> None:
    figures = [file for kind in KINDS for file in kind.pictures()]
    assert sorted([*figures, *architecture.drawings()]) == PICTURES


def test_diagrams_are_those_that_the_command_draws() -> None:
    for file, draw in architecture.drawings().items():
        assert file.read_text(encoding="utf-8") == draw()


@pytest.mark.parametrize("picture", PICTURES, ids=name_of)
def test_a_page_shows_the_picture(picture: Path) -> None:
    shown = [
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert picture in shown


def test_pictures_are_small() -> None:
    assert sum(picture.stat().st_size for picture in PICTURES) < 2_000_000


@pytest.mark.parametrize("picture", SVGS, ids=name_of)
def test_an_svg_stands_alone(picture: Path) -> None:
    for element in ElementTree.parse(picture).iter():
        assert element.tag.removeprefix(SVG) not in {"script", "style", "foreignObject"}
        for attribute, value in element.attrib.items():
            if attribute.endswith("href"):
                assert value.startswith(("#", "data:"))
            assert re.findall(r"url\((?!#)", value) == []


@pytest.mark.parametrize("picture", SVGS, ids=name_of)
def test_an_svg_has_no_background(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    width, height = (float(side) for side in root.attrib["viewBox"].split()[2:])
    for shape in root.iter(f"{SVG}rect"):
        size = float(shape.get("width", 0)) * float(shape.get("height", 0))
        if size > 0.25 * width * height:
            properties = properties_of(shape)
            see_through = float(properties.get("fill-opacity", 1)) < 0.2
            assert see_through or properties.get("fill") == "none" or _is_clip(root, shape)


@pytest.mark.parametrize("picture", SVGS, ids=name_of)
def test_text_and_lines_are_seen_on_light_and_dark_pages(picture: Path) -> None:
    seen = 0
    for kind, color in drawn_colors(picture):
        for background in BACKGROUNDS:
            ratio = contrast(color, background)
            assert ratio >= 3, f"{kind} in {color} on {background}: {ratio:.2f}"
        seen += 1
    assert seen > 5


@pytest.mark.parametrize("color", [(0, 0, 0), (255, 255, 0), (68, 1, 84), (0, 114, 178)])
def test_colors_are_brought_where_both_pages_show_them(color: tuple[int, ...]) -> None:
    moved = style.on_any_page(color)
    assert min(contrast(moved, background) for background in BACKGROUNDS) >= 3
    order = sorted(range(3), key=lambda part: color[part])
    assert [moved[part] for part in order] == sorted(moved)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast((0, 0, 0), WHITE) == pytest.approx(21)
    assert contrast((0x76, 0x76, 0x76), WHITE) == pytest.approx(4.54, abs=0.005)


def drawn_colors(picture: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Colors of letters, and of lines that are not faint on purpose, as grids are."""
    root = ElementTree.parse(picture).getroot()

    def walk(
        element: ElementTree.Element, inherited: dict[str, str], opacity: float
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        own = properties_of(element)
        opacity *= float(own.get("opacity", 1))
        properties = inherited | own
        is_text = element.tag in {f"{SVG}text", f"{SVG}tspan"}
        kind = "fill" if is_text else "stroke"
        color = _rgb(properties.get(kind, "rgb(0, 0, 0)" if is_text else "none"))
        solid = opacity * float(properties.get(f"{kind}-opacity", 1))
        has_ink = (element.text or "").strip() if is_text else element.get("d")
        if has_ink and color is not None and (is_text or solid > 0.6):
            assert not is_text or solid == 1, f"faint letters: {element.text}"
            yield element.tag.removeprefix(SVG), color
        for child in element:
            if child.tag != f"{SVG}defs":
                yield from walk(child, properties, opacity)

    return walk(root, {}, 1.0)


def properties_of(element: ElementTree.Element) -> dict[str, str]:
    """What is drawn how, said by attributes or in a style."""
    style_of = re.findall(r"([\w-]+)\s*:\s*([^;]+)", element.get("style", ""))
    return dict(element.attrib) | {name: value.strip() for name, value in style_of}


def contrast(color: tuple[int, ...], background: tuple[int, ...]) -> float:
    """Contrast ratio (WCAG 2), with the formula written once more."""
    high, low = sorted((_luminance(color), _luminance(background)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(color: tuple[int, ...]) -> float:
    parts = (part / 255 for part in color)
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _rgb(value: str) -> tuple[int, ...] | None:
    if match := re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", value):
        return tuple(map(int, match.groups()))
    if match := re.fullmatch(r"#(..)(..)(..)", value):
        return tuple(int(part, 16) for part in match.groups())
    if match := re.fullmatch(r"#(.)(.)(.)", value):
        return tuple(17 * int(part, 16) for part in match.groups())
    assert value in {"none", "transparent"} or value.startswith("url("), f"a color: {value}"
    return None


def _is_clip(root: ElementTree.Element, shape: ElementTree.Element) -> bool:
    return any(shape in clip for clip in root.iter(f"{SVG}clipPath"))
