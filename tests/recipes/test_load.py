"""Recipes from YAML files, from the package and from studies."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from recipe_cases import minimal, recipe_with
from searches import ROOT

from optuna_taylorglo.attributes import CLASS_WEIGHTS, RECIPE
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.load import (
    bundled_recipes,
    find_recipe,
    frozen_recipe,
    line_of,
    load_recipe,
    merged,
    recipe_differences,
    replace_recipe,
    settled_recipe,
)
from optuna_taylorglo.recipes.schema import recipe_from_dict

MINIMAL = """\
data: {class_path: lightning_modules.data.Digits}
model: {class_path: lightning_modules.nets.digits_cnn.DigitsCNN}
optimizer: {name: sgd, lr: 0.05}
batch_size: 64
budget: {unit: steps, evaluation: 400, full: 4000}
"""


@pytest.fixture
def recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "recipe.yaml"


def test_yaml_numbers_mean_what_they_look_like(recipe_file: Path) -> None:
    text = MINIMAL.replace("0.05", "1e-3").replace("4000", "2e4").replace("64", "1_024")
    text += "schedule: {milestones: [81, 122], gamma: 1}\n"
    text = text.replace("Digits}", "Digits, init_args: {a: 5E-4, b: no, c: 2020-01-01, d: 1:30}}")
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
        ("", "it is empty, must be a mapping with the fields data, model, checkpoint, optimizer"),
        ("- 1\n- 2\n", "[1, 2] is not allowed, must be a mapping"),
        ("data: [1, 2\n", "is not valid YAML"),
        (MINIMAL + "---\n" + MINIMAL, "another document"),
        ("data:\n\tclass_path: a.b\n", "line 2"),
        (MINIMAL + "batch_size: 3\n", 'duplicate key "batch_size"'),
        (MINIMAL + "search:\n  seed: 1\n  seed: 2\n", "line 8"),
        (MINIMAL + "search: !!python/object/apply:os.system [echo]\n", "python/object"),
        (b"data: \xff\xfe\n", "is not valid YAML: 'utf-8' codec"),
        ("[" * 1000, "is not valid YAML: maximum recursion"),
        (MINIMAL.replace("Digits}", "Digits, init_args: &a {a: *a}}"), "Circular"),
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


def test_a_directory_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot be read: Is a directory"):
        load_recipe(tmp_path)


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
    with pytest.raises(RecipeError, match=f"^{wrong}: No such file.* near to it are digits_cnn"):
        find_recipe(wrong)
    with pytest.raises(RecipeError, match=r"there are cifar10_alexnet, .*svhn_wrn_28_5_cutout$"):
        find_recipe("qqq")


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
    sections = {"search": {"sigma": 0.5}, "schedule": {"milestones": [10, 20]}, "early_stop": None}
    content = minimal(**sections, early_abort={})
    content["data"]["init_args"] = {"fraction": 1}
    other = recipe_from_dict(content)
    assert recipe_differences(recipe_from_dict(minimal()), other) == [
        "data.init_args.fraction: study has nothing, file has 1",
        "schedule.milestones: study has [], file has [10, 20]",
        "early_abort: study has null, file has "
        '{"at": 10, "attempts": 3, "threshold": 0.15, "unit": "epochs"}',
        "search.sigma: study has 1.2, file has 0.5",
    ]
    assert recipe_differences(other, other) == []
    true, one = (
        recipe_from_dict(recipe_with("model.init_args", {"bias": bias})) for bias in (True, 1)
    )
    assert recipe_differences(true, one) == ["model.init_args.bias: study has true, file has 1"]


def test_a_longer_search_and_another_selection_may_be_merged() -> None:
    held = recipe_from_dict(recipe_with("search.n_generations", 9))
    asked = recipe_from_dict(minimal(search={"n_generations": 5}, selection={}))
    assert merged(held, asked) == recipe_from_dict(
        minimal(search={"n_generations": 9}, selection={})
    )
    assert merged(held, recipe_from_dict(recipe_with("search.seed", 1))) is None


def test_balanced_weights_are_those_of_the_first_worker(study: optuna.Study) -> None:
    replace_recipe(study, recipe_from_dict(recipe_with("loss.class_weights", "balanced")))
    for stored, expected in ((None, "balanced"), ([0.5, 2.0], (0.5, 2.0))):
        study.set_user_attr(CLASS_WEIGHTS, stored)
        settled = settled_recipe(study)
        assert settled is not None
        assert settled.loss.class_weights == expected


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
