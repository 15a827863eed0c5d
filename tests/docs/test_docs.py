"""Pages: links lead somewhere, commands parse, examples run, the recipe reference is current.

A block of Python or shell has a mark on the line before it:

- ``<!-- run -->``: it is run here, in a folder with finished searches. Python blocks of a page are
  run one after the other in one namespace.
- ``<!-- output -->``: what the Python block before it prints.
- ``<!-- run by tests/… -->`` or ``<!-- not run: why -->``.

A block of YAML is read as a part of a recipe.
"""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import optuna
import pytest
import torch
import yaml
from kept_studies import keep_complete_study
from recipe_reference import RECIPES, recipe_json_schema, recipes_page
from searches import ROOT

from optuna_taylorglo import TaylorLoss, cli
from optuna_taylorglo.cli import worker
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.schema import SCHEMA_FILE, recipe_from_dict

FOLDERS = ("studies", "benchmarks", "docs")
PAGES = [ROOT / "README.md", *(page for f in FOLDERS for page in sorted(ROOT.glob(f"{f}/**/*.md")))]
UPDATE = "bring it up to date: python tests/helpers/recipe_reference.py"

FENCED = re.compile(r"^(?:(<!-- [^\n]* -->)\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN, OUTPUT = "<!-- run -->", "<!-- output -->"
EXPLAINED = re.compile(r"<!-- (?:run by tests/\S+|not run: \w.+) -->")
DRAWN = re.compile(r"```python\n([^`]*?)```\n\n!\[[^\]]*\]\(gallery/")
"""Code above a picture of the gallery, which tests/docs/test_pictures.py runs."""

PROGRAMS = {"taylorglo": cli, "taylorglo-worker": worker}
STUDIES = ("digits_mlp_wrong_labels", "digits_mlp_glo", "digits_cnn")
"""Those that the pages' commands read."""
LOSS = f"{STUDIES[0]}_loss.json"


class Block(NamedTuple):
    """A fenced block of a page, with the mark before it."""

    page: Path
    mark: str
    language: str
    text: str

    def __str__(self) -> str:
        lines = self.page.read_text("utf-8").split(self.text)[0].count("\n")
        return f"{name_of(self.page)}:{lines}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    found = [Block(page, *groups) for groups in FENCED.findall(text)]
    assert text.count("```") == 2 * len(found), f"{name_of(page)}: a block is not closed"
    return found


def links(page: Path) -> Iterator[Path]:
    """Files and folders of the repository that a page links to; the site's test proves anchors."""
    prose = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text("utf-8")))
    for target in re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", prose):
        if not target.startswith(("http://", "https://")):
            yield (page.parent / target).resolve()


BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON, YAML, SHELL = (
    [block for block in BLOCKS if block.language == language]
    for language in ("python", "yaml", "bash")
)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_names_of_files_lead_somewhere(page: Path) -> None:
    for file in links(page):
        assert file.exists(), f"{file} does not exist"
        assert file.is_relative_to(ROOT)
    folders = "optuna_taylorglo|lightning_modules|tests|benchmarks|docs|studies"
    named = re.findall(rf"(?<![\w/.])((?:{folders})/[\w/.]*\w)", page.read_text("utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert not re.search(r"(?<![\w.])/(?:tmp|root|home/(?!taylorglo))", page.read_text("utf-8"))


def test_every_page_is_reached_from_the_index() -> None:
    reached, todo = set(), [ROOT / "docs" / "README.md"]
    while todo:
        page = todo.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            todo += links(page)
    assert set(PAGES) - {ROOT / "README.md"} <= reached


def command_lines(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, as words, without variables set before them."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("&|;"):
                words.append(word)
            elif words:
                while words and re.match(r"\w+=", words[0]):
                    del words[0]
                yield words
                words = []


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_parse(block: Block) -> None:
    for program, *words in command_lines(block.text):
        if Path(program).name in PROGRAMS:
            parser = PROGRAMS[Path(program).name].build_parser()
            recipe = getattr(parser.parse_args(words), "recipe", None)
            if recipe is not None and recipe.parts[0] == "studies":
                load_recipe(ROOT / recipe)


@pytest.mark.parametrize("block", YAML, ids=str)
def test_yaml_is_part_of_a_recipe(block: Block) -> None:
    part = yaml.safe_load(block.text)
    glo = part.get("search", {}).get("method") == "glo"
    whole = ROOT / "studies" / ("digits_mlp_glo.yaml" if glo else "digits_cnn.yaml")
    recipe_from_dict(yaml.safe_load(whole.read_text(encoding="utf-8")) | part)


def test_every_block_is_run_or_says_why_not() -> None:
    for block in BLOCKS:
        assert block.language in {"python", "bash", "yaml", "text", ""}, block
        if block.language in {"python", "bash"} and block.mark != RUN:
            drawn = DRAWN.findall(block.page.read_text("utf-8"))
            assert block.text in drawn or EXPLAINED.fullmatch(block.mark), f"{block}: needs a mark"
    marks = sum(page.read_text("utf-8").count(f"\n{RUN}\n") for page in PAGES)
    assert marks == sum(block.mark == RUN for block in [*PYTHON, *SHELL])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where blocks are run, with finished searches and an exported loss."""
    folder = tmp_path_factory.mktemp("pages")
    keep_complete_study(folder, *STUDIES)
    TaylorLoss.from_cross_entropy().save(folder / LOSS)
    return folder


@pytest.mark.pages
@pytest.mark.parametrize(
    "page", dict.fromkeys(block.page for block in PYTHON if block.mark == RUN), ids=name_of
)
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


@pytest.mark.pages
@pytest.mark.parametrize("block", [block for block in SHELL if block.mark == RUN], ids=str)
def test_marked_commands_succeed(
    block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for program, *words in command_lines(block.text):
        if program == "python":
            subprocess.run([sys.executable, *words], check=True)
        else:
            assert PROGRAMS[program].main(words) == 0, shlex.join([program, *words])


@pytest.mark.pages
def test_the_readme_s_lines_put_the_loss_in_the_place_of_cross_entropy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    TaylorLoss((0, 0, 0, -2, 0, 2, 0, 0), class_reduction="sum").save(LOSS)
    torch.manual_seed(0)
    images, labels = torch.randn(200, 8), torch.randint(0, 3, (200,))
    images[:, :3] += 3 * torch.nn.functional.one_hot(labels, 3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    (code,) = [b.text for b in PYTHON if b.page == PAGES[0] and "import load_loss" in b.text]
    set_up, _, step = code.partition("\ncriterion(model")
    names = {"model": model, "images": images, "labels": labels}
    exec(set_up, names)
    for _ in range(100):
        optimizer.zero_grad()
        exec("criterion(model" + step, names)
        optimizer.step()
    assert (model(images).argmax(dim=1) == labels).float().mean() > 0.95


@pytest.mark.pages
def test_the_readme_s_recipe_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (recipe,) = [block.text for block in YAML if block.page == PAGES[0]]
    assert "full: 1000" in recipe
    Path("my_study.yaml").write_text(recipe.replace("full: 1000", "full: 20"))  # else a minute
    (commands,) = [b.text for b in SHELL if b.page == PAGES[0] and "my_study.yaml" in b.text]
    for _, command, *words in command_lines(commands.replace("#", "\n#")):
        shorter = ["--n-generations", "1"] if command == "run" else []
        assert cli.main([command, *words, *shorter, "--device", "cpu"]) == 0
    assert Path("my_study_loss.json").exists()


def test_recipe_reference_and_json_schema_are_current() -> None:
    assert RECIPES.read_text(encoding="utf-8") == recipes_page(), UPDATE
    assert SCHEMA_FILE.read_text(encoding="utf-8") == recipe_json_schema(), UPDATE
