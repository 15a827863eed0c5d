"""A recipe from a YAML file, the package or a study, and the classes that it names."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from importlib.machinery import PathFinder
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from optuna_taylorglo.attributes import CLASS_WEIGHTS, OPTIMIZER, RECIPE, SCALE
from optuna_taylorglo.errors import RecipeError, UsageError
from optuna_taylorglo.recipes.schema import (
    FunctionRecipe,
    Recipe,
    TrainingRecipe,
    recipe_from_dict,
)
from optuna_taylorglo.recipes.settings import DOTTED_PATH
from optuna_taylorglo.validation import files_beside, nearest, show

if TYPE_CHECKING:
    import optuna

_PACKAGE = Path(__file__).parents[1]


def bundled_recipes() -> dict[str, Path]:
    """Every bundled recipe: its name and its file."""
    folder = _PACKAGE / "bundled_studies"
    if not folder.is_dir():  # only wheels have it; in a checkout the recipes are in studies/
        folder = _PACKAGE.parent / "studies"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_recipe(path_or_name: str | os.PathLike[str]) -> Path:
    """The file of a recipe: a path, which wins if it exists, or the name of a bundled recipe."""
    path, recipes = Path(path_or_name), bundled_recipes()
    if path.exists():
        return path
    if str(path) in recipes:
        return recipes[str(path)]
    near = difflib.get_close_matches(str(path), files_beside(path, ".yaml", ".yml"))
    near += difflib.get_close_matches(path.stem.lower(), recipes, n=5, cutoff=0.5)
    hint = f"near to it are {', '.join(near)}" if near else f"there are {', '.join(recipes)}"
    raise RecipeError("", f"No such file, and no bundled recipe has this name; {hint}", str(path))


def load_recipe(path: str | os.PathLike[str]) -> TrainingRecipe:
    """Read a recipe from a YAML file, or raise a `RecipeError` that says what is wrong with it."""
    source = os.fspath(path)
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_RecipeLoader)
    except OSError as error:
        raise RecipeError("", f"cannot be read: {error.strerror}", source) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError("", f"is not valid YAML: {error}", source) from error
    return recipe_from_dict(content, source)


def line_of(path: str | os.PathLike[str], field: str) -> int | None:
    """The line, from 1, of a field (dotted path) in a valid YAML file, or that of its section."""
    with open(path, encoding="utf-8") as file:
        node = yaml.compose(file, Loader=_RecipeLoader)
    line = None
    for name in field.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        fields = {key.value: (key.start_mark.line + 1, value) for key, value in pairs}
        if name not in fields:
            break
        line, node = fields[name]
    return line


class _RecipeLoader(yaml.SafeLoader):
    """YAML's safe loader, without the surprises of YAML 1.1 and with duplicate keys refused.

    PyYAML reads 1e-3 as text, 010 as eight, 1:30 as ninety, `no` as false and 2020-01-01 as a date.
    Here numbers are decimal, only true and false are booleans, and the rest is text.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key := self.construct_object(key_node, deep=True), Hashable):
                if key in seen:
                    problem, mark = f"duplicate key {show(key)}", key_node.start_mark
                    raise yaml.constructor.ConstructorError(None, None, problem, mark)
                seen.add(key)
        return super().construct_mapping(node, deep)


_FLOAT = r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+|[-+]?\.(inf|Inf|INF)|\.nan"
for _tag, _pattern, _first in (
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", "[-+]?(0|[1-9][0-9_]*)", [*"-+0123456789"]),
    ("float", _FLOAT, [*"-+.0123456789"]),
):
    _regexp = re.compile(f"^(?:{_pattern})$", re.ASCII)
    _RecipeLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _regexp, _first)


SCHEMA_VERSION = 2

CHANGEABLE = "search.n_generations, to a greater number, and selection"
"""What may change in a study with results."""


def recipe_differences(in_study: Recipe, in_file: Recipe) -> list[str]:
    """One readable line for each field in which two recipes differ."""
    return list(_differences("", in_study.to_dict(), in_file.to_dict()))


