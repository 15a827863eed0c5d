"""Recipes from YAML files, the package and studies; a class path names an allowed class only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import pytorch_lightning as pl
from recipe_cases import glo, minimal, recipe_with
from searches import ROOT

from optuna_taylorglo.attributes import CLASS_WEIGHTS, OPTIMIZER, RECIPE, SCALE
from optuna_taylorglo.errors import RecipeError, UsageError
from optuna_taylorglo.recipes.load import (
    bundled_recipes,
    data_module_class,
    find_recipe,
    frozen_recipe,
    line_of,
    load_recipe,
    merged,
    model_class,
    recipe_differences,
    replace_recipe,
    settled_recipe,
)
from optuna_taylorglo.recipes.schema import recipe_from_dict
from optuna_taylorglo.recipes.settings import DEFAULT_OPTIMIZER

MINIMAL = "".join(f"{name}: {json.dumps(value)}\n" for name, value in minimal().items())


@pytest.fixture
def recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "recipe.yaml"


def test_yaml_numbers_mean_what_they_look_like(recipe_file: Path) -> None:
    text = MINIMAL.replace("0.05", "1e-3").replace("4000", "2e4").replace("64", "1_024")
    text += "schedule: {milestones: [81, 122], gamma: 1}\n"
    text = text.replace('s"}', 's", init_args: {a: 5E-4, b: no, c: 2020-01-01, d: 1:30}}', 1)
    recipe_file.write_text(text)
    recipe = load_recipe(recipe_file)
    assert recipe.optimizer is not None
    assert recipe.optimizer.lr == 0.001
    assert repr(recipe.budget.full) == "20000"
    assert recipe.batch_size == 1024
    assert recipe.schedule.milestones == (81, 122)
    assert recipe.data.init_args == {"a": 0.0005, "b": "no", "c": "2020-01-01", "d": "1:30"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        ("", "it is empty, must be a mapping with the fields preset, data, model, checkpoint"),
        ("data: [1, 2\n", "is not valid YAML"),
        (MINIMAL + "---\n" + MINIMAL, "another document"),
        ("data:\n\tclass_path: a.b\n", "line 2"),
        (MINIMAL + "batch_size: 3\n", 'duplicate key "batch_size"'),
        (MINIMAL + "search:\n  seed: 1\n  seed: 2\n", "line 8"),
        (MINIMAL + "search: !!python/object/apply:os.system [echo]\n", "python/object"),
        (b"data: \xff\xfe\n", "is not valid YAML: 'utf-8' codec"),
        ("[" * 1000, "is not valid YAML: maximum recursion"),
        (MINIMAL.replace('s"}', 's", init_args: &a {a: *a}}', 1), "Circular"),
        (MINIMAL.replace("64", "010"), 'batch_size: "010" is not allowed, must be a whole number'),
    ],
)
def test_bad_files(recipe_file: Path, content: str | bytes | None, expected: str) -> None:
    if content is not None:
        recipe_file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(RecipeError) as error:
        load_recipe(recipe_file)
    assert str(error.value).startswith(f"{recipe_file}: ")
    assert expected in str(error.value)


def test_the_line_of_a_field_or_of_its_section(recipe_file: Path) -> None:
    recipe_file.write_text(MINIMAL + "search:\n  seed: 1\n")
    fields = ("batch_size", "search.seed", "search.sigma", "loss.order")
    assert [line_of(recipe_file, field) for field in fields] == [4, 7, 6, None]


def test_a_path_that_exists_wins_over_the_name_of_a_bundled_recipe(recipe_file: Path) -> None:
    assert set(bundled_recipes().values()) == set(ROOT.glob("studies/*.yaml"))
    assert find_recipe("digits_cnn") == ROOT / "studies" / "digits_cnn.yaml"
    Path("digits_cnn").touch()
    assert find_recipe("digits_cnn") == Path("digits_cnn")


@pytest.mark.parametrize("wrong", ["digits_cn", "Digits-CNN", "studies/digits_cnn.yaml"])
@pytest.mark.usefixtures("recipe_file")
def test_other_names_are_answered_with_near_ones(wrong: str) -> None:
    Path("my_study.yaml").touch()
    with pytest.raises(RecipeError, match=f"^{wrong}: No such file.* near to it are digits_cnn"):
        find_recipe(wrong)
    with pytest.raises(RecipeError, match=r"there are cifar10_alexnet, .*svhn_wrn_28_5_cutout$"):
        find_recipe("qqq")
    for misspelt in ("my_studdy.yaml", "my_study", "./my_study.yml"):
        with pytest.raises(RecipeError, match=r"near to it are my_study\.yaml"):
            find_recipe(misspelt)


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study(study_name="mine", direction="maximize")


def test_a_study_holds_its_recipe(tmp_path: Path) -> None:
    recipe = recipe_from_dict(recipe_with("search.sigma", 0.1 + 0.2))
    url = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(study_name="s", storage=url, direction="maximize")
    assert frozen_recipe(study) is settled_recipe(study) is None
    replace_recipe(study, recipe)
    assert frozen_recipe(optuna.load_study(study_name="s", storage=url)) == recipe


def test_differences_are_told_field_by_field() -> None:
    sections = {"search": {"sigma": 0.6}, "schedule": {"milestones": [10, 20]}, "early_stop": None}
    content = minimal(**sections, early_abort={})
    content["data"]["init_args"] = {"fraction": 1}
    other = recipe_from_dict(content)
    assert recipe_differences(recipe_from_dict(minimal()), other) == [
        "data.init_args.fraction: study has nothing, not 1",
        "schedule.milestones: study has [], not [10, 20]",
        "early_abort: study has null, not "
        '{"at": 10, "attempts": 3, "threshold": 0.15, "unit": "epochs"}',
        "search.sigma: study has 0.5, not 0.6",
    ]
    assert recipe_differences(other, other) == []
    true, one = (
        recipe_from_dict(recipe_with("model.init_args", {"bias": bias})) for bias in (True, 1)
    )
    assert recipe_differences(true, one) == ["model.init_args.bias: study has true, not 1"]


def test_a_longer_search_and_another_selection_may_be_merged() -> None:
    held = recipe_from_dict(recipe_with("search.n_generations", 9))
    asked = recipe_from_dict(minimal(search={"n_generations": 5}, selection={}))
    assert merged(held, asked) == held.changed(selection=asked.selection)
    assert merged(held, recipe_from_dict(recipe_with("search.seed", 1))) is None


def test_balanced_weights_are_those_of_the_first_worker(study: optuna.Study) -> None:
    replace_recipe(study, recipe_from_dict(recipe_with("loss.class_weights", "balanced")))
    for stored, expected in ((None, "balanced"), ([0.5, 2.0], (0.5, 2.0))):
        study.set_user_attr(CLASS_WEIGHTS, stored)
        settled = settled_recipe(study)
        assert settled is not None
        assert settled.loss.class_weights == expected


def test_the_optimizer_that_no_recipe_names_is_the_one_that_the_first_worker_found(
    study: optuna.Study,
) -> None:
    named, unnamed = recipe_from_dict(minimal()), recipe_from_dict(minimal(optimizer=None))
    for recipe, stored, expected in (
        (unnamed, "module", None),
        (unnamed, DEFAULT_OPTIMIZER.to_dict(), DEFAULT_OPTIMIZER),
        (named, "module", named.optimizer),
        (named, DEFAULT_OPTIMIZER.to_dict(), named.optimizer),
    ):
        replace_recipe(study, recipe)
        study.set_user_attr(OPTIMIZER, stored)
        assert settled_recipe(study) == recipe.changed(optimizer=expected)
    assert frozen_recipe(study) == named


@pytest.mark.parametrize("search", [{}, glo()])
def test_the_scale_that_is_searched_is_the_one_that_the_first_worker_found(
    study: optuna.Study, search: dict[str, Any]
) -> None:
    replace_recipe(study, recipe_from_dict(minimal(search=search)))
    for scale in ("free", "learning_rate", "fixed"):
        study.set_user_attr(SCALE, scale)
        settled = settled_recipe(study)
        assert settled is not None
        assert settled.search.scale == scale


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a string, as `optuna study set-user-attr` writes", "schema: null is not allowed"),
        ({"schema": 3, "recipe": {}}, "schema: 3 is not allowed.*install the version"),
        ({"schema": 2, "recipe": minimal(batch_size=0)}, "batch_size: 0 is not allowed"),
    ],
)
def test_a_study_with_an_unreadable_recipe(
    study: optuna.Study, value: object, expected: str
) -> None:
    study.set_user_attr(RECIPE, value)
    with pytest.raises(RecipeError, match=f"^study 'mine', attribute {RECIPE}: .*{expected}"):
        frozen_recipe(study)


NETS = """
import os
import pytorch_lightning as pl
from torch import nn
from torch.nn import Linear
from stranger import Foreign

