"""Every recipe in studies/: it loads, builds and trains on data of the right shape."""

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor
from trainings import cpu, write_images

from lightning_modules.data import ImageData
from optuna_taylorglo.evolution.candidates import (
    candidate_loss,
    form_of,
    make_pruner,
    make_sampler,
    parameter_names,
)
from optuna_taylorglo.evolution.glo import TreePoint
from optuna_taylorglo.losses.canonical import to_canonical
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree import CROSS_ENTROPY_TREE
from optuna_taylorglo.recipes.load import (
    data_module_class,
    load_recipe,
    model_class,
    recipe_differences,
)
from optuna_taylorglo.recipes.schema import Recipe, recipe_from_dict
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


@functools.cache
def recipe_of(name: str) -> Recipe:
    return load_recipe(STUDIES / f"{name}.yaml")


def families() -> list[str]:
    """One recipe for each network and kind of search, the one with the smallest network."""
    kinds = {}
    for name in reversed(NAMES):
        recipe = recipe_of(name)
        kinds[recipe.model.class_path, recipe.search.method, recipe.loss.base] = name
    return sorted(kinds.values())


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
    write_images(folder, data_class, arguments.get("images", size), n_classes=2)
    data = data_class(folder, batch_size=1, **arguments)
    data.setup("fit")
    # The rate is one at which networks with and without normalization descend within a few steps.
    recipe = recipe.changed(
        batch_size=len(data.train_data.indices), optimizer=recipe.optimizer.changed(lr=0.01)
    )
    return Training(recipe, cpu(folder))


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
    losses: list[Tensor] = []
    criterion.register_forward_hook(lambda module, arguments, loss: losses.append(loss))
    accuracy = training.run(criterion, seed=0, steps=4)
    values = [loss.item() for loss in losses if loss.requires_grad]
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
    search, abort = recipe.search, recipe.early_abort
    assert (search.popsize, search.sigma, search.seed_policy) == (popsize, 1.2, "independent")
    assert (recipe.budget.evaluation, recipe.budget.full) == (evaluation, full)
    assert recipe.data.init_args.get("cutout", 0) == cutout
    assert recipe.data.init_args.get("padding", 0) == (0 if data == "MNIST" else 2)
    assert (recipe.loss.order, recipe.loss.folded, recipe.loss.class_reduction) == (3, True, "sum")
    assert (search.filter, search.scale, search.space) == ("none", "free", "theta")
    assert abort is not None
    assert (abort.unit, abort.at, abort.threshold, abort.attempts) == ("epochs", 10, 0.15, 3)
    assert recipe.early_stop is None


def test_the_paper_s_glo_has_its_number_of_evaluations() -> None:
    """100 × 100 trees, then 32 × 35 sets of coefficients, trained as TaylorGLO's candidates are."""
    glo, taylor = recipe_of("mnist_basic_cnn_glo"), recipe_of("mnist_basic_cnn")
    assert glo.search.total_candidates == 11_120
    assert glo.changed(search=taylor.search, loss=taylor.loss) == taylor


NOISE = "data.init_args.label_noise data.init_args.noisy_validation"
IMBALANCE = "data.init_args.imbalance fitness.metric"
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
        "digits_mlp_wrong_labels": NOISE,
        "digits_mlp_imbalanced": IMBALANCE,
    },
    "digits_mlp_wrong_labels": {
        "digits_mlp_confused_labels": "data.init_args.label_noise data.init_args.noise_kind",
    },
    "fashion_mnist_mlp_few_images": {
        "fashion_mnist_mlp_wrong_labels": NOISE,
        "fashion_mnist_mlp_imbalanced": f"data.init_args.images {IMBALANCE}",
        "mnist_mlp_few_images": "data.class_path data.init_args.images data.init_args.val_size",
    },
}


@pytest.mark.parametrize("base", VARIANTS)
def test_variants_differ_from_their_base_in_what_their_name_says(base: str) -> None:
    for name, fields in VARIANTS[base].items():
        differences = recipe_differences(recipe_of(base), recipe_of(name))
        assert {line.partition(":")[0] for line in differences} == set(fields.split()), name


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_in_the_overview_and_begins_with_what_it_is_and_costs(name: str) -> None:
    assert f"`{name}`" in (STUDIES / "README.md").read_text(encoding="utf-8")
    header, _, _ = (STUDIES / f"{name}.yaml").read_text(encoding="utf-8").partition("\ndata:")
    assert header.startswith("# ")
    if name != "digits_cnn":
        assert "\n# Cost: " in header
        assert "\n# Differs from the paper: " in header
        assert "Paper" in header or "Not in the paper" in header
