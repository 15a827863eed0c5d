"""The documentation: links lead somewhere, commands parse, examples run, the reference is current.

Every block of Python or shell is run, or says why not. Invisible marks stand in a page, alone on
the line before a fenced block:

- ``<!-- run -->``: it is run here, in a folder where searches have been made. Python blocks of a
  page are run one after the other in one namespace; shell blocks hold our own commands, or python.
- ``<!-- output -->``: what the run block of Python before it prints.
- ``<!-- run by tests/… -->``: another test runs it.
- ``<!-- not run: why -->``.

Blocks of YAML need no mark: each is a part of a recipe, and is read as one.
"""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import optuna
import pytest
import torch
import yaml
from kept_studies import keep_complete_study
from recipe_reference import RECIPES, recipe_json_schema, recipes_page

from optuna_taylorglo import TaylorLoss, cli, worker
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import SCHEMA_FILE, recipe_from_dict

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "studies" / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]

UPDATE = "bring it up to date: python tests/helpers/recipe_reference.py"

RUN, OUTPUT = "<!-- run -->", "<!-- output -->"
EXPLAINED = re.compile(r"<!-- (?:run by tests/\S+|not run: \w.+) -->")
OWN_MAINS = {"taylorglo": cli.main, "taylorglo-worker": worker.main}
STUDIES = ("digits_mlp_wrong_labels", "digits_mlp_glo", "digits_cnn")
"""Those that the pages' commands read."""

DRAWN = re.compile(r"```python\n([^`]*?)```\n\n!\[[^\]]*\]\(gallery/")
"""Code right above a picture of the gallery, which tests/docs/test_gallery.py runs."""


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
def test_the_first_page_shows_every_command(verb: str) -> None:
    page = ROOT / "docs" / "get_started.md"
    assert verb in {words[0] for block, _, words in COMMANDS if block.page == page}


BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
YAML = [block for block in BLOCKS if block.language == "yaml"]
SHELL = [block for block in BLOCKS if block.language == "bash"]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", YAML, ids=str)
def test_yaml_is_part_of_a_recipe(block: Block) -> None:
    part = yaml.safe_load(block.text)
    glo = part.get("search", {}).get("method") == "glo"
    whole = ROOT / "studies" / ("digits_mlp_glo.yaml" if glo else "digits_cnn.yaml")
    recipe_from_dict(yaml.safe_load(whole.read_text(encoding="utf-8")) | part)


@pytest.mark.parametrize("block", [*PYTHON, *SHELL], ids=str)
def test_every_block_is_run_or_says_why_not(block: Block) -> None:
    if block.mark == RUN or block.text in DRAWN.findall(block.page.read_text(encoding="utf-8")):
        return
    assert EXPLAINED.fullmatch(block.mark), (
        f"{block}: mark it with {RUN}, <!-- run by tests/… --> or <!-- not run: why -->"
    )
    for path in re.findall(r"(?:tests|docs|benchmarks)/[\w/.]*\w", block.mark):
        assert (ROOT / path).exists(), f"{block}: {path} does not exist"


def test_languages_are_called_by_one_name() -> None:
    """So that no block of shell or YAML escapes."""
    others = {"console", "py", "sh", "shell", "yml", "zsh"}
    assert [str(block) for block in BLOCKS if block.language in others] == []


def test_marks_stand_where_they_mean_something() -> None:
    for page in PAGES:
        marked = [(block.mark, block.language) for block in blocks(page)]
        run = marked.count((RUN, "python")) + marked.count((RUN, "bash"))
        assert run == page.read_text().count(f"\n{RUN}\n")
        for before, after in zip([("", ""), *marked], marked, strict=False):
            if after[0] == OUTPUT:
                assert before == (RUN, "python"), f"{name_of(page)}: output of nothing that runs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where blocks are run: searches have been made there, and a loss was exported."""
    folder = tmp_path_factory.mktemp("pages")
    keep_complete_study(folder, *STUDIES, generations=10)
    TaylorLoss.from_cross_entropy().save(folder / "best_loss.json")
    return folder


def has_run(page: Path, language: str) -> bool:
    return any(block.mark == RUN and block.language == language for block in blocks(page))


@pytest.mark.parametrize("page", [page for page in PAGES if has_run(page, "python")], ids=name_of)
def test_marked_examples_run_and_print_what_the_page_says(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, object] = {
        "__name__": "__main__",
        "model": torch.nn.Linear(4, 3),
        "images": torch.randn(5, 4),
        "labels": torch.tensor([0, 2, 1, 1, 0]),
        "study": optuna.create_study(),
    }
    printed = ""
    for block in blocks(page):
        if block.mark == RUN and block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(block.text, str(block), "exec"), names)
            printed = output.getvalue()
        elif block.mark == OUTPUT:
            assert printed == block.text, str(block)


@pytest.mark.parametrize("block", [block for block in SHELL if block.mark == RUN], ids=str)
def test_marked_commands_succeed(
    block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for program, *words in command_lines(block.text):
        if program == "python":
            subprocess.run([sys.executable, *words], check=True)
        else:
            assert OWN_MAINS[program](words) == 0, shlex.join([program, *words])


def test_the_recipe_reference_is_current() -> None:
    assert RECIPES.read_text(encoding="utf-8") == recipes_page(), UPDATE


def test_the_json_schema_is_current() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == recipe_json_schema(), UPDATE


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_name_no_paths_of_the_machine_they_were_written_on(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.])/(?:tmp|root|home/(?!taylorglo))[\w/.-]*", text) == []


def test_files_that_contributors_are_sent_to_exist() -> None:
    text = (ROOT / "docs" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:optuna_taylorglo|lightning_modules|tests)/[\w/.]+)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []
