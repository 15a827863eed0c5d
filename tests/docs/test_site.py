"""The site: it builds without a warning and needs no network."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import ask, needs_browser
from searches import ROOT

pytestmark = pytest.mark.pages

CONFIG = ROOT / "docs" / "site" / "mkdocs.yml"
LOADED = re.compile(
    r"<(?:script|link|img|source|iframe|object|use)\b[^>]*?\b(?:src|srcset|href|data)=\"([^\"]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; MkDocs fails at a link or an anchor that leads nowhere."""
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
def pages(site: Path) -> dict[Path, str]:
    files = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path: path.read_text("utf-8") for path in files}


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, str]) -> None:
    for path, page in pages.items():
        loaded = [html.unescape(url) for url in LOADED.findall(page)]
        assert loaded
        for url in loaded:
            assert not urlsplit(url).netloc, f"{path.name} loads {url}"
            if not url.startswith("data:"):
                assert (path.parent / unquote(urlsplit(url).path)).is_file(), f"{path.name}: {url}"
    for sheet in site.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]+)", sheet.read_text("utf-8"))
        assert [url for url in urls if urlsplit(url).netloc] == [], sheet.name


def test_formulas_are_drawn_and_shell_text_is_no_formula(
    site: Path, pages: dict[Path, str]
) -> None:
    for path, page in pages.items():
        prose = re.sub(r"<(code|script|style)\b.*?</\1>|<[^>]*>", "", page, flags=re.DOTALL)
        assert not re.search(r"\$\$|\\(?:frac|sum|theta|left|text)\b", prose), path
    assert pages[site / "method.html"].count('role="img"') > 20
    assert "$OPTUNA_STORAGE" in pages[site / "api.html"]


def test_every_recipe_and_example_is_shown(site: Path) -> None:
    for path in [*ROOT.glob("studies/*.yaml"), *ROOT.glob("docs/examples/**/*.py")]:
        place = path.relative_to(ROOT).as_posix().removeprefix("docs/")
        assert (site / f"{place}.html").is_file(), place


def test_the_reference_is_made_from_the_code(site: Path, pages: dict[Path, str]) -> None:
    names = "optuna_taylorglo.TaylorLoss", "optuna_taylorglo.load_loss", "taylorglo-sweep"
    assert all(f'id="{name}"' in pages[site / "api.html"] for name in names)
    assert "--n-generations" in pages[site / "api.html"]


FOUND = """new Promise(done => {
  const look = () => {
    const found = document.querySelectorAll(".md-search-result__item").length
    found ? done(found) : setTimeout(look, 100)
  }
  look()
})"""


@needs_browser
def test_it_can_be_searched_from_files(site: Path) -> None:
    address = f"{(site / 'index.html').as_uri()}?q=label+smoothing"
    assert ask([address], FOUND, width=1400)[0] > 1


@needs_browser
def test_tables_and_formulas_are_not_wider_than_a_telephone(site: Path) -> None:
    wide = ("index", "api", "method", "operations", "recipes", "results/index")
    addresses = [(site / f"{name}.html").as_uri() for name in wide]
    needed = ask(addresses, "document.documentElement.scrollWidth", width=400)
    assert dict(zip(wide, needed, strict=True)) == dict.fromkeys(wide, 400)
