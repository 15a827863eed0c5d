"""Bundled recipes, found by name."""

from pathlib import Path

import optuna
import pytest

from optuna_taylorglo import cli, worker
from optuna_taylorglo.cli import run
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.process import USAGE
from optuna_taylorglo.recipes.load import bundled_recipes, find_recipe, frozen_recipe, load_recipe

ROOT = Path(__file__).parents[2]
STUDIES = {path.name for path in ROOT.glob("studies/*.yaml")}


def test_a_name_is_that_of_a_bundled_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {path.name for path in bundled_recipes().values()} == STUDIES
    assert find_recipe("digits_cnn") == ROOT / "studies" / "digits_cnn.yaml"
    assert load_recipe(find_recipe(Path("mnist_basic_cnn"))).batch_size == 100


def test_a_path_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits_cnn").touch()
    assert find_recipe("digits_cnn") == Path("digits_cnn")
    assert find_recipe(tmp_path / "digits_cnn") == tmp_path / "digits_cnn"


@pytest.mark.parametrize("wrong", ["digits_cn", "Digits-CNN", "studies/digits_cnn.yaml"])
def test_other_names_are_answered_with_near_ones(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=f"^{wrong}: No such file.* near to it are digits_cnn"):
        find_recipe(wrong)


def test_where_no_name_is_near_all_are_told() -> None:
    with pytest.raises(RecipeError, match=r"there are cifar10_alexnet, .*svhn_wrn_28_5_cutout$"):
        find_recipe("qqq")


def test_commands_take_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "_search", lambda *_: None)
    storage = ["--storage", "sqlite:///study.db"]
    cli.main(["run", "digits_cnn", *storage])
    study = optuna.load_study(study_name="digits_cnn", storage="sqlite:///study.db")
    assert frozen_recipe(study) == load_recipe(ROOT / "studies" / "digits_cnn.yaml")
    words = ["--study-name", "digits_cnn", "--recipe", "digits_cn", *storage]
    assert worker.main(words) == USAGE
    assert "near to it are digits_cnn" in caplog.text