def _differences(path: str, in_study: object, in_file: object) -> Iterator[str]:
    if isinstance(in_study, dict) and isinstance(in_file, dict):
        for name in dict.fromkeys([*in_study, *in_file]):
            ours, theirs = in_study.get(name, _ABSENT), in_file.get(name, _ABSENT)
            yield from _differences(f"{path}.{name}".lstrip("."), ours, theirs)
        return
    ours, theirs = (
        "nothing" if value is _ABSENT else json.dumps(value, sort_keys=True)
        for value in (in_study, in_file)
    )
    if ours != theirs:
        yield f"{path}: study has {ours}, not {theirs}"


_ABSENT = object()


def merged(in_study: Recipe, in_file: Recipe) -> Recipe | None:
    """The recipe with which a study with results continues; None if they differ in what counts.

    The greater number of generations holds, so that workers with an older file can join.
    """
    generations = max(in_study.search.n_generations, in_file.search.n_generations)
    ours, theirs = (
        recipe.changed(
            search=recipe.search.changed(n_generations=generations), selection=in_file.selection
        )
        for recipe in (in_study, in_file)
    )
    return None if recipe_differences(ours, theirs) else theirs


def replace_recipe(study: optuna.Study, recipe: Recipe) -> None:
    """Save a recipe in the study in place of the one that is there."""
    study.set_user_attr(RECIPE, {"schema": SCHEMA_VERSION, "recipe": recipe.to_dict()})


def frozen_recipe(study: optuna.Study) -> Recipe | None:
    """The recipe saved in the study, or None when it has none yet."""
    envelope = study.user_attrs.get(RECIPE)
    if envelope is None:
        return None
    source = f"study {study.study_name!r}, attribute {RECIPE}"
    version = envelope.get("schema") if isinstance(envelope, dict) else None
    if version != SCHEMA_VERSION:
        problem = f"{show(version)} is not allowed, this version of optuna-taylorglo reads "
        problem += f"{SCHEMA_VERSION}: install the version that started the study"
        raise RecipeError("schema", problem, source)
    content = envelope.get("recipe")
    if isinstance(content, dict) and "n_classes" in content:
        return FunctionRecipe.from_plain(content)
    return recipe_from_dict(content, source)


def settled_recipe(study: optuna.Study) -> Recipe | None:
    """The frozen recipe, with what the first worker found: weights, optimizer, scale."""
    recipe, attributes = frozen_recipe(study), study.user_attrs
    if recipe is None:
        return None
    loss, search = recipe.loss, recipe.search
    changes: dict[str, Any] = {}
    if loss.class_weights == "balanced" and (weights := attributes.get(CLASS_WEIGHTS)):
        changes["loss"] = loss.changed(class_weights=tuple(weights))
    if search.scale == "auto" and (scale := attributes.get(SCALE)):
        changes["search"] = search.changed(scale=scale)
    if isinstance(recipe, TrainingRecipe) and recipe.optimizer is None:
        optimizer = attributes.get(OPTIMIZER, "module")
        changes |= {} if optimizer == "module" else {"optimizer": optimizer}
    return recipe.changed(**changes) if changes else recipe


BUNDLED_PACKAGE = "lightning_modules"

_LIGHTNING_BASES = {
    "data.class_path": "LightningDataModule",
    "trainer.callbacks": "Callback",
    "trainer.loggers": "loggers.Logger",
}


def _import_class(field: str, class_path: str, allowed_packages: Sequence[str] = ()) -> type[Any]:
    """The class that a field names, a subclass of what the field takes; else a RecipeError.

    It must be at the top level of a module, and defined in the bundled package or in an allowed
    package or module or below it.
    """
    allowed = (BUNDLED_PACKAGE, *allowed_packages)
    if wrong := [package for package in allowed if not _is_plain_path(package)]:
        raise UsageError(f"allowed package {wrong[0]!r} must be a name such as my_package")

    def refuse(problem: str) -> NoReturn:
        raise RecipeError(field, f"{class_path!r} {problem}")

    def require_inside(module: str, problem: str) -> None:
        if not any(module == name or module.startswith(f"{name}.") for name in allowed):
            package = module.partition(".")[0]
            if not _is_there(package):
                refuse(_no_module(package))
            advice = _how_to_allow(package)
            refuse(
                f"{problem} the allowed packages ({', '.join(allowed)}); if you trust it, {advice}"
            )

    module_name, _, class_name = class_path.rpartition(".")
    if not module_name or not _is_plain_path(class_path):
        refuse(f"is not allowed, {DOTTED_PATH}")
    require_inside(module_name, "lies outside")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            refuse(_no_module(missing))
        refuse(f"cannot be imported: {error}")
    cls = vars(module).get(class_name)
    if not isinstance(cls, type):
        kind = "has no such name" if cls is None else f"holds {type(cls).__name__}, not a class"
        refuse(f"is not a class: {module_name} {kind}")
    require_inside(cls.__module__, f"is defined in {cls.__module__}, outside")
    bases = _bases(field)
    if not issubclass(cls, bases):
        modules = " or ".join(base.__module__ for base in bases)
        refuse(f"is not allowed, must be a subclass of {bases[0].__name__} ({modules})")
    return cls


