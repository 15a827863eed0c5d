"""The documentation: links lead somewhere, commands parse, examples run, the reference is current.

Run as a program it brings what is made from the recipe's models up to date, the table of
docs/recipes.md and the JSON schema::

    python tests/docs/test_docs.py

Two invisible marks may stand in a page, alone on the line before a fenced block: ``<!-- run -->``
for Python that is run, the blocks of a page one after the other in one namespace, and
``<!-- output -->`` for what the run block before it prints.
"""

import contextlib
import io
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from optuna_taylorglo import cli, worker
from optuna_taylorglo.recipes.loading import load_recipe
from optuna_taylorglo.recipes.reference import SCHEMA_FILE, recipe_json_schema, recipe_reference

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "recipes.md"
PAGES = [ROOT / "README.md", ROOT / "studies" / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
GENERATED = re.compile(r"(?<=<!-- generated -->\n).*(?=<!-- end -->\n)", re.DOTALL)

UPDATE = "bring it up to date: python tests/docs/test_docs.py"

RUN, OUTPUT = "<!-- run -->", "<!-- output -->"


class Block(NamedTuple):
    """A fenced block: its page, the line it starts in, language, text and the mark before it."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.lstrip().startswith("```"):
            continue
        if opened is None:
            mark = lines[number - 2].strip() if number > 1 else ""
            opened = number, line.strip().removeprefix("```"), mark
        else:
            start, language, mark = opened
            text = "\n".join(lines[start : number - 1]) + "\n"
            found.append(Block(page, start, language, text, mark))
            opened = None
    assert opened is None, f"{name_of(page)}: a block is not closed"
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks and code spans, where nothing is a link."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", lambda span: "`" * len(span[0]), text)


def anchors(page: Path) -> set[str]:
    """What may stand behind # in a link to a page, by GitHub's rule for headings."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(next(s for s in _numbered(slug) if s not in found))
    return found


def _numbered(slug: str) -> Iterator[str]:
    yield slug
    number = 0
    while True:
        number += 1
        yield f"{slug}-{number}"


def links(page: Path) -> list[str]:
    """Targets of the links of a page, those to other sites left out."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in targets if not target.startswith(("http://", "https://"))]


LINKS = [(page, target) for page in PAGES for target in dict.fromkeys(links(page))]


@pytest.mark.parametrize(
    ("page", "target"), LINKS, ids=[f"{name_of(page)}->{target}" for page, target in LINKS]
)
def test_links_lead_somewhere(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    assert file.exists(), f"{name_of(page)}: {target} does not exist"
    assert file.is_relative_to(ROOT), f"{name_of(page)}: {target} leads out of the repository"
    if anchor:
        known = sorted(anchors(file))
        assert anchor in known, f"{name_of(page)}: {target}: its headings are {known}"


def test_every_page_is_reached_from_the_index() -> None:
    start = ROOT / "docs" / "README.md"
    reached, todo = {start}, [start]
    while todo:
        page = todo.pop()
        for target in links(page):
            file = (page.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.is_file() and file not in reached:
                reached.add(file)
                todo.append(file)
    assert {page for page in PAGES if page.parent != ROOT} <= reached


def command_lines(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("&|;"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def taylorglo_commands() -> list[tuple[Block, ArgumentParser, list[str]]]:
    """Every command line in the pages that one of our own parsers reads."""
    modules = {"optuna_taylorglo.cli": "taylorglo", "optuna_taylorglo.worker": "taylorglo-worker"}
    parsers = {"taylorglo": cli.build_parser(), "taylorglo-worker": worker.build_parser()}
    found = []
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language != "bash":
            continue
        for words in command_lines(block.text):
            while words and re.match(r"\w+=", words[0]):
                words = words[1:]
            if words[1:2] == ["-m"] and words[2] in modules:
                words = [modules[words[2]], *words[3:]]
            program = Path(words[0]).name if words else ""
            if program in parsers:
                found.append((block, parsers[program], words[1:]))
    return found


COMMANDS = taylorglo_commands()


@pytest.mark.parametrize(
    ("block", "parser", "words"),
    COMMANDS,
    ids=[f"{block}: {shlex.join([parser.prog, *words])}" for block, parser, words in COMMANDS],
)
def test_commands_parse(block: Block, parser: ArgumentParser, words: list[str]) -> None:
    arguments = parser.parse_args(words)
    recipe = getattr(arguments, "recipe", None)
    if recipe is not None and recipe.parts[0] == "studies":
        load_recipe(ROOT / recipe)


@pytest.mark.parametrize("verb", ["run", "status", "export", "evaluate", "report", "dashboard"])
def test_the_tutorial_shows_every_verb(verb: str) -> None:
    tutorial = ROOT / "docs" / "tutorial.md"
    assert verb in {words[0] for block, _, words in COMMANDS if block.page == tutorial}


PYTHON = [block for page in PAGES for block in blocks(page) if block.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


def test_marks_stand_where_they_mean_something() -> None:
    for page in PAGES:
        marked = [(block.mark, block.language) for block in blocks(page)]
        assert marked.count((RUN, "python")) == page.read_text().count(f"\n{RUN}\n")
        for before, after in zip([("", ""), *marked], marked, strict=False):
            if after[0] == OUTPUT:
                assert before == (RUN, "python"), f"{name_of(page)}: output of nothing that runs"


RUNNABLE = [page for page in PAGES if any(block.mark == RUN for block in blocks(page))]


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_marked_examples_run_and_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        if block.mark == RUN:
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(block.text, str(block), "exec"), names)
            printed = output.getvalue()
        elif block.mark == OUTPUT:
            assert printed == block.text, str(block)


def with_current_reference(text: str) -> str:
    """The recipe page with the table that the models give."""
    assert len(GENERATED.findall(text)) == 1, "the page must have one generated part"
    return GENERATED.sub(lambda _: f"\n{recipe_reference()}\n", text)


def test_the_recipe_reference_is_current() -> None:
    text = RECIPES.read_text(encoding="utf-8")
    assert text == with_current_reference(text), UPDATE


def test_the_json_schema_is_current() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == recipe_json_schema(), UPDATE


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_name_no_paths_of_the_machine_they_were_written_on(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.])/(?:tmp|root|home/(?!taylorglo))[\w/.-]*", text) == []


if __name__ == "__main__":
    RECIPES.write_text(with_current_reference(RECIPES.read_text("utf-8")), "utf-8")
    SCHEMA_FILE.write_text(recipe_json_schema(), "utf-8")
