"""From a recipe to its candidates, their losses and the pruner; searches that start at a loss."""

import math
from functools import partial

import optuna
import pytest
import torch
from searches import DIGITS

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.evolution import candidates
from optuna_taylorglo.evolution.history import attach_recipe
from optuna_taylorglo.evolution.scheduler import RetryPolicy
from optuna_taylorglo.losses import canonical
from optuna_taylorglo.losses.expansion import Expansion
from optuna_taylorglo.losses.files import load_loss
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree import BAIKAL
from optuna_taylorglo.losses.tree_loss import BaikalLoss, TreeLoss
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.recipes.presets import BOX, PAPER_LOSS, SCALES
from optuna_taylorglo.recipes.schema import recipe_from_dict

N_CLASSES = 10
FREE = {"filter": "none", "space": "theta", "scale": "free"}
ANCHORED = {"base": "cross_entropy", "class_reduction": "sum"}


def digits_recipe(**changes):
    """The digits recipe with some sections changed; its loss is the paper's."""
    content = load_recipe(DIGITS).to_dict()
    old = {"search": content["search"], "loss": PAPER_LOSS}
    for section, values in changes.items():
        content[section] = old[section] | values if section in old else values
    return recipe_from_dict(content)


def first_gradient(loss):
    shape = {"anchor": loss.anchor, "class_reduction": loss.class_reduction}
    return canonical.first_gradient(loss.theta, N_CLASSES, **shape)


def first_losses(recipe, number=60):
    sampler = candidates.make_sampler(recipe, N_CLASSES)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    proposed = [sampler.suggest(study.ask()) for _ in range(number)]
    return [candidates.candidate_loss(recipe, parameters, N_CLASSES) for parameters in proposed]


def test_candidates_have_the_form_that_the_recipe_says():
    assert candidates.loss_conventions(digits_recipe()) == {}
    with pytest.raises(RecipeError, match="balanced is not settled"):
        candidates.loss_conventions(digits_recipe(loss={"class_weights": "balanced"}))
    loss = {"order": 2, "variables": ["x", "y", "t"], "folded": True, "class_reduction": "sum"}
    recipe = digits_recipe(loss=loss, search=FREE)
    form = candidates.form_of(recipe)
    assert form == Expansion(2, ("x", "y", "t"), True)
    assert candidates.parameter_names(recipe) == form.parameter_names
    theta = tuple(float(i) for i in range(form.n_parameters))
    built = candidates.candidate_loss(recipe, theta, N_CLASSES)
    assert (built.form, built.theta, built.class_reduction) == (form, theta, "sum")
    assert built.n_classes == N_CLASSES
    recipe = digits_recipe(search={"space": "canonical"})
    assert candidates.parameter_names(recipe) == canonical.Canonical._fields


def test_candidates_weigh_smooth_and_ignore_as_the_recipe_says(tmp_path):
    weights = [0.5 + 0.25 * k for k in range(N_CLASSES)]
    loss = {"class_weights": weights, "label_smoothing": 0.1, "ignore_index": 2}
    theta = (0.1, 0.2, 0.3, -2.0, 0.5, 2.0, 0.7, 0.1)
    built = candidates.candidate_loss(digits_recipe(loss=loss, search=FREE), theta, N_CLASSES)
    built.save(tmp_path / "loss.json")
    for found in (built, load_loss(tmp_path / "loss.json")):
        assert found.weight.tolist() == weights
        assert (found.label_smoothing, found.ignore_index) == (0.1, 2)


@pytest.mark.parametrize("space", ["theta", "canonical"])
def test_filters_refuse_what_they_say(space):
    refused = {}
    for kind in ("none", "trainable", "steady"):
        recipe = digits_recipe(search={"filter": kind, "space": space, "popsize": 60})
        thetas = [loss.theta for loss in first_losses(recipe)]
        refused[kind] = (
            sum(canonical.trainability(theta, N_CLASSES) <= 0 for theta in thetas),
            sum(canonical.collapse_ratio(theta, N_CLASSES) >= 1 for theta in thetas),
        )
    assert refused["none"][0] > 10
    assert refused["trainable"][0] == 0
    assert refused["trainable"][1] > 5
    assert refused["steady"] == (0, 0)


def test_normalized_candidates_start_as_cross_entropy_does():
    recipe = digits_recipe(search={"filter": "steady", "scale": "normalized", "space": "theta"})
    for loss in first_losses(recipe, 10):
        assert first_gradient(loss) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="cannot begin to learn"):
        candidates.candidate_loss(recipe, (0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0), N_CLASSES)


