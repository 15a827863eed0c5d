"""The recipe: what it accepts, what it says when it refuses, and how a study keeps it."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from recipe_cases import (
    BAD_COMBINATIONS,
    BAD_SCHEDULES,
    BAD_VALUES,
    MINIMAL,
    REQUIRED,
    SGD_ONLY,
    minimal,
    recipe_with,
    without,
)

from optuna_taylorglo.attributes import RECIPE
from optuna_taylorglo.errors import RecipeError, RecipeMismatch
from optuna_taylorglo.recipes.load import freeze, frozen_recipe, load_recipe, recipe_differences
from optuna_taylorglo.recipes.schema import (
    EarlyAbortSettings,
    LossSettings,
    Recipe,
    recipe_from_dict,
    recipe_reference,
)
from optuna_taylorglo.recipes.settings import Component, SearchSettings

STUDIES = Path(__file__).parents[2] / "studies"

OLDER_STUDY = """\
{
 "data": {
  "class_path": "lightning_modules.data.Digits",
  "init_args": {}
 },
 "model": {
  "class_path": "lightning_modules.nets.digits_cnn.DigitsCNN",
  "init_args": {}
 },
 "optimizer": {
  "name": "sgd",
  "lr": 0.05,
  "momentum": 0.0,
  "nesterov": false,
  "weight_decay": 0.0
 },
 "schedule": {
  "unit": "epochs",
  "milestones": [],
  "gamma": 0.1
 },
 "batch_size": 64,
 "budget": {
  "unit": "steps",
  "evaluation": 400,
  "full": 4000
 },
 "fitness": {
  "metric": "val_accuracy",
  "take": "last"
 },
 "early_abort": null,
 "early_stop": {
  "unit": "steps",
  "at": 50,
  "keep": 0.5
 },
 "loss": {
  "order": 3,
  "variables": [
   "x",
   "y"
  ],
  "folded": false,
  "class_reduction": "mean"
 },
 "search": {
  "popsize": 28,
  "sigma": 1.2,
  "n_generations": 60,
  "seed": 0,
  "space": "theta",
  "filter": "none",
  "scale": "free",
  "repeats": 1,
  "seed_policy": "independent"
 }
}"""


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
    assert (recipe.search.popsize, recipe.search.sigma) == (28, 1.2)
    assert recipe.search.n_generations == 60
    assert recipe.early_abort is None
    paper_rule = load_text(tmp_path, MINIMAL + "early_abort: {}\n").early_abort
    assert paper_rule == EarlyAbortSettings(unit="epochs", at=10, threshold=0.15, attempts=3)


def test_yaml_numbers_mean_what_they_look_like(tmp_path: Path) -> None:
    text = MINIMAL.replace("0.05", "1e-3").replace("4000", "2e4").replace("64", "1_024")
    text += "schedule: {milestones: [81, 122], gamma: 1}\n"
    text = text.replace("Digits}", "Digits, init_args: {a: 5E-4, b: no, c: 2020-01-01, d: 1:30}}")
    recipe = load_text(tmp_path, text)
    assert recipe.optimizer.lr == 0.001
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
    "empty": ("", ["it is empty", "data, model, checkpoint, optimizer"]),
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


@pytest.mark.parametrize(("path", "value", "expected"), BAD_VALUES)
def test_bad_values(path: str, value: object, expected: list[str]) -> None:
    with pytest.raises(RecipeError) as error:
        recipe_from_dict(recipe_with(path, value), "my.yaml")
    message = str(error.value)
    assert message.startswith(f"my.yaml: {path}: ")
    for part in expected:
        assert part in message


@pytest.mark.parametrize("path", REQUIRED)
def test_missing_fields_are_named(path: str) -> None:
    with pytest.raises(RecipeError, match=rf"^my\.yaml: {path}: missing, must be \w+"):
        recipe_from_dict(without(path), "my.yaml")


def test_every_mistake_is_told_in_a_line_of_its_own() -> None:
    content = minimal()
    content |= {"batch_size": 2.5, "data_dir": "/data"}
    content["search"] = {"sigma": "wide", "seed": -1, 3: 4}
    content["schedule"] = {"milestones": [0, "7"]}
    with pytest.raises(RecipeError) as error:
        recipe_from_dict(content, "my.yaml")
    assert str(error.value).splitlines() == [
        "my.yaml: search.3: unknown field, known are popsize, sigma, n_generations, seed, space, "
        "filter, scale, repeats, seed_policy, overlap, start, method, glo",
        "my.yaml: data_dir: belongs to the machine, not to the recipe: give the worker --data-dir",
        'my.yaml: schedule.milestones: [0, "7"] is not allowed, must be an ascending list of whole '
        "numbers of at least 1 and at most 1000000000",
        "my.yaml: batch_size: 2.5 is not allowed, must be a whole number of at least 1 and at most "
        "10000000",
        'my.yaml: search.sigma: "wide" is not allowed, must be a finite number above 0 and below '
        "100 (text, not a number)",
        "my.yaml: search.seed: -1 is not allowed, must be a whole number of at least 0 and at most "
        "4294967295",
    ]
    assert error.value.field == "search.3"
    assert error.value.problem.startswith("unknown field")


@pytest.mark.parametrize(("name", "value"), SGD_ONLY.items())
def test_adam_refuses_what_only_sgd_has(name: str, value: object) -> None:
    content = minimal()
    content["optimizer"] = {"name": "adam", "lr": 0.001, name: value}
    with pytest.raises(RecipeError, match=f"optimizer.{name}: .* adam has no {name}"):
        recipe_from_dict(content)


@pytest.mark.parametrize(("schedule", "field"), BAD_SCHEDULES)
def test_a_kind_of_schedule_refuses_what_it_does_not_have(
    schedule: dict[str, Any], field: str
) -> None:
    with pytest.raises(RecipeError, match=rf"schedule\.{field}: .* with kind {schedule['kind']}"):
        recipe_from_dict({**minimal(), "schedule": schedule})


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ({"milestones": [5, 9], "warmup": 5}, r"milestones: \[5, 9\] .* begin after warmup, 5"),
        ({"unit": "steps", "warmup": 4000}, r"warmup: 4000 .* below budget\.full, 4000"),
    ],
)
def test_a_warm_up_ends_before_the_rest_of_the_schedule(
    schedule: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RecipeError, match=rf"schedule\.{problem}"):
        recipe_from_dict({**minimal(), "schedule": schedule})


@pytest.mark.parametrize(
    ("loss", "search", "field"),
    BAD_COMBINATIONS,
)
def test_search_options_that_a_loss_does_not_have(
    loss: dict[str, Any], search: dict[str, Any], field: str
) -> None:
    with pytest.raises(RecipeError, match=rf"{field}: \w+ is not allowed with loss\..*; use "):
        recipe_from_dict({**minimal(), "loss": loss, "search": search})
    assert recipe_from_dict({**minimal(), "search": {"filter": "trainable"} | search})
    assert recipe_from_dict({**minimal(), "loss": loss})


def test_only_losses_that_can_learn_have_a_scale_to_normalize() -> None:
    with pytest.raises(RecipeError, match=r"search\.scale: .* with search\.filter none.*trainable"):
        recipe_from_dict({**minimal(), "search": {"scale": "normalized"}})


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


def test_rules_across_fields_are_told_together() -> None:
    search = {"space": "canonical", "filter": "steady", "scale": "normalized"}
    content = {**minimal(), "loss": {"order": 4, "variables": ["x", "z"]}, "search": search}
    with pytest.raises(RecipeError) as error:
        recipe_from_dict(content)
    fields = [line.split(": ")[1] for line in str(error.value).splitlines()]
    assert fields == ["search.space", "search.scale", "search.filter"]


def test_a_changed_copy_is_checked() -> None:
    recipe = recipe_from_dict(minimal())
    budget = recipe.budget.changed(evaluation=7)
    changed = recipe.changed(budget=budget, batch_size=3)
    assert (changed.budget.evaluation, changed.batch_size) == (7, 3)
    assert (recipe.budget.evaluation, recipe.batch_size) == (400, 64)
    assert changed.changed(budget=recipe.budget, batch_size=64) == recipe
    with pytest.raises(RecipeError, match="evaluation: 4001 is not allowed, must be at most"):
        recipe.budget.changed(evaluation=4001)
    with pytest.raises(RecipeError, match=r"batch_sise: unknown field, did you mean batch_size\?"):
        recipe.changed(batch_sise=3)
    with pytest.raises(ValueError, match="frozen"):
        recipe.batch_size = 3  # type: ignore[misc]


def test_plain_values_are_those_that_older_studies_hold() -> None:
    recipe = recipe_from_dict(minimal() | {"early_stop": {"at": 5e1}})
    older = json.loads(OLDER_STUDY)
    assert recipe_from_dict(older) == recipe
    # What is new since then is besides what was there, which is as it was to the letter.
    assert json.dumps(_part_known_to(older, recipe.to_dict()), indent=1) == OLDER_STUDY


def _part_known_to(older: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _part_known_to(older[name], value) if isinstance(value, dict) else value
        for name, value in content.items()
        if name in older
    }


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
    winner = {"schema": 2, "recipe": minimal()}

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
        ({"schema": 2}, "is not a frozen recipe"),
        ({"schema": 3, "recipe": {}}, "schema: 3 is not allowed.*install the version"),
        ({"schema": 2, "recipe": {**minimal(), "batch_size": 0}}, "batch_size: 0 is not allowed"),
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


def test_smoothing_that_is_searched_is_not_set() -> None:
    loss = {"base": "cross_entropy", "label_smoothing": 0.1}
    with pytest.raises(RecipeError, match="smoothing of that family is searched; leave it out"):
        recipe_from_dict({**minimal(), "loss": loss})


def test_later_fields_at_their_default_are_left_out_for_earlier_versions() -> None:
    recipe = recipe_from_dict(minimal())
    content = recipe.to_dict()
    assert content["fitness"] == {"metric": "val_accuracy", "take": "last"}
    assert content["loss"].keys() == {"base", "order", "variables", "folded", "class_reduction"}
    said = {"class_weights": [1.0, 2.0], "label_smoothing": 0.1, "ignore_index": 0}
    changed = {**minimal(), "loss": said, "fitness": {"metric": "val_nll", "mode": "min"}}
    content = recipe_from_dict(changed).to_dict()
    assert content["fitness"]["mode"] == "min"
    assert said.items() <= content["loss"].items()
    assert recipe_from_dict(content) == recipe_from_dict(changed)


@pytest.mark.parametrize(
    ("fitness", "abort", "allowed"),
    [
        ({}, {}, True),
        ({"metric": "val_balanced_accuracy"}, {}, True),
        ({"metric": "val_f1"}, {}, False),
        ({"metric": "val_f1"}, {"threshold": 0.15}, True),
        ({"metric": "val_nll", "mode": "min"}, {"at": 3}, False),
        ({"metric": "val_nll", "mode": "min"}, {"threshold": 2.3}, True),
        ({"metric": "val_nll", "mode": "min"}, None, True),
    ],
)
def test_a_threshold_is_an_accuracy_unless_it_is_given(
    fitness: dict[str, str], abort: dict[str, float] | None, allowed: bool
) -> None:
    content = {**minimal(), "fitness": fitness, "early_abort": abort}
    if allowed:
        recipe = recipe_from_dict(content)
        assert recipe_from_dict(recipe.to_dict()) == recipe
        return
    with pytest.raises(RecipeError, match=r"default 0\.15 is an accuracy") as caught:
        recipe_from_dict(content)
    assert caught.value.field == "early_abort.threshold"


def names_in(content: dict[str, Any], prefix: str = "") -> set[str]:
    """Dotted paths of all fields but sections, and the arguments of components."""
    names: set[str] = set()
    for name, value in content.items():
        if isinstance(value, dict) and name != "init_args":
            names |= names_in(value, f"{prefix}{name}.")
        else:
            names.add(prefix + name)
    return names


def test_reference_names_every_field_with_its_default() -> None:
    reference = recipe_reference()
    rows = [line.split(" | ") for line in reference.splitlines()]
    assert {len(row) for row in rows} == {4}
    fields = {row[0].strip("| `") for row in rows[2:]}
    filled = {
        **minimal(),
        "checkpoint": {"path": "weights.pt"},
        "schedule": {"kind": "cosine", "warmup": 2, "unit": "steps"},
        "trainer": {"accumulate_grad_batches": 2},
        "fitness": {"metric": "val_nll", "mode": "min"},
        "loss": {"class_weights": "balanced", "label_smoothing": 0.1, "ignore_index": 255},
        "early_abort": {"threshold": 3.0},
        "early_stop": {"at": 5},
        "search": {"overlap": 5, "start": {"loss": "baikal"}},
        "selection": {},
    }
    glo = {**minimal(), "search": {"method": "glo", "glo": {}}}
    optional = {"checkpoint", "optimizer", "early_abort", "early_stop", "selection"}
    expected = optional | {"search.start", "search.glo"}
    expected |= names_in(recipe_from_dict(filled).to_dict())
    expected |= names_in(recipe_from_dict(glo).to_dict())
    assert fields == expected
    assert "| `search.sigma` | a finite number above 0 and below 100 | `1.2` |" in reference
    whole = "a whole number of at least 1 and at most 10000000"
    assert f"| `batch_size` | {whole} | required |" in reference


def test_what_earlier_versions_do_not_know_is_written_only_where_it_is_used() -> None:
    """Such a version refuses unknown fields, and may share the study."""
    plain = recipe_from_dict(minimal()).to_dict()
    assert {"checkpoint", "trainer", "selection"}.isdisjoint(plain)
    assert set(plain["schedule"]) == {"unit", "milestones", "gamma"}
    assert "overlap" not in plain["search"]
    newer = {
        "checkpoint": {"path": "weights.pt", "skip": ["head."]},
        "schedule": {"kind": "cosine", "unit": "steps", "warmup": 10},
        "search": {"overlap": 14},
        "trainer": {"gradient_clip_val": 1.0, "callbacks": [{"class_path": "my.Callback"}]},
    }
    recipe = recipe_from_dict(minimal() | newer)
    written = recipe.to_dict()
    assert (written["schedule"]["kind"], written["schedule"]["warmup"]) == ("cosine", 10)
    assert written["search"]["overlap"] == 14
    assert written["checkpoint"] == newer["checkpoint"]
    assert recipe_from_dict(json.loads(json.dumps(written))) == recipe
    without_optimizer = recipe_from_dict(without("optimizer"))
    assert "optimizer" not in without_optimizer.to_dict()
    assert recipe_from_dict(without_optimizer.to_dict()) == without_optimizer


def test_importing_the_recipe_is_light() -> None:
    code = (
        "import sys\n"
        "from optuna_taylorglo.recipes import class_paths, load\n"
        "print([m for m in ('torch', 'pytorch_lightning', 'optuna') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
