"""The recipe: what it accepts, what it says when it refuses, and its reference."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from recipe_cases import glo, minimal, recipe_with
from searches import ROOT

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.load import _RecipeLoader, load_recipe
from optuna_taylorglo.recipes.schema import (
    SCHEMA_FILE,
    BudgetSettings,
    EarlyAbortSettings,
    LossSettings,
    SelectionSettings,
    TrainingRecipe,
    function_recipe,
    own_loss_warning,
    recipe_from_dict,
    search_size,
)
from optuna_taylorglo.recipes.settings import DEFAULT_OPTIMIZER, Component, SearchSettings

STUDIES = sorted(ROOT.glob("studies/*.yaml"))
SCHEMA = Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
MOST = "must be less than or equal to"
LEAST = "must be greater than or equal to"

BAD_VALUES: list[tuple[str, object, str]] = [
    # Names.
    ("serach", {}, "unknown field, did you mean search?"),
    ("lr", 0.1, "unknown field, did you mean optimizer.lr?"),
    ("search.lambda", 28, "unknown field, known are method, popsize, sigma"),
    ("search.glo", {"max_dept": 3}, "unknown field, did you mean max_depth?"),
    ("data_dir", "/data", "belongs to the machine, not to the recipe: give the worker --data-dir"),
    ("data.init_args", {"data_dir": "/data"}, "data_dir belongs to the machine"),
    ("trainer.max_steps", 5, "belongs to the budget"),
    ("trainer.logger", True, "did you mean loggers, a list?"),
    # Types.
    ("data.class_path", "os.system('x')", "must be a dotted path to a class"),
    ("model.init_args", [1], "[1] is not allowed, must be a mapping"),
    ("model.init_args", {"width": float("nan")}, "Out of range float values"),
    ("optimizer.name", "SGD", "\"SGD\" is not allowed, must be 'sgd', 'adam' or 'adamw' (did yo"),
    ("optimizer.lr", True, "true is not allowed, must be a number"),
    ("optimizer.lr", "fast", '"fast" is not allowed, must be a number, and this is text'),
    ("optimizer.lr", float("nan"), "NaN is not allowed, must be a finite number"),
    ("schedule.milestones", [122, 81], "must be an ascending list of whole numbers"),
    ("checkpoint", "weights.pt", "must be a mapping with the fields path, skip"),
    ("batch_size", 2.5, "2.5 is not allowed, must be a whole number"),
    ("checkpoint.path", "", "must not be empty"),
    ("loss.variables", "xy", "must be a list"),
    ("loss.variables", ["x", "t"], "must be x, then y or z or both, then perhaps t"),
    ("loss.class_weights", "balancd", "must be balanced or a list of finite numbers above 0"),
    ("search.scale", "normalised", "did you mean normalized?"),
    ("preset", "papers", "must be 'default' or 'paper' (did you mean paper?)"),
    ("preset", ["paper"], "must be 'default' or 'paper'"),
    # The test set judges nothing in a search.
    ("fitness.metric", "test_accuracy", "never one of the test set"),
    # Limits; what would fill the memory, or overflow a counter, is refused at the door.
    ("optimizer.lr", 0, "0 is not allowed, must be greater than 0"),
    ("search.popsize", 1, f"{LEAST} 2"),
    ("search.popsize", 10**12, f"1000000000000 is not allowed, {MOST} 10000"),
    ("budget.full", 0, f"{LEAST} 1"),
    ("schedule.milestones", [1, 10**12], f"{MOST} 1000000000"),
]

COLD = {"start": "none"}
START, KNOWN = {"start": {"loss": "baikal"}}, {"losses": ["wrong-labels"]}
UNFILTERED = {"scale": "normalized", "filter": "none"}
XZ, XYT = {"variables": ["x", "z"]}, {"variables": ["x", "y", "t"]}
ANCHORED = {"base": "cross_entropy"}
ADAM, SGD = {"name": "adam", "lr": 0.1}, {"name": "sgd", "lr": 1}
LONG = {"unit": "steps", "evaluation": 401, "full": 400}
F1, NLL = {"metric": "val_f1"}, {"metric": "val_nll", "mode": "min"}
BAD_RULES: list[tuple[dict[str, Any], str, str]] = [
    ({"optimizer": ADAM | {"momentum": 0.9}}, "optimizer.momentum", "adam has no momentum"),
    ({"optimizer": SGD | {"nesterov": True}}, "optimizer.nesterov", "it needs a momentum above 0"),
    ({"schedule": {"kind": "cosine", "milestones": [5]}}, "schedule.milestones", "has no milest"),
    ({"schedule": {"kind": "one_cycle", "warmup": 5}}, "schedule.warmup", "rise of its own"),
    ({"schedule": {"milestones": [5, 9], "warmup": 5}}, "schedule.milestones", "begin after it"),
    ({"schedule": {"unit": "steps", "warmup": 4000}}, "schedule.warmup", "below budget.full"),
    ({"trainer": {"gradient_clip_algorithm": "value"}}, "trainer.gradient_clip_algorithm", "needs"),
    ({"budget": LONG}, "budget.evaluation", "401 is not allowed with full 400: it must be"),
    ({"search": {"overlap": 8}}, "search.overlap", "8 is not allowed with popsize 8"),
    ({"search": {"overlap": 4}}, "search.overlap", "are trained before; use start: none"),
    ({"search": {"start": {"at": [0, 1]}}}, "search.start.losses", "give losses or a study, or"),
    ({"search": {"start": KNOWN | {"shapes": []}}}, "search.start.shapes", "one for each of 1"),
    ({"search": {"start": {"losses": "a"}}}, "search.start.losses", "must be a list"),
    ({"search": START}, "search.start.loss", "give losses, which are trained at several scales"),
    ({"search": {"start": KNOWN, "space": "theta"}}, "search.start.losses", "use canonical"),
    ({"search": {"start": KNOWN}, "loss": {"base": "none"}}, "search.start.losses", "losses on it"),
    (
        {"search": {"start": "none", "n_generations": 0}},
        "search.n_generations",
        "must be 1 or more",
    ),
    ({"search": START, "loss": XZ}, "search.start", "expanded in x and y"),
    ({"search": {"method": "glo"}}, "search.method", "write glo: {} for the paper's"),
    ({"search": {"glo": {}}}, "search.glo", "leave it out, or set method: glo"),
    ({"search": glo(elite=100)}, "search.glo.elite", "with popsize 100: it must be below"),
    *(
        ({"search": glo() | change}, f"search.{next(iter(change))}", "settings are in search.glo")
        for change in ({"popsize": 9}, {"filter": "steady"}, START)
    ),
    ({"search": glo() | {"scale": "normalized"}}, "search.scale", "trees is not normalized"),
    ({"search": glo(), "loss": {"order": 4}}, "loss.order", "trees have no order"),
    ({"search": {"space": "canonical"}, "loss": {"order": 4}}, "search.space", "use theta"),
    ({"search": {"space": "canonical"}, "loss": XZ}, "search.space", "use theta"),
    ({"search": {"filter": "trainable"}, "loss": XYT}, "search.filter", "use none"),
    ({"search": {"filter": "steady"}, "loss": {"order": 4}}, "search.filter", "use trainable or"),
    ({"search": {"scale": "normalized"}, "loss": XZ}, "search.scale", "use free"),
    ({"search": UNFILTERED}, "search.scale", 'with search.filter "none"'),
    ({"loss": ANCHORED | XZ}, "loss.base", "leave out z"),
    ({"loss": {"label_smoothing": 0.1}}, "loss.label_smoothing", "is searched"),
    # The default threshold is an accuracy.
    ({"fitness": F1, "early_abort": {}}, "early_abort.threshold", "the metric is val_f1"),
    ({"fitness": NLL, "early_abort": {"at": 3}}, "early_abort.threshold", "with mode min"),
    ({"fitness": F1, "preset": "paper"}, "early_abort.threshold", "early_abort: null leaves it"),
]


def refusal(content: object) -> RecipeError:
    with pytest.raises(RecipeError) as error:
        recipe_from_dict(content, "my.yaml")
    return error.value


@pytest.mark.parametrize(("path", "value", "expected"), BAD_VALUES)
def test_a_bad_value_is_named_with_its_field_and_what_to_do(
    path: str, value: object, expected: str
) -> None:
    message = str(refusal(recipe_with(path, value)))
    assert message.startswith(f"my.yaml: {path}")
    assert expected in message


@pytest.mark.parametrize(("sections", "field", "expected"), BAD_RULES)
def test_fields_that_do_not_go_together_are_refused(
    sections: dict[str, Any], field: str, expected: str
) -> None:
    error = refusal(minimal(**sections))
    assert error.field == field
    assert expected in error.problem


@pytest.mark.parametrize("path", ["data", "model.class_path", "budget.full"])
def test_missing_fields_are_named(path: str) -> None:
    content = minimal()
    *sections, field = path.split(".")
    del (content[sections[0]] if sections else content)[field]
    assert f"my.yaml: {path}: is missing" in str(refusal(content))
    assert not SCHEMA.is_valid(content)


def test_every_mistake_is_reported_in_a_line_of_its_own() -> None:
    values = minimal(batch_size=2.5, data_dir="/data", search={"sigma": "wide", "seed": -1, 3: 4})
    search = {"space": "canonical", "filter": "steady", "scale": "normalized"}
    rules = minimal(loss={"order": 4, "variables": ["x", "z"]}, search=search)
    for content, fields in (
        (values, ["search.3", "data_dir", "batch_size", "search.sigma", "search.seed"]),
        (rules, ["search.space", "search.filter", "search.scale"]),
    ):
        assert [line.split(": ")[1] for line in str(refusal(content)).splitlines()] == fields


@pytest.mark.parametrize("preset", [{}, {"preset": "default"}])
def test_data_model_batch_size_and_length_are_a_recipe_with_the_best_results(preset: Any) -> None:
    best = load_recipe(ROOT / "studies" / "digits_mlp_wrong_labels.yaml")
    assert best.loss == LossSettings(base="cross_entropy", order=3, class_reduction="sum")
    search = best.search
    assert (search.popsize, search.sigma, search.n_generations) == (8, 0.5, 2)
    assert (search.space, search.filter, search.scale) == ("canonical", "steady", "auto")
    assert best.selection == SelectionSettings(candidates=1)
    assert search.start is not None
    assert search.start.losses == ("wrong-labels",)
    assert (search.rounds, search.total_candidates) == ((13, 8), 37)
    assert best.early_abort is best.early_stop is None
    assert best.budget == BudgetSettings(unit="steps", evaluation=1000, full=1000)
    assert best.optimizer == DEFAULT_OPTIMIZER
    needed = best.to_dict() | {"budget": {"full": 1000}}
    needed = {name: needed[name] for name in ("data", "model", "batch_size", "budget")}
    assert recipe_from_dict(needed | preset) == best.changed(optimizer=None)
    assert TrainingRecipe(**needed) == best.changed(optimizer=None)
    # A training function needs less still.
    function = function_recipe({"n_classes": 10} | preset)
    for section in ("loss", "search", "selection"):
        assert getattr(function, section) == getattr(best, section)


@pytest.mark.parametrize(
    "sections",
    [
        {"search": {"start": "none"}},
        {"search": {"start": None}},
        {"loss": {"base": "none"}},
        {"loss": {"class_reduction": "mean"}},
        {"search": {"space": "theta"}},
        {"loss": {"order": 4}},
        {"loss": {"variables": ["x", "y", "t"]}},
        {"search": glo()},
    ],
)
def test_a_search_without_known_losses_takes_longer(sections: dict[str, Any]) -> None:
    recipe = recipe_from_dict(minimal(**sections))
    search = recipe.search
    assert (search.start, search.rounds, search.sigma) == (None, (), 1.2)
    expected = (28, 60) if search.method == "glo" else (16, 12)
    assert (search.popsize, search.n_generations) == expected
    assert recipe.selection == SelectionSettings(candidates=8)
    fewer = minimal(**sections) | {"selection": {"candidates": 3}}
    assert recipe_from_dict(fewer).selection == SelectionSettings(candidates=3)


def test_the_preset_paper_has_its_numbers() -> None:
    budget = {"unit": "epochs", "evaluation": 4, "full": 36}
    recipe = recipe_from_dict(minimal(preset="paper", budget=budget))
    assert recipe.loss == LossSettings(
        base="none", order=3, variables=("x", "y"), folded=False, class_reduction="mean"
    )
    search = recipe.search
    assert (search.popsize, search.sigma, search.n_generations) == (28, 1.2, 60)
    assert (search.space, search.filter, search.scale) == ("theta", "none", "free")
    assert search_size(search) == "60 generations of 28 candidates"
    assert search_size(search.changed(n_generations=1)).startswith("1 generation of 28")
    # The paper's evaluations on MNIST end in their fourth epoch, before the abort's.
    abort = EarlyAbortSettings(unit="epochs", at=10, threshold=0.15, attempts=3)
    assert recipe.early_abort == abort
    assert recipe.selection is recipe.early_stop is None
    function = function_recipe({"n_classes": 10, "preset": "paper"})
    assert (function.loss, function.search) == (recipe.loss, recipe.search)
    with pytest.raises(RecipeError, match=r"preset: .*did you mean paper"):
        function_recipe({"n_classes": 10, "preset": "papers"})


def test_the_file_has_priority_over_its_preset() -> None:
    said = {
        "loss": {"base": "cross_entropy", "class_reduction": "sum"},
        "search": {"popsize": 20, "filter": "steady"},
        "early_abort": None,
        "selection": {"candidates": 3},
    }
    recipe = recipe_from_dict(minimal(preset="paper", **said)).to_dict()
    assert {name: recipe[name] for name in ("early_abort", "selection")} == {
        name: said[name] for name in ("early_abort", "selection")
    }
    assert said["loss"].items() <= recipe["loss"].items()
    assert said["search"].items() <= recipe["search"].items()
    assert recipe["search"]["space"] == "theta"


def test_trees_have_the_papers_loss_settings_with_any_preset() -> None:
    recipe, paper = (
        recipe_from_dict(minimal(search=glo(), **preset)) for preset in ({}, {"preset": "paper"})
    )
    search = recipe.search
    assert (search.total_candidates, search.total_generations) == (11_120, 135)
    assert search_size(search) == "100 generations of 100 trees, then 35 of 32 sets of coefficients"
    assert (recipe.loss, recipe.search.changed(scale="free")) == (paper.loss, paper.search)
    assert recipe.selection == SelectionSettings(candidates=8)
    assert paper.selection is recipe.early_abort is None


@pytest.mark.parametrize(
    ("loss", "base", "space", "filter_"),
    [
        ({"order": 2}, "cross_entropy", "theta", "steady"),
        ({"order": 4}, "cross_entropy", "theta", "trainable"),
        ({"order": 4, "base": "none"}, "none", "theta", "trainable"),
        (XYT, "cross_entropy", "theta", "none"),
        (XZ, "none", "theta", "none"),
        ({"variables": ["x", "y", "z", "t"], "order": 2}, "none", "theta", "none"),
        ({"base": "none", "variables": ["x", "y"]}, "none", "canonical", "steady"),
    ],
)
def test_what_is_left_out_goes_with_order_and_variables(
    loss: dict[str, Any], base: str, space: str, filter_: str
) -> None:
    recipe = recipe_from_dict(minimal(loss=loss))
    assert (recipe.loss.base, recipe.search.space, recipe.search.filter) == (base, space, filter_)
    assert recipe_from_dict(minimal(loss=loss, preset="paper")).search.filter == "none"


@pytest.mark.parametrize(
    "sections",
    [
        {"optimizer": None, "fitness": {"metric": "val_balanced_accuracy"}, "early_abort": {}},
        {"preset": "paper", "search": START, "loss": {"order": 4}},
        {"schedule": {"kind": "cosine", "unit": "steps", "warmup": 10}, "selection": None},
        {"search": {"sigma": 0.1 + 0.2, "overlap": 14, "filter": "trainable", "start": "none"}},
        {"search": {"start": {"losses": ["a.json", "b"], "study": "c"}}},
        {"search": glo(popsize=7), "checkpoint": {"path": "weights.pt", "skip": ["head."]}},
        {"trainer": {"gradient_clip_val": 1, "callbacks": [{"class_path": "my.Callback"}]}},
        {"loss": {"class_weights": [1, 2.5], "ignore_index": 0}},
        {"loss": {"base": "none", "label_smoothing": 0.1}, "budget": {"full": 7}},
        {"loss": {"class_weights": "balanced", "variables": ["x", "y", "z", "t"]}},
        {"fitness": NLL, "selection": {}, "early_abort": {"threshold": 2.0}},
    ],
)
def test_recipes_round_trip_through_json(sections: dict[str, Any]) -> None:
    recipe = recipe_from_dict(minimal(**sections))
    content = json.loads(json.dumps(recipe.to_dict()))
    assert recipe_from_dict(content) == recipe
    SCHEMA.validate(content)


def test_a_metric_that_is_probably_the_loss_itself_is_warned_of() -> None:
    recipe = recipe_from_dict(minimal(fitness={"metric": "val_loss"}))
    assert "maximized" in own_loss_warning(recipe.fitness)
    assert own_loss_warning(recipe_from_dict(minimal()).fitness) == ""


def test_sections_are_checked_when_built_or_changed_in_python() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        SearchSettings(sigma=-1)
    recipe = recipe_from_dict(minimal())
    changed = recipe.changed(budget=recipe.budget.changed(evaluation=7))
    assert changed.budget.evaluation == 7
    assert changed.changed(budget=recipe.budget) == recipe
    with pytest.raises(RecipeError, match="evaluation: 4001 is not allowed with full 4000"):
        recipe.budget.changed(evaluation=4001)
    with pytest.raises(RecipeError, match=r"batch_sise: unknown field, did you mean batch_size\?"):
        recipe.changed(batch_sise=3)
    with pytest.raises(ValueError, match="frozen"):
        recipe.batch_size = 3  # type: ignore[misc]
    arguments: dict[str, Any] = {"widths": [8, 16]}
    component = Component(class_path="lightning_modules.nets.mlp.MLP", init_args=arguments)
    arguments["widths"].append(32)
    assert component.init_args == {"widths": [8, 16]}


@pytest.mark.parametrize(
    "path", [*STUDIES, *sorted(ROOT.glob("docs/examples/**/*.yaml"))], ids=lambda path: path.stem
)
def test_recipes_are_accepted_by_the_json_schema(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    SCHEMA.validate(yaml.load(text, Loader=_RecipeLoader))
    SCHEMA.validate(load_recipe(path).to_dict())
    if path in STUDIES:
        mark, place = text.split("\n", 1)[0].split("$schema=")
        assert mark == "# yaml-language-server: "
        assert (path.parent / place).resolve() == SCHEMA_FILE


def test_editors_refuse_wrong_fields() -> None:
    Draft202012Validator.check_schema(SCHEMA.schema)
    wrong = [("serach", {}), ("optimizer.name", "SGD"), ("schedule.milestones", [0])]
    wrong += [("preset", "papers"), ("trainer.callbacks", [{"init_args": {}}])]
    for path, value in (*wrong, ("batch_size", 2.5)):
        assert not SCHEMA.is_valid(recipe_with(path, value)), path