def test_anchored_search_begins_at_cross_entropy():
    recipe = digits_recipe(loss=ANCHORED, search={"filter": "none"})
    names = ("alpha", "beta", "gamma", "delta", "log_scale", "smoothing")
    assert candidates.parameter_names(recipe) == names
    start = candidates.candidate_loss(recipe, (0.0,) * 6, N_CLASSES)
    assert (start.theta, start.anchor) == ((0.0,) * 8, (0.0, 0.0))
    found = candidates.candidate_loss(recipe, (1.0, 2.0, 3.0, 4.0, -0.5, 0.2), N_CLASSES)
    assert (found.anchor, found.class_reduction) == ((-0.5, 0.2), "sum")
    # Normalized: the scale is not searched.
    recipe = digits_recipe(loss=ANCHORED, search={"filter": "trainable", "scale": "normalized"})
    assert candidates.parameter_names(recipe)[4:] == ("smoothing",)
    found = candidates.candidate_loss(recipe, (1.0, 0.0, 0.0, 0.0, 0.1), N_CLASSES)
    assert found.anchor == (0.0, 0.1)
    # The filter lets those pass that can begin.
    n_begin = {}
    for kind in ("none", "trainable"):
        recipe = digits_recipe(loss=ANCHORED, search={"filter": kind, "sigma": 9.0})
        n_begin[kind] = sum(first_gradient(loss) > 0 for loss in first_losses(recipe))
    assert n_begin["none"] < n_begin["trainable"] == 60


def test_the_pruner_counts_in_optimizer_steps():
    recipe = digits_recipe(
        early_abort={"unit": "epochs", "at": 3, "threshold": 0.2, "attempts": 3},
        early_stop={"unit": "steps", "at": 20, "keep": 0.25},
        search={"popsize": 8, "overlap": 4},
    )
    pruner = candidates.make_pruner(recipe, lambda n, unit: n if unit == "steps" else 16 * n)
    assert (pruner.abort.step, pruner.abort.threshold) == (48, 0.2)
    stop = pruner.stop
    assert (stop.step, stop.keep, stop.popsize, stop.overlap) == (20, 0.25, 8, 4)
    assert candidates.retry_policy(recipe) == RetryPolicy(8, 3, candidates.MAX_FAILURES, 4)
    assert candidates.make_sampler(recipe, N_CLASSES).policy == candidates.retry_policy(recipe)
    pace = {"unit": "steps", "at": 20}
    stop = candidates.make_pruner(known("wrong-labels", early_stop=pace), lambda n, unit: n).stop
    assert stop.popsize is None, "rounds of known losses have sizes of their own"
    none = digits_recipe(early_abort=None, early_stop=None)
    pruner = candidates.make_pruner(none, lambda n, unit: n)
    assert (pruner.abort, pruner.stop, candidates.retry_policy(none).attempts) == (None, None, 1)


def test_without_known_losses_a_search_starts_in_the_middle_of_a_box():
    recipe = digits_recipe(
        loss=ANCHORED, search={"start": None, "space": "canonical", "filter": "steady"}
    )
    sampler = candidates.make_sampler(recipe, N_CLASSES)
    assert sampler.names == tuple(BOX)
    (state,) = sampler.search_state(optuna.create_study(direction="maximize"))
    assert state.mean == pytest.approx([(low + high) / 2 for low, high in BOX.values()])
    assert state.stds == pytest.approx([(high - low) / 4 for low, high in BOX.values()])
    unscaled = recipe.changed(search=recipe.search.changed(scale="fixed"))
    assert candidates.make_sampler(unscaled, N_CLASSES).settings.x0 == (1.0, 0.0, 1.0, 0.0, 0.35)


# Searches that start at the expansion of a loss


def started(start, loss=None, **search):
    loss = {"class_reduction": "sum"} | (loss or {})
    return digits_recipe(loss=loss, search={"space": "theta", "start": start} | search)


def first_mean(recipe):
    study = optuna.create_study(direction="maximize")
    return candidates.make_sampler(recipe, N_CLASSES).search_state(study)[0].mean


@pytest.mark.parametrize("space", ["theta", "canonical"])
@pytest.mark.parametrize("folded", [False, True])
def test_the_search_starts_at_cross_entropy(space, folded):
    recipe = started({"loss": "cross_entropy"}, {"folded": folded}, space=space)
    expected = TaylorLoss.from_cross_entropy(center=(0.0, 0.5), folded=folded).theta
    if space == "canonical":
        expected = canonical.to_canonical(expected, candidates.form_of(recipe))
    assert first_mean(recipe) == pytest.approx(expected)


def test_the_start_has_the_gradient_of_its_loss_at_the_point_of_expansion():
    def gradient(loss, y):
        """At a prediction of y for the target; with two classes, at 1/2 both outputs are there."""
        logits = torch.tensor([[y, 1 - y]], dtype=torch.float64).log().requires_grad_()
        (found,) = torch.autograd.grad(loss.double()(logits, torch.tensor([0])), logits)
        return found

    recipe = started({"loss": "baikal"})
    start = candidates.candidate_loss(recipe, first_mean(recipe), 2)
    baikal = TreeLoss(BAIKAL, class_reduction="sum")
    # x = 1 is off the point of expansion, but Baikal is linear in x.
    torch.testing.assert_close(gradient(start, 0.5), gradient(baikal, 0.5))
    assert not torch.allclose(gradient(start, 0.9), gradient(baikal, 0.9))
    assert first_mean(started({"loss": "baikal", "at": [0.25, 0.75]}))[:2] == (0.25, 0.75)