class Net(nn.Module):
    pass

class Lit(pl.LightningModule):
    pass

class Data(pl.LightningDataModule):
    pass

def build():
    raise AssertionError("called")
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """my_package (with my_package.nets), my_package_evil and stranger, importable."""
    evil = "import pathlib; pathlib.Path(__file__).with_name('imported').touch()\n"
    files = {
        "my_package/__init__.py": "",
        "my_package/nets.py": NETS,
        "my_package/broken.py": "import a_module_that_does_not_exist\n",
        "my_package/circular.py": "from my_package import absent\n",
        "my_package/__main__.py": evil,
        "my_package_evil.py": evil + "from torch import nn\nclass Net(nn.Module): pass\n",
        "stranger.py": "from torch import nn\nclass Foreign(nn.Module): pass\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in list(sys.modules):
        if name.partition(".")[0] in {"my_package", "my_package_evil", "stranger"}:
            del sys.modules[name]


@pytest.mark.parametrize("allowed", ["my_package", "my_package.nets"])
@pytest.mark.usefixtures("packages")
def test_allowed_classes_are_found(allowed: str) -> None:
    assert model_class("my_package.nets.Net", [allowed]).__name__ == "Net"
    assert issubclass(model_class("my_package.nets.Lit", [allowed]), pl.LightningModule)
    assert issubclass(data_module_class("my_package.nets.Data", [allowed]), pl.LightningDataModule)


@pytest.mark.parametrize(
    ("class_path", "expected"),
    [
        ("my_package_evil.Net", "lies outside .*add --allow my_package_evil to the command"),
        ("os.system", "lies outside .*--allow os to .* or 'os' to allowed_packages in Python"),
        ("my_packag.nets.Net", "no module my_packag; is it in the working directory, /"),
        ("my_package.net.Net", "no module my_package.net;"),
        ("my_package.nets.os.system", "no module my_package.nets.os;"),
        ("my_package.nets.Linear", "is defined in torch.nn.*--allow torch"),
        ("my_package.nets.Foreign", "is defined in stranger.*--allow stranger"),
        ("my_package.nets.os", "holds module, not a class"),
        ("my_package.nets.build", "holds function, not a class"),
        ("my_package.nets.Absent", "has no such name"),
        ("my_package.nets.Data", "must be a subclass of Module"),
        ("my_package.circular.Net", "cannot be imported: cannot import name 'absent'"),
        ("my_package.broken.Net", "cannot be imported: .*a_module_that_does_not_exist"),
        ("my_package.__main__.Net", "dotted path"),
        ("my_package.nets.__builtins__", "dotted path"),
        ("my_package..Net", "dotted path"),
        ("", "dotted path"),
    ],
)
def test_everything_else_is_refused(packages: Path, class_path: str, expected: str) -> None:
    with pytest.raises(RecipeError, match=f"^model.class_path: {class_path!r} .*{expected}"):
        model_class(class_path, ["my_package"])
    assert not list(packages.rglob("imported"))


@pytest.mark.usefixtures("packages")
def test_nothing_but_the_bundled_modules_is_allowed_by_default() -> None:
    with pytest.raises(RecipeError, match=r"allowed packages \(lightning_modules\).*my_package"):
        model_class("my_package.nets.Net")
    assert "my_package" not in sys.modules
    with pytest.raises(RecipeError, match=r"data\.class_path: .*subclass of LightningDataModule"):
        data_module_class("my_package.nets.Net", ["my_package"])
    with pytest.raises(UsageError, match="must be a name such as my_package"):
        model_class("my_package.nets.Net", ["__main__"])


def test_a_command_is_told_with_what_it_lacks(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, advice in (
        ("/bin/taylorglo check fast.yaml", "type\n  taylorglo check fast.yaml --allow my_package"),
        (
            "taylorglo-worker --study-name s",
            "type\n  taylorglo-worker --study-name s --allow my_package",
        ),
        # The URL may hold a password.
        ("taylorglo run r --storage db://u:secret@h", "add --allow my_package to the command"),
        ("search.py", "add --allow my_package to the command"),
    ):
        monkeypatch.setattr(sys, "argv", words.split())
        with pytest.raises(RecipeError) as refused:
            model_class("my_package.nets.Net")
        assert f"if you trust it, {advice}" in str(refused.value)
        assert "secret" not in str(refused.value)


def test_a_module_that_is_missing_has_a_near_one(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(packages)
    for class_path, near in (
        ("strange.Net", "stranger"),
        ("my_package.net.Net", "my_package.nets"),
    ):
        with pytest.raises(RecipeError, match=f"there is no module .*; did you mean {near}[?]$"):
            model_class(class_path, ["my_package"])
