"""The site: it builds without a warning, needs no network, and no link in it is dead."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import CHROMIUM
from devtools import ask

from optuna_taylorglo.recipes.load import bundled_recipes

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "docs" / "site" / "mkdocs.yml"
RESOURCES = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "object": ("data",),
    "use": ("href",),
}


class Page(HTMLParser):
    """What matters of a page: what it loads, where it links to, what can be linked to, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.formulas: list[str] = []
        self.classes: set[str] = set()
        self.prose: list[str] = []
        self._code = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.loaded += [given[name] for name in RESOURCES.get(tag, ()) if name in given]
        self.classes.update(given.get("class", "").split())
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "svg" and given.get("role") == "img":
            self.formulas.append(given["aria-label"])
        self._code += tag in ("code", "script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "script", "style")

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.prose.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*build, "--config-file", str(CONFIG), "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """The pages, but for the one of a server that finds nothing: its links begin at the server."""
    files = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path: Page(path.read_text(encoding="utf-8")) for path in files}


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for url in page.loaded:
            assert not urlsplit(url).netloc, f"{path.name} loads {url}"
            if not url.startswith("data:"):
                assert (path.parent / unquote(urlsplit(url).path)).is_file(), f"{path.name}: {url}"
        # Material would load a script from another site to draw these.
        assert "mermaid" not in page.classes, path.name
    for sheet in site.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]+)", sheet.read_text("utf-8"))
        assert [url for url in urls if urlsplit(url).netloc] == [], sheet.name


def test_links_and_anchors_lead_somewhere(pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            file = path
            if target.path:
                file = Path(os.path.normpath(path.parent / unquote(target.path)))
            known = pages[file].anchors if file in pages else {""} if file.is_file() else set()
            if unquote(target.fragment) not in known:
                dead.append(f"{path.name}: {link}")
    assert dead == []


def test_formulas_are_drawn(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        text = "".join(page.prose)
        assert "$$" not in text, path.name
        assert not re.search(r"\\(?:frac|sum|theta|left|text)\b", text), path.name
        assert "arithmatex" not in page.classes, path.name
    drawn = pages[site / "method.html"].formulas
    assert len(drawn) > 20
    assert any("\\frac" in formula for formula in drawn)


def test_shell_text_is_no_formula(site: Path) -> None:
    assert "$OPTUNA_STORAGE" in (site / "api.html").read_text("utf-8")


def test_every_recipe_and_example_is_shown(site: Path) -> None:
    recipes = {path.stem for path in (ROOT / "studies").glob("*.yaml")}
    assert set(bundled_recipes()) == recipes
    for path in [*ROOT.glob("studies/*.yaml"), *ROOT.glob("docs/examples/**/*.py")]:
        place = path.relative_to(ROOT).as_posix().removeprefix("docs/")
        assert (site / f"{place}.html").is_file(), place


def test_the_reference_is_made_from_the_code(pages: dict[Path, Page], site: Path) -> None:
    assert {"optuna_taylorglo.TaylorLoss", "optuna_taylorglo.load_loss"} <= pages[
        site / "api.html"
    ].anchors
    assert "--n-generations" in (site / "api.html").read_text("utf-8")


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

FOUND = """new Promise(done => {
  const look = () => {
    const found = document.querySelectorAll(".md-search-result__item").length
    found ? done(found) : setTimeout(look, 100)
  }
  look()
})"""

WIDE_PAGES = ("index", "api", "method", "operations", "recipes", "results/index")


@needs_browser
def test_it_can_be_searched_from_files(site: Path) -> None:
    address = f"{(site / 'index.html').as_uri()}?q=label+smoothing"
    assert ask([address], FOUND, width=1400)[0] > 1


@needs_browser
def test_tables_and_formulas_are_not_wider_than_a_telephone(site: Path) -> None:
    addresses = [(site / f"{name}.html").as_uri() for name in WIDE_PAGES]
    needed = ask(addresses, "document.documentElement.scrollWidth", width=400)
    assert dict(zip(WIDE_PAGES, needed, strict=True)) == dict.fromkeys(WIDE_PAGES, 400)
