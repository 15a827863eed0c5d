"""Public names: each says what it is, takes and gives, shows it, and is in the reference."""

import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe
import optuna
import pytest
import torch
from kept_studies import keep_complete_study

import optuna_taylorglo
from optuna_taylorglo import visualization

REFERENCE = {
    "optuna_taylorglo": "api.md",
    "optuna_taylorglo.visualization": "gallery.md",
    "lightning_modules.nets": "api.md",
    "lightning_modules.data": "api.md",
}
DOCS = Path(__file__).parents[2] / "docs"
ALL = [(module, name) for module in REFERENCE for name in importlib.import_module(module).__all__]
MODULES: tuple[ModuleType, ...] = (optuna_taylorglo, visualization)
PUBLIC = [(module, name) for module in MODULES for name in module.__all__]
IDS = [name for _, name in PUBLIC]


def sections(thing: Any) -> dict[str, Any]:
    """The parts of a docstring, as the site reads them."""
    docstring = griffe.Docstring(inspect.getdoc(thing) or "")
    found = griffe.parse_google(docstring, warnings=False)
    return {section.kind.value: section.value for section in found}


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=IDS)
def test_arguments_and_results_are_documented(module: ModuleType, name: str) -> None:
    thing = getattr(module, name)
    assert thing.__doc__, f"{name} has no docstring of its own"
    told = sections(thing)
    documented = {
        field.name.lstrip("*")
        for kind in ("parameters", "attributes")
        for field in told.get(kind, [])
    }
    taken = set(inspect.signature(thing).parameters)
    assert taken <= documented, f"{name} does not say what {taken - documented} are"
    if inspect.isfunction(thing):
        assert "returns" in told, f"{name} does not say what it returns"


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=IDS)
def test_there_is_an_example(module: ModuleType, name: str) -> None:
    examples = sections(getattr(module, name)).get("examples", [])
    code = "\n".join(text for kind, text in examples if kind.value == "examples")
    assert f"{name}(" in code, f"{name} needs a section Examples: that calls it"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples are run: a search has been made there."""
    folder = tmp_path_factory.mktemp("examples")
    keep_complete_study(folder, "digits_mlp")
    return folder


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=IDS)
def test_examples_do_what_they_say(
    module: ModuleType, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing imported but what the example itself imports."""
    monkeypatch.chdir(folder)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.manual_seed(0)
    text = inspect.getdoc(getattr(module, name)) or ""
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
        example, out=report.append
    )
    assert result.failed == 0, "".join(report)


@pytest.mark.parametrize(("module", "name"), ALL, ids=[f"{m}.{n}" for m, n in ALL])
def test_the_reference_has_it(module: str, name: str) -> None:
    page = (DOCS / REFERENCE[module]).read_text(encoding="utf-8")
    assert f"\n<!-- api: {module}.{name} -->\n" in page