model_class = partial(_import_class, "model.class_path")
data_module_class = partial(_import_class, "data.class_path")
callback_class = partial(_import_class, "trainer.callbacks")
logger_class = partial(_import_class, "trainer.loggers")


def _bases(field: str) -> tuple[type, ...]:
    """Bases of a field's class in each Lightning in use, after the import of the class."""
    import pytorch_lightning  # noqa: F401 (the one that is always installed)
    from torch import nn

    if field not in _LIGHTNING_BASES:
        return (nn.Module,)
    return tuple(map(attrgetter(_LIGHTNING_BASES[field]), imported_lightnings()))


def _is_plain_path(path: str) -> bool:
    """Whether every part is an ordinary name; keeps out __main__, whose import runs a program."""
    return all(part.isidentifier() and not part.startswith("__") for part in path.split("."))


def _is_there(package: str) -> bool:
    """Whether a package or module can be found, without importing it.

    The working directory counts, because that is where the modules of `--allow` may be.
    """
    if package in sys.modules or importlib.util.find_spec(package) is not None:
        return True
    return PathFinder.find_spec(package, [os.getcwd()]) is not None


def _how_to_allow(package: str) -> str:
    command = Path(sys.argv[0]).stem
    # A storage's URL may hold a password.
    is_ours = command in ("taylorglo", "taylorglo-worker") and "://" not in "".join(sys.argv)
    if is_ours:
        return f"type\n  {shlex.join([command, *sys.argv[1:], '--allow', package])}"
    return f"add --allow {package} to the command, or {package!r} to allowed_packages in Python"


def _no_module(name: str) -> str:
    files = files_beside(name.replace(".", "/"), ".py")
    near = nearest(name, [".".join(Path(file).with_suffix("").parts) for file in files])
    where = near or f"is it in the working directory, {os.getcwd()}?"
    return f"cannot be found: there is no module {name}; {where}"


def imported_lightnings() -> list[ModuleType]:
    """Each Lightning that is imported: `pytorch_lightning`, `lightning.pytorch` or both."""
    names = ("pytorch_lightning", "lightning.pytorch")
    return [sys.modules[name] for name in names if name in sys.modules]


def lightning_of(cls: type[Any]) -> ModuleType | None:
    """The Lightning of a LightningModule or data module; None for any other class."""
    for lightning in imported_lightnings():
        if issubclass(cls, lightning.LightningModule | lightning.LightningDataModule):
            return lightning
    return None


def data_module_for(cls: type[Any], lightning: ModuleType) -> type[Any]:
    """A data module class for a Trainer of `lightning`, a subclass if `cls` is of the other one."""
    own, base = lightning_of(cls), lightning.LightningDataModule
    if own is None or own is lightning:
        return cls
    # A Trainer calls the hooks that differ from those of its own base class. Those that `cls` did
    # not write must not, or two releases that differ in one would make it look overridden.
    inherited = {
        name: hook
        for place in (lightning.core.hooks.DataHooks, base)
        for name, hook in vars(place).items()
        if inspect.isfunction(hook)
        and not name.startswith("_")
        and getattr(cls, name, None) is getattr(own.LightningDataModule, name, None)
    }
    adapted = type(cls.__name__, (cls, base), inherited)
    adapted.__module__, adapted.__qualname__ = cls.__module__, cls.__qualname__
    return adapted
