"""Every recipe in studies/: it loads, builds and trains on data of the right shape."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_modules.data import ImageData
from optuna_taylorglo.losses.canonical import to_canonical
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree import CROSS_ENTROPY_TREE
from optuna_taylorglo.recipes.load import data_module_class, load_recipe, model_class
from optuna_taylorglo.recipes.schema import Recipe, recipe_from_dict
from optuna_taylorglo.search.candidates import (
    candidate_loss,
    form_of,
    make_pruner,
    make_sampler,
    parameter_names,
)
from optuna_taylorglo.search.glo import TreePoint
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.training.training import Training

STUDIES = Path(__file__).parents[2] / "studies"
NAMES = sorted(path.stem for path in STUDIES.glob("*.yaml"))

# The paper's table: data set, parameters of the network, λ, steps or epochs of evaluation and of a
# full training, Cutout. The numbers of parameters are those of the architectures' own papers.
TABLE = {
    "mnist_basic_cnn": ("MNIST", 3.27e6, 28, 2_000, 20_000, 0),
    "cifar10_alexnet": ("CIFAR10", 2.47e6, 20, 16, 164, 0),
    "cifar10_pre_resnet_20": ("CIFAR10", 0.27e6, 20, 20, 200, 0),
    "cifar10_all_cnn_c": ("CIFAR10", 1.37e6, 20, 35, 350, 0),
    "cifar10_all_cnn_c_cutout": ("CIFAR10", 1.37e6, 20, 35, 350, 16),
    "cifar10_wrn_16_8": ("CIFAR10", 10.96e6, 20, 20, 200, 0),
    "cifar10_wrn_16_8_cutout": ("CIFAR10", 10.96e6, 20, 20, 200, 16),
    "cifar10_wrn_28_5": ("CIFAR10", 9.13e6, 20, 20, 200, 0),
    "cifar10_wrn_28_5_cutout": ("CIFAR10", 9.13e6, 20, 20, 200, 16),
    "svhn_wrn_16_8": ("SVHN", 10.96e6, 20, 16, 160, 0),
    "svhn_wrn_16_8_cutout": ("SVHN", 10.96e6, 20, 16, 160, 16),
    "svhn_wrn_28_5": ("SVHN", 9.13e6, 20, 16, 160, 0),
    "svhn_wrn_28_5_cutout": ("SVHN", 9.13e6, 20, 16, 160, 16),
}


def recipe_of(name: str) -> Recipe:
    return load_recipe(STUDIES / f"{name}.yaml")


def families() -> list[str]:
    """One recipe for each network and kind of search."""
    recipes = {name: recipe_of(name) for name in NAMES}
    kinds = {
        (recipe.model.class_path, recipe.search.method, recipe.loss.base): name
        for name, recipe in recipes.items()
    }
    return sorted(kinds.values())


def write_images(data_dir: Path, data: type[ImageData], size: int) -> None:
    """A cache in which an image's brightness tells which of two classes it is of."""
    channels, height, width = data.input_shape
    shape = (height, width) if channels == 1 else (height, width, channels)
    folder = data_dir / data.dataset
    folder.mkdir()
    labels = (np.arange(size) % 2).astype(np.uint8)
    noise = np.random.default_rng(0).integers(0, data.max_value // 4, (size, *shape))
    brightness = labels.reshape(-1, *(1 for _ in shape)) * (data.max_value // 2)
    for part in ("train", "test"):
        np.save(folder / f"{part}_images.npy", (noise + brightness).astype(np.uint8))
        np.save(folder / f"{part}_labels.npy", labels)


def cross_entropy(recipe: Recipe) -> tuple[float, ...] | TreePoint:
    """What comes nearest to cross-entropy among the recipe's candidates."""
    if recipe.search.method == "glo":
        return TreePoint(tuple(CROSS_ENTROPY_TREE.to_prefix()))
    form = form_of(recipe)
    parameters = TaylorLoss.from_cross_entropy(form.order, folded=form.folded).theta
    if recipe.search.space == "canonical":
        parameters = to_canonical(parameters, form)
    # What cross-entropy as a base adds is left as it is: scale 1, and no smoothing.
    return (*parameters, *[0.0] * (len(parameter_names(recipe)) - len(parameters)))


def training_of(name: str, folder: Path) -> Training:
    """A training on a few images, all of which are in each batch."""
    recipe = recipe_of(name)
    data_class = data_module_class(recipe.data.class_path)
    assert issubclass(data_class, ImageData)
    arguments = recipe.data.init_args
    size = round(8 / arguments.get("fraction", 1)) + arguments.get("val_size", 0)
    write_images(folder, data_class, size=arguments.get("images", size))
    data = data_class(folder, batch_size=1, **arguments)
    data.setup("fit")
    # The rate is one at which networks with and without normalization descend within a few steps.
    recipe = recipe.changed(
        batch_size=len(data.train_data.indices), optimizer=recipe.optimizer.changed(lr=0.01)
    )
    return Training(recipe, RuntimeConfig(folder, device="cpu", precision="32-true"))


@pytest.mark.parametrize("name", NAMES)
def test_network_data_and_search_can_be_built(name: str, tmp_path: Path) -> None:
    training = training_of(name, tmp_path)
    recipe = training.recipe
    assert (training.n_classes, training.steps_per_pass) == (10, 1)
    assert recipe.loss.variables == ("x", "y")
    if recipe.search.method == "taylor":
        names = parameter_names(recipe)
        n_theta = {2: 5, 3: 8, 4: 12}[recipe.loss.order]
        n_anchor = 2 if recipe.loss.base == "cross_entropy" else 0
        assert len(names) - n_anchor == (4 if recipe.search.space == "canonical" else n_theta)
    make_sampler(recipe, n_classes=10)
    make_pruner(recipe, training.in_steps)
    assert recipe_from_dict(recipe.to_dict()) == recipe


@pytest.mark.parametrize("name", families())
def test_a_loss_falls_on_a_fixed_batch(name: str, tmp_path: Path) -> None:
    training = training_of(name, tmp_path)
    criterion = candidate_loss(training.recipe, cross_entropy(training.recipe), 10)
    values: list[float] = []

    def note(module: nn.Module, arguments: object, loss: Tensor) -> None:
        if loss.requires_grad:
            values.append(loss.item())

    criterion.register_forward_hook(note)
    accuracy = training.run(criterion, seed=0, steps=4)
    assert len(values) == 4
    assert sum(values[-2:]) < sum(values[:2])
    assert 0 <= accuracy <= 1


@pytest.mark.parametrize("name", TABLE)
def test_rows_of_the_paper_s_table_have_its_settings(name: str) -> None:
    data, parameters, popsize, evaluation, full, cutout = TABLE[name]
    recipe = recipe_of(name)
    assert recipe.data.class_path == f"lightning_modules.data.{data}"
    with torch.device("meta"):
        net = model_class(recipe.model.class_path)(**recipe.model.init_args)
    assert sum(p.numel() for p in net.parameters()) == pytest.approx(parameters, rel=0.01)
    assert (recipe.search.popsize, recipe.search.sigma) == (popsize, 1.2)
    assert (recipe.budget.evaluation, recipe.budget.full) == (evaluation, full)
    assert recipe.data.init_args.get("cutout", 0) == cutout
    assert recipe.data.init_args.get("padding", 0) == (0 if data == "MNIST" else 2)
    assert (recipe.loss.order, recipe.loss.folded, recipe.loss.class_reduction) == (3, True, "sum")
    assert (recipe.search.filter, recipe.search.scale, recipe.search.space) == (
        ("none", "free", "theta")
    )
    abort = recipe.early_abort
    assert abort is not None
    assert (abort.unit, abort.at, abort.threshold, abort.attempts) == ("epochs", 10, 0.15, 3)
    assert recipe.early_stop is None
    assert recipe.search.seed_policy == "independent"


def test_the_paper_s_glo_has_its_number_of_evaluations() -> None:
    """100 × 100 trees, then 32 × 35 sets of coefficients, trained as TaylorGLO's candidates are."""
    glo, taylor = recipe_of("mnist_basic_cnn_glo"), recipe_of("mnist_basic_cnn")
    assert glo.search.total_candidates == 11_120
    assert glo.changed(search=taylor.search, loss=taylor.loss) == taylor


VARIANTS = {
    "mnist_basic_cnn": {
        "mnist_basic_cnn_200_steps": "budget.evaluation",
        "mnist_basic_cnn_20000_steps": "budget.evaluation",
        "mnist_basic_cnn_order_2": "loss.order",
        "mnist_basic_cnn_order_4": "loss.order",
        "mnist_basic_cnn_reduced": "data.init_args.fraction",
        "fashion_mnist_basic_cnn": "data.class_path",
    },
    "cifar10_all_cnn_c": {
        "cifar10_all_cnn_c_reduced": "data.init_args.fraction budget.evaluation",
        "cifar10_all_cnn_c_cutout": "data.init_args.cutout",
    },
    "svhn_wrn_28_5": {"svhn_wrn_28_5_cutout": "data.init_args.cutout"},
    "digits_mlp": {
        "digits_mlp_wrong_labels": "data.init_args.label_noise data.init_args.noisy_validation",
        "digits_mlp_imbalanced": "data.init_args.imbalance fitness.metric",
    },
    "digits_mlp_wrong_labels": {
        "digits_mlp_confused_labels": "data.init_args.label_noise data.init_args.noise_kind",
    },
    "fashion_mnist_mlp_few_images": {
        "fashion_mnist_mlp_wrong_labels": "data.init_args.label_noise "
        "data.init_args.noisy_validation",
        "fashion_mnist_mlp_imbalanced": "data.init_args.images data.init_args.imbalance "
        "fitness.metric",
        "mnist_mlp_few_images": "data.class_path data.init_args.images data.init_args.val_size",
    },
}
"""For each recipe its variants, and the fields in which they differ."""


@pytest.mark.parametrize("base", VARIANTS)
def test_variants_differ_from_their_base_in_what_their_name_says(base: str) -> None:
    for name, fields in VARIANTS[base].items():
        ours, theirs = (_flat(recipe_of(n).to_dict()) for n in (name, base))
        different = {key for key in ours | theirs if ours.get(key) != theirs.get(key)}
        assert different == set(fields.split()), name


@pytest.mark.parametrize("name", NAMES)
def test_validations_during_an_evaluation_do_not_cut_it_into_crumbs(name: str) -> None:
    """A Trainer's epoch is the greatest common divisor of the steps at which it validates."""
    recipe = recipe_of(name)
    budget, abort = recipe.budget, recipe.early_abort
    if abort is None:
        assert recipe.fitness.take == "last"  # the only validation is at the end
        return
    pass_length = {"MNIST": 550, "FashionMNIST": 550, "SVHN": 368, "CIFAR10": 351, "Digits": 16}
    data_name = recipe.data.class_path.rpartition(".")[2]
    steps = {"steps": 1, "epochs": pass_length[data_name]}
    end, check = budget.evaluation * steps[budget.unit], abort.at * steps[abort.unit]
    assert check >= end or math.gcd(check, end) >= 50


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_in_the_overview_and_begins_with_what_it_is_and_costs(name: str) -> None:
    assert f"`{name}`" in (STUDIES / "README.md").read_text(encoding="utf-8")
    header, _, _ = (STUDIES / f"{name}.yaml").read_text(encoding="utf-8").partition("\ndata:")
    assert header.startswith("# ")
    if name != "digits_cnn":
        assert "\n# Cost: " in header
        assert "\n# Differs from the paper: " in header
        assert "Paper" in header or "Not in the paper" in header


def _flat(content: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
