"""The recipe: what it accepts, what it says when it refuses, and how a study keeps it."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest

from optuna_taylorglo.attributes import RECIPE
from optuna_taylorglo.errors import RecipeError, RecipeMismatch
from optuna_taylorglo.recipes.loading import (
    Component,
    EarlyAbortSettings,
    LossSettings,
    Recipe,
    SearchSettings,
    freeze,
    frozen_recipe,
    load_recipe,
    recipe_differences,
    recipe_from_dict,
    recipe_reference,
)

STUDIES = Path(__file__).parents[2] / "studies"

MINIMAL = """\
data: {class_path: lightning_modules.data.Digits}
model: {class_path: lightning_modules.nets.digits_cnn.DigitsCNN}
optimiser: {name: sgd, lr: 0.05}
batch_size: 64
budget: {unit: steps, evaluation: 400, full: 4000}
"""


def recipe_with(path: str, value: object) -> dict[str, Any]:
    """The minimal recipe as a mapping, with one field (dotted path) set."""
    content = recipe_from_dict(minimal()).to_dict()
    *sections, name = path.split(".")
    target = content
    for section in sections:
        target[section] = target[section] or {}
        target = target[section]
    target[name] = value
    return content


def minimal() -> dict[str, Any]:
    return {
        "data": {"class_path": "lightning_modules.data.Digits"},
        "model": {"class_path": "lightning_modules.nets.digits_cnn.DigitsCNN"},
        "optimiser": {"name": "sgd", "lr": 0.05},
        "batch_size": 64,
        "budget": {"unit": "steps", "evaluation": 400, "full": 4000},
    }


def load_text(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_bundled_recipe_loads_and_round_trips(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe_from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_bundled_recipes_exist() -> None:
    assert "digits_cnn" in {path.stem for path in STUDIES.glob("*.yaml")}


def test_defaults_are_the_papers_search(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, MINIMAL)
    assert recipe == recipe_from_dict(minimal())
    assert recipe.loss == LossSettings(
        order=3, variables=("x", "y"), folded=False, class_reduction="mean"
    )
    assert (recipe.search.population, recipe.search.sigma) == (28, 1.2)
    assert recipe.search.generations == 60
    assert recipe.early_abort is None
    paper_rule = load_text(tmp_path, MINIMAL + "early_abort: {}\n").early_abort
    assert paper_rule == EarlyAbortSettings(unit="epochs", at=10, threshold=0.15, attempts=3)


def test_yaml_numbers_mean_what_they_look_like(tmp_path: Path) -> None:
    text = MINIMAL.replace("0.05", "1e-3").replace("4000", "2e4").replace("64", "1_024")
    text += "schedule: {milestones: [81, 122], gamma: 1}\n"
    text = text.replace("Digits}", "Digits, init_args: {a: 5E-4, b: no, c: 2020-01-01, d: 1:30}}")
    recipe = load_text(tmp_path, text)
    assert recipe.optimiser.lr == 0.001
    assert recipe.budget.full == 20_000
    assert isinstance(recipe.budget.full, int)
    assert recipe.batch_size == 1024
    assert recipe.schedule.milestones == (81, 122)
    assert isinstance(recipe.schedule.gamma, float)
    assert recipe.data.init_args == {"a": 0.0005, "b": "no", "c": "2020-01-01", "d": "1:30"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "early_stop.at: "),
        (
            {"at": 5, "keep": 1},
            "early_stop.keep: 1 is not allowed, must be a finite number above 0",
        ),
        ({"at": 5, "unit": "minutes"}, 'early_stop.unit: "minutes" is not allowed'),
    ],
)
def test_an_early_stop_must_say_when(section: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe_from_dict(recipe_with("early_stop", section))


def test_an_abort_after_the_budgets_end_is_allowed() -> None:
    content = recipe_with("budget", {"unit": "epochs", "evaluation": 4, "full": 36})
    content["early_abort"] = {"unit": "epochs", "at": 10}
    early_abort = recipe_from_dict(content).early_abort
    assert early_abort is not None
    assert early_abort.at == 10


BAD_FILES = {
    "no such file": (None, ["No such file"]),
    "empty": ("", ["it is empty", "data, model, optimiser"]),
    "only comments": ("# nothing\n", ["it is empty"]),
    "a list": ("- 1\n- 2\n", ["[1, 2] is not allowed", "must be a mapping"]),
    "plain text": ("hello", ['"hello" is not allowed', "must be a mapping"]),
    "not YAML": ("data: [1, 2\n", ["not valid YAML", "line 2"]),
    "two documents": (MINIMAL + "---\n" + MINIMAL, ["not valid YAML", "another document"]),
    "a tab": ("data:\n\tclass_path: a.b\n", ["not valid YAML", "line 2"]),
    "duplicate key": (MINIMAL + "batch_size: 3\n", ["duplicate key", "batch_size", "line 6"]),
    "duplicate nested key": (
        MINIMAL + "search:\n  seed: 1\n  seed: 2\n",
        ["duplicate key", "seed", "line 8"],
    ),
    "a Python object": (
        MINIMAL + "search: !!python/object/apply:os.system [echo]\n",
        ["not valid YAML", "python/object"],
    ),
    "not UTF-8": (b"data: \xff\xfe\n", ["not UTF-8"]),
    "deep nesting": ("[" * 5000, ["nested too deeply"]),
    "an alias to itself": (
        MINIMAL.replace("Digits}", "Digits, init_args: &a {a: *a}}"),
        ["data.init_args", "Circular"],
    ),
    "an octal number": (MINIMAL.replace("64", "010"), ["batch_size", '"010"', "not a number"]),
}


@pytest.mark.parametrize(("content", "expected"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files(tmp_path: Path, content: str | bytes | None, expected: list[str]) -> None:
    path = tmp_path / "bad.yaml"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    for part in expected:
        assert part in message


def test_a_directory_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot be read: Is a directory"):
        load_recipe(tmp_path)


BAD_VALUES: list[tuple[str, object, list[str]]] = [
    ("optimizer", {}, ["unknown field", "did you mean optimiser?"]),
    ("serach", {}, ["did you mean search?"]),
    ("lr", 0.1, ["did you mean optimiser.lr?"]),
    ("search.momentum", 0.9, ["did you mean optimiser.momentum?"]),
    ("search.lambda", 28, ["unknown field", "known are population, sigma"]),
    ("search.popluation", 28, ["did you mean population?"]),
    ("data_dir", "/data", ["belongs to the machine", "--data-dir"]),
    ("search.device", "cuda", ["belongs to the machine", "--device"]),
    ("data.init_args", {"data_dir": "/data"}, ["belongs to the machine", "--data-dir"]),
    ("data", "lightning_modules.data.Digits", ["must be a mapping", "class_path, init_args"]),
    ("data.class_path", "Digits", ['"Digits" is not allowed', "dotted path"]),
    ("data.class_path", "os.system('x')", ["dotted path"]),
    ("model.class_path", 3, ["3 is not allowed", "dotted path"]),
    ("model.init_args", [1], ["[1] is not allowed", "mapping"]),
    ("model.init_args", {"a b": 1}, ["no argument name"]),
    ("model.init_args", {"width": float("nan")}, ["plain JSON"]),
    ("model.init_args", {"net": object()}, ["plain JSON", "not JSON serializable"]),
    ("optimiser.name", "SGD", ['"SGD" is not allowed', "sgd, adam or adamw", "mean sgd?"]),
    ("optimiser.name", None, ["null is not allowed"]),
    ("optimiser.lr", 0, ["0 is not allowed", "above 0"]),
    ("optimiser.lr", -1e-3, ["-0.001 is not allowed"]),
    ("optimiser.lr", float("nan"), ["NaN is not allowed", "finite"]),
    ("optimiser.lr", float("inf"), ["Infinity is not allowed", "finite"]),
    ("optimiser.lr", 10**400, ["finite"]),
    ("optimiser.lr", True, ["true is not allowed", "number"]),
    ("optimiser.lr", "fast", ['"fast" is not allowed', "text, not a number"]),
    ("optimiser.momentum", 1, ["1 is not allowed", "below 1"]),
    ("optimiser.nesterov", 1, ["1 is not allowed", "true or false"]),
    ("optimiser.nesterov", True, ["needs a momentum"]),
    ("optimiser.weight_decay", -1, ["at least 0"]),
    ("schedule.unit", "epoch", ["steps or epochs", "did you mean epochs?"]),
    ("schedule.milestones", [122, 81], ["[122, 81] is not allowed", "ascending"]),
    ("schedule.milestones", [0, 81], ["ascending list of whole numbers of at least 1"]),
    ("schedule.milestones", 81, ["81 is not allowed", "list"]),
    ("schedule.gamma", 0, ["above 0"]),
    ("batch_size", 0, ["0 is not allowed", "at least 1"]),
    ("batch_size", 2.5, ["2.5 is not allowed", "whole number"]),
    ("batch_size", False, ["false is not allowed"]),
    ("batch_size", float("inf"), ["whole number"]),
    ("budget.evaluation", 4001, ["4001 is not allowed", "at most budget.full, 4000"]),
    ("budget.unit", "minutes", ["steps or epochs"]),
    ("fitness.metric", "test_accuracy", ["never one of the test set"]),
    ("fitness.metric", "", ["metric"]),
    ("fitness.take", "mean", ["last or best"]),
    ("early_abort", False, ["false is not allowed", "unit, at, threshold, attempts"]),
    ("early_abort.attempts", 0, ["at least 1"]),
    ("early_stop.at", 0, ["at least 1"]),
    ("early_stop", True, ["true is not allowed", "unit, at, keep"]),
    ("loss.order", 0, ["at least 1"]),
    ("loss.order", 99, ["at most 10"]),
    ("loss.variables", "xy", ['"xy" is not allowed', "such as [x, y]"]),
    ("loss.variables", ["x", "q"], ["such as [x, y]"]),
    ("loss.variables", ["x", "t"], ["then y or z"]),
    ("loss.variables", ["y", "x"], ["in this order"]),
    ("loss.variables", ["x", "y", "y"], ["in this order"]),
    ("loss.variables", ["y"], ["x, then"]),
    ("loss.class_reduction", "none", ["mean or sum"]),
    ("search.population", 1, ["at least 2"]),
    ("search.sigma", 0.0, ["above 0"]),
    ("search.sigma", 1e6, ["below 100"]),
    ("search.generations", 0, ["at least 1"]),
    ("search.seed", -1, ["at least 0"]),
    ("search.seed", 2**32, ["at most 4294967295"]),
    ("search.space", "thetas", ["theta or canonical", "did you mean theta?"]),
    ("search.filter", False, ["none, trainable or steady"]),
    ("search.scale", "normalized", ["did you mean normalised?"]),
    ("search.repeats", 0, ["at least 1"]),
    ("search.seed_policy", "shared", ["independent or common"]),
]


@pytest.mark.parametrize(("path", "value", "expected"), BAD_VALUES)
def test_bad_values(path: str, value: object, expected: list[str]) -> None:
    with pytest.raises(RecipeError) as error:
        recipe_from_dict(recipe_with(path, value), "my.yaml")
    message = str(error.value)
    assert message.startswith(f"my.yaml: {path}: ")
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    "path", ["data", "model.class_path", "optimiser.lr", "batch_size", "budget.full"]
)
def test_missing_fields_are_named(path: str) -> None:
    content = minimal()
    *sections, name = path.split(".")
    target = content
    for section in sections:
        target = target[section]
    del target[name]
    with pytest.raises(RecipeError, match=rf"^my\.yaml: {path}: missing, must be \w+"):
        recipe_from_dict(content, "my.yaml")


@pytest.mark.parametrize(("name", "value"), [("momentum", 0.9), ("nesterov", True)])
def test_adam_refuses_what_only_sgd_has(name: str, value: object) -> None:
    content = minimal()
    content["optimiser"] = {"name": "adam", "lr": 0.001, name: value}
    with pytest.raises(RecipeError, match=f"optimiser.{name}: .* adam has no {name}"):
        recipe_from_dict(content)


@pytest.mark.parametrize(
    ("loss", "search", "field"),
    [
        ({"order": 4}, {"space": "canonical"}, "search.space"),
        ({"variables": ["x", "z"]}, {"space": "canonical"}, "search.space"),
        ({"variables": ["x", "y", "t"]}, {"filter": "trainable"}, "search.filter"),
        ({"variables": ["x", "y", "t"]}, {"filter": "steady"}, "search.filter"),
        ({"order": 4}, {"filter": "steady"}, "search.filter"),
        ({"variables": ["x", "y", "z"]}, {"scale": "normalised"}, "search.scale"),
    ],
)
def test_search_options_that_a_loss_does_not_have(
    loss: dict[str, Any], search: dict[str, Any], field: str
) -> None:
    with pytest.raises(RecipeError, match=rf"{field}: \w+ is not allowed with loss\..*; use "):
        recipe_from_dict({**minimal(), "loss": loss, "search": search})
    assert recipe_from_dict({**minimal(), "search": {"filter": "trainable"} | search})
    assert recipe_from_dict({**minimal(), "loss": loss})


def test_only_losses_that_can_learn_have_a_scale_to_normalise() -> None:
    with pytest.raises(RecipeError, match=r"search\.scale: .* with search\.filter none.*trainable"):
        recipe_from_dict({**minimal(), "search": {"scale": "normalised"}})


def test_keys_that_are_no_text_are_refused() -> None:
    with pytest.raises(RecipeError, match="recipe: 1: unknown field"):
        recipe_from_dict(minimal() | {1: 2})


def test_sections_are_checked_when_built_in_python() -> None:
    with pytest.raises(RecipeError, match="sigma: -1 is not allowed"):
        SearchSettings(sigma=-1)
    recipe = recipe_from_dict(minimal())
    parts = {name: getattr(recipe, name) for name in minimal()}
    assert Recipe(**parts) == recipe
    with pytest.raises(RecipeError, match=r"data: .* must be Component"):
        Recipe(**{**parts, "data": {"class_path": "a.b"}})
    with pytest.raises(RecipeError, match=r"loss: null is not allowed"):
        Recipe(**parts, loss=None)  # type: ignore[arg-type]


def test_a_recipe_keeps_its_own_copy_of_arguments() -> None:
    arguments: dict[str, Any] = {"widths": [8, 16]}
    component = Component(class_path="lightning_modules.nets.mlp.MLP", init_args=arguments)
    arguments["widths"].append(32)
    assert component.init_args == {"widths": [8, 16]}


def study_storages(tmp_path: Path) -> list[optuna.storages.BaseStorage | str | None]:
    return [None, f"sqlite:///{tmp_path}/study.db"]


def test_a_study_keeps_its_recipe(tmp_path: Path) -> None:
    recipe = recipe_from_dict(recipe_with("search.sigma", 0.1 + 0.2))
    for storage in study_storages(tmp_path):
        study = optuna.create_study(study_name="s", storage=storage, direction="maximize")
        assert frozen_recipe(study) is None
        freeze(study, recipe)
        assert frozen_recipe(study) == recipe
        freeze(study, copy.deepcopy(recipe))
        if storage is not None:
            assert frozen_recipe(optuna.load_study(study_name="s", storage=storage)) == recipe


def test_another_recipe_is_refused_field_by_field() -> None:
    study = optuna.create_study(study_name="mine", direction="maximize")
    freeze(study, recipe_from_dict(minimal()))
    content = recipe_with("search.sigma", 0.5)
    content["early_abort"] = {}
    content["data"]["init_args"] = {"fraction": 1}
    content["schedule"]["milestones"] = [10, 20]
    other = recipe_from_dict(content)
    with pytest.raises(RecipeMismatch) as error:
        freeze(study, other)
    assert error.value.differences == [
        "data.init_args.fraction: study has nothing, file has 1",
        "schedule.milestones: study has [], file has [10, 20]",
        "early_abort: study has null, file has "
        '{"at": 10, "attempts": 3, "threshold": 0.15, "unit": "epochs"}',
        "search.sigma: study has 1.2, file has 0.5",
    ]
    assert "study 'mine'" in str(error.value)
    assert "  search.sigma: study has 1.2, file has 0.5\n" in str(error.value)
    assert frozen_recipe(study) == recipe_from_dict(minimal())
    assert recipe_differences(other, other) == []


def test_true_and_one_are_different_arguments() -> None:
    study = optuna.create_study(direction="maximize")
    freeze(study, recipe_from_dict(recipe_with("model.init_args", {"bias": True})))
    with pytest.raises(RecipeMismatch, match=r"model\.init_args\.bias: study has true, file has 1"):
        freeze(study, recipe_from_dict(recipe_with("model.init_args", {"bias": 1})))


def test_the_loser_of_a_simultaneous_first_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study(direction="maximize")
    winner = {"schema": 1, "recipe": minimal()}

    def overtaken(key: str, value: Any) -> None:
        optuna.Study.set_user_attr(study, key, winner)

    monkeypatch.setattr(study, "set_user_attr", overtaken)
    with pytest.raises(RecipeMismatch, match=r"search\.seed: study has 0, file has 1"):
        freeze(study, recipe_from_dict(recipe_with("search.seed", 1)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a string, as `optuna study set-user-attr` writes", "is not a frozen recipe"),
        ([1], "is not a frozen recipe"),
        ({"recipe": minimal()}, "is not a frozen recipe"),
        ({"schema": 1}, "is not a frozen recipe"),
        ({"schema": 2, "recipe": {}}, "schema: 2 is not allowed.*install the version"),
        ({"schema": 1, "recipe": {**minimal(), "batch_size": 0}}, "batch_size: 0 is not allowed"),
    ],
)
def test_a_study_with_an_unreadable_recipe(value: object, expected: str) -> None:
    study = optuna.create_study(study_name="odd", direction="maximize")
    study.set_user_attr(RECIPE, value)
    with pytest.raises(
        RecipeError, match=f"^study 'odd', attribute taylorglo:recipe: .*{expected}"
    ):
        frozen_recipe(study)


def test_a_recipe_too_long_for_mysql_is_refused() -> None:
    study = optuna.create_study(direction="maximize")
    recipe = recipe_from_dict(recipe_with("data.init_args", {"note": "θ" * 12_000}))
    with pytest.raises(RecipeError, match="at most 60000 fit"):
        freeze(study, recipe)


def test_reference_names_every_field_with_its_default() -> None:
    reference = recipe_reference()
    rows = [line.split(" | ") for line in reference.splitlines()]
    assert {len(row) for row in rows} == {4}
    fields = {row[0].strip("| `") for row in rows[2:]}
    filled = {**minimal(), "early_abort": {}, "early_stop": {"at": 5}}
    content = recipe_from_dict(filled).to_dict()
    expected = {"early_abort", "early_stop"} | {
        f"{name}.{inner}" if isinstance(value, dict) else name
        for name, value in content.items()
        for inner in (value if isinstance(value, dict) else [""])
    }
    assert fields == expected
    assert "| `search.sigma` | a finite number above 0 and below 100 | `1.2` |" in reference
    assert "| `batch_size` | a whole number of at least 1 | required |" in reference


def test_importing_the_recipe_is_light() -> None:
    code = (
        "import sys, optuna_taylorglo.recipes.loading, optuna_taylorglo.recipes.class_paths\n"
        "print([m for m in ('torch', 'pytorch_lightning', 'optuna') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
