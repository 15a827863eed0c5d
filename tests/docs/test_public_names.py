"""Public names: each has arguments, result and example documented, and is in the reference."""

import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe
import optuna
import own_functions
import pytest
import torch
from kept_studies import keep_complete_study
from searches import ROOT

import optuna_taylorglo
from optuna_taylorglo import visualization

pytestmark = pytest.mark.pages

REFERENCE = {
    "optuna_taylorglo": "api.md",
    "optuna_taylorglo.visualization": "gallery.md",
    "lightning_modules.nets": "api.md",
    "lightning_modules.data": "api.md",
}
MODULES: tuple[ModuleType, ...] = (optuna_taylorglo, visualization)
MADE_BY = {"SearchResult": "search"}  # users make none themselves
FUNCTIONS = {"train": own_functions.train, "test": own_functions.test}  # that examples may name
PUBLIC = [(module, name) for module in MODULES for name in module.__all__]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples are run, with a finished search."""
    folder = tmp_path_factory.mktemp("examples")
    keep_complete_study(folder, "digits_mlp")
    return folder


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_a_public_name_is_documented_and_its_example_runs(
    module: ModuleType, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing = getattr(module, name)
    text = inspect.getdoc(thing) or ""
    parsed = griffe.parse_google(griffe.Docstring(text), warnings=False)
    sections: dict[str, Any] = {section.kind.value: section.value for section in parsed}
    fields = [*sections.get("parameters", []), *sections.get("attributes", [])]
    documented = {field.name.lstrip("*") for field in fields}
    signature = inspect.signature(thing)
    assert name in MADE_BY or set(signature.parameters) <= documented
    gives_nothing = not inspect.isfunction(thing) or signature.return_annotation == "None"
    assert gives_nothing or "returns" in sections
    code = "\n".join(t for kind, t in sections.get("examples", []) if kind.value == "examples")
    assert f"{MADE_BY.get(name, name)}(" in code
    monkeypatch.chdir(folder)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.manual_seed(0)
    example = doctest.DocTestParser().get_doctest(text, FUNCTIONS.copy(), name, None, None)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(example).failed == 0


@pytest.mark.parametrize("module", REFERENCE)
def test_the_reference_is_complete(module: str) -> None:
    page = (ROOT / "docs" / REFERENCE[module]).read_text(encoding="utf-8")
    shown = " ".join(re.findall(r"^<!-- api: ([\w.\s]+) -->$", page, re.MULTILINE)).split()
    assert {f"{module}.{name}" for name in importlib.import_module(module).__all__} <= set(shown)
