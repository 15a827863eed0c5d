"""Mistakes in recipe, model and data: each is answered before anything is recorded."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from trainings import cpu

from optuna_taylorglo.cli import main
from optuna_taylorglo.errors import RecipeError, UserCodeError
from optuna_taylorglo.recipes.schema import recipe_from_dict
from optuna_taylorglo.training.preflight import Preflight, preflight

OWN = {"model": "Own", "optimizer": None}
MANUAL = OWN | {"model": "Manual"}


def content(
    data: str = "Points", model: str = "Net", init_args: Any = None, **fields: Any
) -> dict[str, Any]:
    path = model if "." in model else f"mistakes.{model}"
    recipe = {
        "data": {"class_path": f"mistakes.{data}"},
        "model": {"class_path": path, "init_args": init_args or {}},
        "optimizer": {"name": "sgd", "lr": 0.1},
        "batch_size": 8,
        "budget": {"unit": "steps", "evaluation": 3, "full": 3},
        "search": {"popsize": 4, "n_generations": 1, "start": "none"},
    }
    recipe |= fields
    return {name: value for name, value in recipe.items() if value is not None}


def dry_run(tmp_path: Path, *, for_verdict: bool = False, **changes: Any) -> Preflight:
    recipe = recipe_from_dict(content(**changes))
    return preflight(recipe, cpu(tmp_path, "mistakes"), for_verdict=for_verdict)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        OWN,
        {"data": "NegativeLabels", "loss": {"ignore_index": -1}},
        {"data": "Named"},
        {"data": "OneUnnamed"},
        {"data": "ClassProbabilities"},
        {"data": "ClassProbabilities", "fitness": {"metric": "val_f1"}},
        {"data": "Sentences"},
    ],
)
def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = dry_run(tmp_path, **changes)
    assert (found.n_classes, found.steps_per_pass, found.n_parameters) == (3, 8, 9)
    assert 0 <= found.metric <= 1
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"data": "OneClass"}, "data.class_path", "has num_classes 1"),
        ({"data": "LabelsFromOne"}, "data.class_path", "labels reach from 1 to 3, must be 0 to 2"),
        ({"data": "ShortLabels"}, "data.class_path", r"torch.int32, .* labels.long\(\)"),
        ({"data": "FloatLabels"}, "data.class_path", "labels are torch.float32 of shape"),
        ({"data": "LabelsInColumns"}, "data.class_path", r"shape \(8, 1\), must be \(8,\)"),
        (
            {"data": "SeveralLabels"},
            "data.class_path",
            r"float32 of shape \(8, 3\), must be class indices .* several labels of one example",
        ),
        (
            {"data": "SeveralIntegers"},
            "data.class_path",
            r"\(8, 3\), one number for each class, must be \(8,\): .* several labels of one",
        ),
        ({"data": "Numbers"}, "data.class_path", r"shape \(8,\), .* regression, are not supported"),
        (
            {"data": "Numbers", "init_args": {"outputs": 1}},
            "model.class_path",
            r"mistakes.Net on mistakes.Numbers gives logits of shape \(8, 1\), must be .* for 3 "
            "classes; a search is .* regression, are not supported$",
        ),
        (
            {"data": "ClassProbabilities", "loss": {"ignore_index": 0}},
            "data.class_path",
            "probabilities, with which loss.ignore_index 0 is not allowed",
        ),
        ({"data": "TwoClasses"}, "model.class_path", r"\(8, 3\), must be \(B, 2\) .* 2 classes$"),
        (
            {"data": "TwoClasses", "init_args": {"outputs": 1}},
            "model.class_path",
            "for 2 classes: two classes need two logits, not one$",
        ),
        (
            {"data": "TwoByFloats", "init_args": {"outputs": 1}},
            "model.class_path",
            "two classes need two logits, not one; a search is for classification",
        ),
        (
            {"data": "WrongNames"},
            "data.class_path",
            "its batches hold a, b besides labels, but Net.forward takes x: missing .* 'x'; name",
        ),
        ({"data": "NoLabels"}, "data.class_path", "a mapping with the keys x, y, must be"),
        ({"data": "ValidationInColumns"}, "data.class_path", r"shape \(8, 1\), must be \(8,\)"),
        ({"data": "NotANumber"}, "data.class_path", "12.5% of the numbers .* train_dataloader"),
        ({"data": "NoTraining"}, "data.class_path", "has no train_dataloader"),
        ({"data": "NoValidation"}, "data.class_path", "has no val_dataloader"),
        ({"data": "Endless"}, "data.class_path", "does not say how many batches"),
        ({"data": "DropsAll"}, "batch_size", "no training batch"),
        ({"data": "Net"}, "data.class_path", "must be a subclass of LightningDataModule"),
        ({"model": "EndsInSoftmax"}, "model.class_path", "leave out the softmax"),
        ({"model": "Squeezed"}, "model.class_path", r"shape \(8,\), must be \(B, 3\)"),
        ({"model": "Overflows"}, "model.class_path", "logits that are not finite"),
        ({"model": "Frozen"}, "model.class_path", "all parameters are frozen"),
        ({"init_args": {"outputs": 5}}, "model.class_path", r"shape \(8, 5\), must be \(B, 3\)"),
        ({"init_args": {"depth": 5}}, "model.init_args", "unexpected keyword argument 'depth'"),
        (OWN | {"model": "OwnLoss"}, "model.class_path", "never calls self.criterion"),
        (OWN | {"model": "Detached"}, "model.class_path", "logits without a gradient"),
        (OWN | {"model": "LogsItOnly"}, "model.class_path", "no gradient came back"),
        (OWN | {"data": "Sentences"}, "model.class_path", r"3 classes: logits.movedim\(-1, 1\)$"),
        *(
            (
                OWN | {"model": "OwnCriterion", "init_args": {"name": name}},
                "model.class_path",
                f"own criterion is {name}: a search is for classification with one label",
            )
            for name in ("BCEWithLogitsLoss", "MSELoss")
        ),
        (OWN | {"model": "NoTrainingStep"}, "model.class_path", "has no training_step"),
        (OWN | {"model": "NoValidationStep"}, "model.class_path", "has no validation_step"),
        (OWN | {"model": "NoOptimizer"}, "model.class_path", "has no configure_optimizers"),
        (
            OWN | {"fitness": {"metric": "val_f1"}},
            "fitness.metric",
            "'val_f1' is not logged by Own, which logs val_accuracy",
        ),
        ({"model": "os.Net"}, "model.class_path", "--allow os"),
        ({"model": "elsewhere.Net"}, "model.class_path", "there is no module elsewhere; is it"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, changes: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(RecipeError, match=problem) as refused:
        dry_run(tmp_path, **changes)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("changes", "line", "said"),
    [
        ({"model": "HasABug"}, "return self.no_such_layer(x)", "AttributeError"),
        (OWN | {"model": "BreaksInValidation"}, 'raise KeyError("a bug of mine")', "KeyError"),
    ],
)
def test_bugs_of_the_user_come_with_their_own_traceback(
    tmp_path: Path, changes: dict[str, Any], line: str, said: str
) -> None:
    with pytest.raises(UserCodeError) as raised:
        dry_run(tmp_path, **changes)
    message = str(raised.value)
    assert line in message
    assert "mistakes.py" in message
    assert said in message.splitlines()[-1]
    assert "site-packages" not in message


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "lightning_modules.nets.digits_cnn.DigitsCNN"}, "input"),
        # Lightning refuses what a module that optimizes by hand would have to do by itself.
        (MANUAL | {"trainer": {"gradient_clip_val": 1.0}}, "Automatic gradient clipping"),
        (MANUAL | {"trainer": {"accumulate_grad_batches": 2}}, "gradient accumulation"),
    ],
)
def test_parts_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserCodeError, match=r"does not go with the data of mistakes\.Points") as no:
        dry_run(tmp_path, **changes)
    assert problem in str(no.value)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"data": "SplitBySeed"}, "the split not depend on `seed`"),
        (OWN | {"model": "TrainsHalf"}, "6 of 15 trainable parameters are in no optimizer"),
    ],
)
def test_what_may_be_meant_is_a_warning(
    tmp_path: Path, changes: dict[str, Any], warning: str
) -> None:
    (said,) = dry_run(tmp_path, **changes).warnings
    assert warning in said


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data": "NoTest"}, "has no test_dataloader"),
        (OWN | {"model": "NoTestStep"}, "has no test_step that logs test_accuracy"),
    ],
)
def test_what_a_verdict_will_need_is_missing(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    found = dry_run(tmp_path, **changes)
    assert problem in str(found.missing)
    assert not found.warnings


def test_for_a_verdict_the_test_is_tried_too(tmp_path: Path) -> None:
    changes = OWN | {"model": "LogsTestAcc"}
    found = dry_run(tmp_path, **changes)
    assert dry_run(tmp_path, for_verdict=True, **OWN).metric == found.metric  # on validation
    with pytest.raises(RecipeError, match=r"'test_accuracy' is not logged .* logs test_acc") as no:
        dry_run(tmp_path, for_verdict=True, **changes)
    assert no.value.field == "fitness.metric"
    advice = "; log test_accuracy in test_step, the counterpart of val_accuracy"
    assert str(no.value).endswith(advice)


def test_check_says_what_it_found_or_names_the_line_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, capsys: Any
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content(model="OwnLoss", optimizer=None), sort_keys=False))
    monkeypatch.chdir(tmp_path)
    assert main(["check", "recipe.yaml", "--allow", "mistakes"]) == 2
    line = recipe.read_text().splitlines().index("  class_path: mistakes.OwnLoss") + 1
    assert f"recipe.yaml, line {line}: model.class_path: mistakes.OwnLoss never" in caplog.text
    recipe.write_text(yaml.safe_dump(content()))
    assert main(["check", "recipe.yaml", "--allow", "mistakes"]) == 0
    said = capsys.readouterr().out
    assert "mistakes.Net, 9 trainable parameters" in said
    for full in (
        "cost     4 trainings and up to 40 full ones, 132",
        "verdict  by default 4 trainings and up to 150 full ones, 462",
    ):
        assert re.search(f"{full} steps of [0-9.]+ ms: about [0-9]+ seconds? of one worker", said)
    assert "OK: the recipe works" in said
    assert list(tmp_path.iterdir()) == [recipe]
