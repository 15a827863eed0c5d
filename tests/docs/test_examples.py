"""The examples: each is checked, searched in short by a worker, and learns its task."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from optuna.trial import TrialState
from sklearn.linear_model import LogisticRegression
from torch import nn

from optuna_taylorglo import worker
from optuna_taylorglo.cli import main
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.process import DONE, USAGE
from optuna_taylorglo.recipes.load import Recipe, load_recipe
from optuna_taylorglo.study.open import create_study
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@dataclass(frozen=True)
class Example:
    """An example, and the test metric that says that cross-entropy learns its task.

    Attributes:
        folder: Its folder.
        name: Of its recipe.
        learnt: What a training reaches, and guessing or the simplest answer does not.
        module: Of the module, if it has another name.
    """

    folder: str
    name: str
    learnt: float
    module: str = ""

    @property
    def allowed(self) -> str:
        return self.module or self.name

    @property
    def path(self) -> Path:
        return EXAMPLES / self.folder / f"{self.name}.yaml"

    @property
    def recipe(self) -> Recipe:
        return load_recipe(self.path)

    def training(self, recipe: Recipe | None = None) -> Training:
        machine = RuntimeConfig(
            device="cpu", data_dir=Path("data"), allowed_packages=(self.allowed,)
        )
        return Training(recipe or self.recipe, machine)


TASKS = [
    Example("own_model", "breast_cancer_mlp", 0.9, "tabular"),  # the more frequent diagnosis: 0.63
    Example("own_model", "breast_cancer_lightning", 0.9, "tabular"),
    Example("lightning_module", "adamw_warmup", 0.7),  # a tenth of the digits are of one class
    Example("text", "sentiment", 0.8),  # bag of words: see below
    Example("imbalanced", "rare_faults", 0.5),  # "fine" for all: 0.32
    Example("fine_tuning", "fine_tuning", 0.7),
    Example("segmentation", "shapes", 0.5),  # background everywhere: 0.31
]
each_task = pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
BY_FOLDER = {task.folder: task for task in TASKS}


@pytest.fixture(scope="module", autouse=True)
def _checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All examples can be imported, and the checkpoint is there that one of them needs."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("examples"))
        for task in TASKS:
            patch.syspath_prepend(EXAMPLES / task.folder)
        tuning = importlib.import_module("fine_tuning")
        tuning.pretrain(tuning.CHECKPOINT)
        yield


def test_every_example_is_in_the_readme_and_here() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert folders == set(BY_FOLDER)
    readme = (EXAMPLES / "README.md").read_text()
    assert [folder for folder in sorted(folders) if f"]({folder})" not in readme] == []


@pytest.mark.parametrize("folder", sorted(set(BY_FOLDER) - {"own_model"}))
def test_the_recipe_starts_at_cross_entropy(folder: str) -> None:
    recipe = BY_FOLDER[folder].recipe
    assert (recipe.loss.base, recipe.search.space) == ("cross_entropy", "canonical")
    assert (recipe.search.filter, recipe.selection is not None) == ("steady", True)
    assert recipe.budget.evaluation == recipe.budget.full


@each_task
def test_check_finds_nothing_wrong(task: Example, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(task.path), "--allow", task.allowed, "--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith("OK: the recipe works.\n")


@each_task
def test_a_short_search_comes_to_its_end(task: Example, tmp_path: Path) -> None:
    recipe = task.recipe
    short = recipe.changed(
        search=recipe.search.changed(popsize=4, n_generations=1),
        budget=recipe.budget.changed(evaluation=1),
        selection=None,
    )
    path = tmp_path / "short.yaml"
    path.write_text(yaml.safe_dump(short.to_dict()))
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = create_study(task.name, url)
    words = ["--study-name", task.name, "--storage", url, "--recipe", str(path), "--device", "cpu"]
    assert worker.main(words) == USAGE  # its module was not allowed
    assert study.trials == []
    assert worker.main([*words, "--allow", task.allowed]) == DONE
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4


def cross_entropy(training: Training) -> TaylorLoss:
    """Where the search starts, with the settings of the recipe's loss."""
    settings = training.recipe.loss
    weights = settings.class_weights
    return TaylorLoss(
        [0.0] * 8,
        class_reduction="sum",
        base="cross_entropy",
        weight=None if weights is None else torch.tensor(weights),
        ignore_index=settings.ignore_index,
    )


@each_task
def test_the_task_can_be_learnt_as_the_recipe_says(task: Example) -> None:
    training = task.training()
    budget = training.recipe.budget
    steps = training.in_steps(budget.full, budget.unit)
    loss = cross_entropy(training)
    assert training.run(loss, seed=0, steps=steps, on_test_set=True) > task.learnt


def test_no_word_decides_alone() -> None:
    """What counts words, and not their order, stays below what the transformer must reach."""
    text = importlib.import_module("sentiment")
    data = text.Opinions(batch_size=64)
    data.setup("fit")

    def counted(sentences: torch.Tensor) -> list[list[float]]:
        return nn.functional.one_hot(sentences, len(text.WORDS)).sum(dim=1).float().tolist()

    sentences, labels = data.train_data.tensors
    by_words = LogisticRegression(max_iter=1000).fit(counted(sentences), labels)
    sentences, labels = data.test_data.tensors
    assert by_words.score(counted(sentences), labels) < BY_FOLDER["text"].learnt


def test_the_checkpoint_gives_a_start() -> None:
    task = BY_FOLDER["fine_tuning"]
    fresh, tuned = (
        sum(training.run(nn.CrossEntropyLoss(), seed=seed, steps=15) for seed in range(3))
        for training in (task.training(task.recipe.changed(checkpoint=None)), task.training())
    )
    assert tuned > fresh + 0.1


def test_rare_classes_weigh_more() -> None:
    weights = BY_FOLDER["imbalanced"].training().recipe.loss.class_weights
    assert isinstance(weights, tuple)
    fine, worn, failing = weights
    assert fine < 0.5 < 3 < worn < failing


def test_outlines_are_not_learnt() -> None:
    shapes = importlib.import_module("shapes")
    _, labels = shapes.draw(20, torch.Generator().manual_seed(0)).tensors
    assert set(labels.unique().tolist()) == {0, 1, 2, 255}
    loss = cross_entropy(BY_FOLDER["segmentation"].training())
    logits = torch.zeros(20, 3, 24, 24, requires_grad=True)
    loss(logits, labels).backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(dim=1) > 0, labels != 255)