def test_a_start_may_be_a_file_which_a_study_does_not_need_later(tmp_path):
    theta, path = tuple(0.1 * i for i in range(8)), str(tmp_path / "taylor.json")
    TaylorLoss(theta).save(path)
    assert first_mean(started({"loss": path})) == theta
    with pytest.raises(RecipeError, match="has a loss of another form"):
        candidates.resolve_start(started({"loss": path}, {"order": 2}, filter="none"))
    path = tmp_path / "found.json"
    TreeLoss(BAIKAL, [1, 2, 1, 1, 1, 1]).save(path)
    study = optuna.create_study(direction="maximize")
    attach_recipe(study, started({"loss": str(path)}))
    path.unlink()
    held = attach_recipe(study, None)
    assert held.search.start.theta == first_mean(held)
    assert first_mean(held) != first_mean(started({"loss": "baikal"}))


def known(*losses, early_stop=None, **search):
    search |= {"start": {"losses": list(losses)}, "space": "canonical", "filter": "steady"}
    loss = {"base": "cross_entropy", "class_reduction": "sum"}
    return digits_recipe(loss=loss, search=search, early_stop=early_stop)


@pytest.mark.parametrize("scale", ["auto", "learning_rate", "fixed"])
def test_known_losses_are_trained_first(scale):
    recipe = candidates.resolve_start(known("wrong-labels", scale=scale))
    sampler = candidates.make_sampler(recipe, N_CLASSES)
    (first, *_), library = sampler._replay._points, load_loss("wrong-labels")
    loss = candidates.candidate_loss(recipe, first, N_CLASSES)
    library.n_classes = N_CLASSES
    logits, labels = torch.randn(9, N_CLASSES, dtype=torch.float64), torch.arange(9) % N_CLASSES
    # The scale is the first one that is tried, the learning rate's, or none.
    log_scale = {"auto": SCALES[0]}.get(scale, 0.0)
    factor = math.exp(log_scale - library.anchor.log_scale)
    torch.testing.assert_close(loss(logits, labels), factor * library(logits, labels))
    rate = {"learning_rate": math.exp(SCALES[0]), "fixed": 1.0}.get(scale)
    assert loss.lr_factor == (None if rate is None else pytest.approx(rate))
    n = (13, 8) if scale != "fixed" else (4, 8)
    assert recipe.search.rounds == sampler.policy.rounds == n
    assert len(sampler._replay._points) == n[0]


def test_known_losses_may_be_files_which_a_study_does_not_need_later(tmp_path):
    path = tmp_path / "found.json"
    load_loss("wrong-labels").save(path)
    study = optuna.create_study(direction="maximize")
    names = (str(path), "wrong-labels", "wrong-labels")
    held = attach_recipe(study, known(*names)).search
    assert held.start.shapes == (held.start.shapes[0],) * 3
    path.unlink()
    assert attach_recipe(study, None).search == held
    assert attach_recipe(study, known(*names)).search == held


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (BaikalLoss, "is no Taylor loss on cross-entropy"),
        (lambda: TaylorLoss([0.0] * 8), "is no Taylor loss on cross-entropy"),
        (lambda: TaylorLoss([0.0] * 8, base="cross_entropy"), "takes the mean over classes"),
        (partial(TaylorLoss, [0.0] * 12, order=4, base="cross_entropy"), "has the form"),
    ],
)
def test_known_losses_that_do_not_go_with_the_recipe_are_named(tmp_path, make, message):
    with pytest.raises(RecipeError, match="did you mean wrong-labels"):
        candidates.resolve_start(known("wrong-lables"))
    make().save(tmp_path / "other.json")
    with pytest.raises(RecipeError, match=message) as caught:
        candidates.resolve_start(known(str(tmp_path / "other.json")))
    assert caught.value.field == "search.start.losses"


@pytest.mark.parametrize(
    ("start", "field", "message"),
    [
        ({"loss": "bailak"}, "loss", "is none of cross_entropy, baikal, baikal_cma, and no loss"),
        ({"loss": "baikal", "at": [0, 0]}, "at", "not finite"),
        ({"theta": [1.0, 2.0]}, "theta", "has 2 numbers, must have 8"),
    ],
)
def test_invalid_starts_are_named(start, field, message):
    with pytest.raises(RecipeError, match=message) as caught:
        candidates.resolve_start(started(start))
    assert caught.value.field == f"search.start.{field}"
