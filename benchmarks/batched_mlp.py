"""Many trainings of a recipe's small MLP at once, for measurements that take thousands of them.

A network of 64 units leaves a processor idle most of the time: calling operators is nearly all of
the cost. Here all networks of a batch take their steps together, by batched matrix products, with
gradients written out by hand: several times as fast as a worker. Weights and order of data are
those that a worker has for the same seed, so a training differs from a worker's by rounding only,
which a thousand steps make as large as the noise of seeds.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import optuna
import torch
from batched_trees import tree_gradient
from torch import Tensor, nn
from torch.nn.functional import one_hot

from lightning_modules.data import ImageData
from lightning_modules.data.batches import EvaluationBatches, Subset
from lightning_modules.nets.mlp import MLP
from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX, N_CLASSES
from optuna_taylorglo.losses.canonical import from_canonical, to_canonical
from optuna_taylorglo.losses.expansion import THIRD_ORDER
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree import BAIKAL, BAIKAL_CMA_COEFFICIENTS, tree_from_prefix
from optuna_taylorglo.losses.tree_loss import TreeLoss
from optuna_taylorglo.recipes.class_paths import data_module_class
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import candidate_loss, make_sampler
from optuna_taylorglo.search.history import attach_recipe
from optuna_taylorglo.search.scheduler import GenerationScheduler
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import ComparedLoss, Task, compared_evolved_loss

AT_A_TIME = 48
"""Networks trained together; more no longer saves anything."""

CHECKED_TREES = (
    "* x log y",
    "- square - y x log + y x",
    "/ sqrt + y 1 - -1 * y x",
    "* log square y + sqrt square - y x -1",
    "+ log / y + 1 x sqrt x",
)
"""With every operator, and finite at every output."""

Columns = dict[str, Tensor]
"""Parameters by name, of each network one, shape (networks, 1, 1)."""


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        kind: Which of `GRADIENTS`.
        parameters: Its numbers.
        seed: Decides weights and order of data.
        learning_rate: Of SGD.
        on_test_set: Whether the test set judges.
    """

    kind: str
    parameters: dict[str, float]
    seed: int
    learning_rate: float
    on_test_set: bool = False

    @property
    def key(self) -> str:
        """A hash of all that its result depends on."""
        content = json.dumps([self.kind, self.parameters, self.seed, self.learning_rate])
        return hashlib.sha256(f"{content}{self.on_test_set}".encode()).hexdigest()[:20]


def _anchored(y: Tensor, x: Tensor, y_t: Tensor, p: Columns, progress: float) -> Tensor:
    at_target = p["alpha"] + p["beta"] * y_t
    if "cubic" in p:
        at_target = at_target + p["cubic"] * y_t**2
    slope = x * at_target + p["gamma"] * y + p["delta"] * y**2
    from_f = y * (slope - (y * slope).sum(-1, keepdim=True))
    log_scale = p["log_scale"]
    if "anneal" in p:
        log_scale = log_scale + p["anneal"] * (progress - 0.5)
    return (_smoothed(y, x, y_t, p, progress) - from_f) * log_scale.exp()


def _smoothed(y: Tensor, x: Tensor, y_t: Tensor, p: Columns, progress: float) -> Tensor:
    return y - (1 - p["smoothing"]) * x - p["smoothing"] / y.shape[-1]


def _of_target(weight: Callable[[Tensor, Columns], Tensor]) -> Callable[..., Tensor]:
    """Gradient of a loss ℓ(y_t): that of cross-entropy times ``-y_t ℓ'(y_t)``."""
    return lambda y, x, y_t, p, progress: (y - x) * weight(y_t, p)


def _focal_weight(y_t: Tensor, p: Columns) -> Tensor:
    others, gamma = (1 - y_t).clamp_min(1e-7), p["gamma"]
    return others**gamma - gamma * y_t * others ** (gamma - 1) * y_t.clamp_min(1e-30).log()


def _normalized_reverse(y: Tensor, x: Tensor, y_t: Tensor, p: Columns, progress: float) -> Tensor:
    log_y = y.clamp_min(1e-38).log()
    a, b = -(log_y * x).sum(-1, keepdim=True), -log_y.sum(-1, keepdim=True)
    normalized = ((y - x) * b - a * (y.shape[-1] * y - 1)) / b**2
    return p["alpha"] * normalized + 4 * y_t * (y - x)


def _plain(y: Tensor, x: Tensor, y_t: Tensor, p: Columns, progress: float) -> Tensor:
    slope = x * (p["alpha"] + p["beta"] * y_t) + p["gamma"] * y + p["delta"] * y**2
    return -y * (slope - (y * slope).sum(-1, keepdim=True))


GRADIENTS: dict[str, Callable[..., Tensor]] = {
    "taylor": _anchored,
    "plain-taylor": _plain,
    "cross-entropy": _smoothed,
    "focal": _of_target(_focal_weight),
    "gce": _of_target(lambda y_t, p: y_t.clamp_min(1e-12) ** p["q"]),
    "poly": _of_target(lambda y_t, p: 1 + p["epsilon"] * y_t),
    "sce": _of_target(lambda y_t, p: p["alpha"] + 4 * y_t),
    "taylor-ce": _of_target(lambda y_t, p: 1 - (1 - y_t).clamp_min(1e-7) ** p["order"]),
    "nce-rce": _normalized_reverse,
}
"""Derivative of each loss with respect to the logits, from softmax outputs and targets."""

TREE = "tree "
"""What the kind of a loss that is a tree begins with; its prefix form follows."""


def _gradient(kind: str) -> Callable[..., Tensor]:
    if not kind.startswith(TREE):
        return GRADIENTS[kind]
    tree = tree_from_prefix(kind.removeprefix(TREE).split())
    return lambda y, x, y_t, p, progress: tree_gradient(tree, y, x, iter(p.values()))


class BatchedMLP:
    """The trainings of a recipe on an MLP.

    Args:
        recipe: A recipe with `lightning_modules.nets.mlp.MLP`, SGD and a budget in steps.
        data_dir: Where data sets lie.
        results: File in which results are kept, so that an interrupted measurement goes on.
    """

    def __init__(self, recipe: Recipe, data_dir: Path, results: Path | None = None) -> None:
        self.recipe = recipe
        data_class = data_module_class(recipe.data.class_path)
        assert issubclass(data_class, ImageData)
        self._data_class = data_class
        self._data = data_class(data_dir, recipe.batch_size, **recipe.data.init_args)
        self._data.setup("test")
        self.n_classes = self._data.num_classes
        self._train = self._whole(self._data.train_data)
        self._judges = [self._whole(self._data.val_data), self._whole(self._data.test_data)]
        self._balanced = recipe.fitness.metric == "val_balanced_accuracy"
        self._results = results
        lines = results.read_text().splitlines() if results and results.exists() else []
        self._known: dict[str, float | None] = dict(json.loads(line) for line in lines)
        check_gradients()

    def _whole(self, subset: Subset) -> tuple[Tensor, Tensor]:
        (batch,) = EvaluationBatches(subset, len(subset.indices))
        images, labels = self._data.on_after_batch_transfer(batch, 0)
        return images.flatten(1).contiguous(), labels

    def do(self, tasks: Sequence[Task]) -> list[float | None]:
        """Do the tasks of a verdict."""
        return self.train([self._job(task.loss, task.seed, task.on_test_set) for task in tasks])

    def _job(self, loss: ComparedLoss, seed: int, on_test_set: bool = False) -> Job:
        assert self.recipe.optimizer is not None
        rate = loss.learning_rate or self.recipe.optimizer.lr
        kind, parameters = kind_of(loss), parameters_of(loss)
        return Job(kind, parameters, seed, rate * loss.scale, on_test_set)

    def search(self, name: str) -> optuna.Study:
        """Search as the recipe says; returns the study, all of its generations complete."""
        recipe = self.recipe
        study = optuna.create_study(study_name=name, direction="maximize")
        attach_recipe(study, recipe)
        study.set_user_attr(N_CLASSES, self.n_classes)
        study.sampler = sampler = make_sampler(recipe, self.n_classes)
        scheduler = GenerationScheduler(study, n_generations=recipe.search.total_generations)
        while not scheduler.over:
            trials = []
            while (trial := scheduler.claim()) is not None:
                trials.append(trial)
            jobs = []
            for trial in trials:
                loss = candidate_loss(recipe, sampler.suggest(trial), self.n_classes)
                compared = compared_evolved_loss("candidate", "candidate", Role.EVOLVED, loss)
                place = (trial.user_attrs[key] for key in (GENERATION, INDEX, ATTEMPT))
                jobs.append(self._job(compared, training_seed(recipe.search.seed, *place)))
            for trial, value in zip(trials, self.train(jobs), strict=True):
                scheduler.finish(trial, math.nan if value is None else value)
        return study

    def train(self, jobs: Sequence[Job]) -> list[float | None]:
        """Metric after each training, None for one that diverged or, in a search, was aborted.

        Known ones are not repeated.
        """
        missing = {job.key: job for job in jobs if job.key not in self._known}
        by_kind = sorted(missing.values(), key=lambda job: (job.on_test_set, job.kind))
        for first in range(0, len(by_kind), AT_A_TIME):
            part = by_kind[first : first + AT_A_TIME]
            for job, value in zip(part, self._train_together(part), strict=True):
                self._known[job.key] = value
                if self._results:
                    with self._results.open("a") as file:
                        file.write(json.dumps([job.key, value]) + "\n")
        return [self._known[job.key] for job in jobs]

    def _train_together(self, jobs: Sequence[Job]) -> list[float | None]:
        images, labels = self._train
        recipe, steps = self.recipe, self.recipe.budget.full
        nets = [self._net(job.seed) for job in jobs]
        layers = [[m for m in net.layers if isinstance(m, nn.Linear)] for net in nets]
        columns_of_layers = list(zip(*layers, strict=True))
        w = [torch.stack([m.weight.detach().t() for m in same]) for same in columns_of_layers]
        b = [torch.stack([m.bias.detach()[None] for m in same]) for same in columns_of_layers]
        order = torch.stack([self._order(job.seed, steps) for job in jobs], dim=1)
        groups = _groups(jobs)
        rates = torch.tensor([job.learning_rate for job in jobs]).view(-1, 1, 1)
        momenta = [torch.zeros_like(p) for p in (*w, *b)]
        alive = list(range(len(jobs)))
        abort = recipe.early_abort
        for step in range(steps):
            if abort is not None and step == abort.at:
                keep = [k for k, i in enumerate(alive) if self._goes_on(jobs[i], k, w, b)]
                alive = [alive[k] for k in keep]
                if not alive:
                    break
                w, b, momenta = ([t[keep] for t in tensors] for tensors in (w, b, momenta))
                order, rates = order[:, keep], rates[keep]
                groups = _groups([jobs[i] for i in alive])
            chosen = order[step]
            inputs = [images[chosen]]
            for weight, bias in zip(w[:-1], b[:-1], strict=True):
                inputs.append(torch.baddbmm(bias, inputs[-1], weight).relu_())
            logits = torch.baddbmm(b[-1], inputs[-1], w[-1])
            y = torch.softmax(logits, -1)
            targets = one_hot(labels[chosen], self.n_classes).to(y.dtype)
            y_t = (y * targets).sum(-1, keepdim=True)
            parts = [
                logit_gradient(y[these], targets[these], y_t[these], columns, step / steps)
                for these, logit_gradient, columns in groups
            ]
            d = torch.cat(parts).div_(recipe.batch_size)
            slopes = [d]
            for weight, below in zip(reversed(w[1:]), reversed(inputs), strict=False):
                slopes.insert(0, torch.bmm(slopes[0], weight.transpose(1, 2)).mul_(below > 0))
            gradients = [
                *(torch.bmm(h.transpose(1, 2), d) for h, d in zip(inputs, slopes, strict=True)),
                *(d.sum(1, keepdim=True) for d in slopes),
            ]
            for p, momentum, gradient in zip((*w, *b), momenta, gradients, strict=True):
                momentum.mul_(recipe.optimizer.momentum).add_(gradient)
                p.addcmul_(momentum, rates, value=-1)
        ended = {i: self._judge(jobs[i], k, w, b) for k, i in enumerate(alive)}
        return [ended.get(i) for i in range(len(jobs))]

    def _goes_on(self, job: Job, k: int, w: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
        """Whether a training of a search is not aborted; others never are."""
        assert self.recipe.early_abort is not None
        assert self.recipe.early_abort.unit == "steps"
        value = None if job.on_test_set else self._judge(job, k, w, b)
        threshold = self.recipe.early_abort.threshold
        return job.on_test_set or (value is not None and value >= threshold)

    def _judge(self, job: Job, k: int, w: Sequence[Tensor], b: Sequence[Tensor]) -> float | None:
        h, labels = self._judges[job.on_test_set]
        for weight, bias in zip(w[:-1], b[:-1], strict=True):
            h = torch.addmm(bias[k], h, weight[k]).relu_()
        logits = torch.addmm(b[-1][k], h, w[-1][k])
        if not logits.isfinite().all():
            return None
        right = (logits.argmax(1) == labels).float()
        if self._balanced:
            by_class = [right[labels == c].mean() for c in range(self.n_classes)]
            return float(torch.stack(by_class).mean())
        return float(right.mean())

    def _net(self, seed: int) -> MLP:
        torch.manual_seed(seed)
        return MLP(num_classes=self.n_classes, **self.recipe.model.init_args)

    def _order(self, seed: int, steps: int) -> Tensor:
        """Which images each step sees, shape (steps, B)."""
        self._data.seed = seed
        loader = self._data.train_dataloader()
        per_pass, batch = loader.steps_per_pass, self.recipe.batch_size
        passes = [
            torch.from_numpy(loader.order(number))[: per_pass * batch]
            for number in range(math.ceil(steps / per_pass))
        ]
        return torch.cat(passes)[: steps * batch].view(steps, batch)


def kind_of(loss: ComparedLoss) -> str:
    """What the gradient of a loss is known by."""
    if loss.kind == "tree":
        return TREE + " ".join(loss.settings["tree"])
    plain = loss.kind == "taylor" and loss.settings.get("base", "none") == "none"
    return "plain-taylor" if plain else loss.kind


def parameters_of(loss: ComparedLoss) -> dict[str, float]:
    """The numbers that its gradient knows a loss by."""
    if loss.kind == "tree":
        assert loss.settings["class_reduction"] == "sum"
        return {f"c_{i}": c for i, c in enumerate(loss.settings["coefficients"])}
    if loss.kind == "taylor":
        taylor = TaylorLoss(**loss.settings)
        assert taylor.class_reduction == "sum"
        canonical = to_canonical(taylor.theta, taylor.form)
        anchor = {} if taylor.anchor is None else taylor.anchor._asdict()
        return canonical._asdict() | anchor
    if loss.kind == "cross-entropy":
        return {"smoothing": loss.settings.get("label_smoothing", 0.0)}
    return dict(loss.settings)


def _groups(jobs: Sequence[Job]) -> list[tuple[slice, Callable[..., Tensor], Columns]]:
    """Networks of one kind of loss beside each other, with their gradient and its parameters."""
    found = []
    first = 0
    for kind, same in groupby(jobs, key=lambda job: job.kind):
        rows = [job.parameters for job in same]
        columns = {
            name: torch.tensor([row[name] for row in rows], dtype=torch.float32).view(-1, 1, 1)
            for name in rows[0]
        }
        found.append((slice(first, first + len(rows)), _gradient(kind), columns))
        first += len(rows)
    return found


def check_gradients() -> None:
    """The gradients by hand are those of the losses that a worker trains with."""
    values = {"focal": 1.5, "gce": 0.6, "poly": 4.0, "sce": 0.2, "taylor-ce": 3, "nce-rce": 5.0}
    names = ("gamma", "q", "epsilon", "alpha", "order", "alpha")
    losses: Iterable[ComparedLoss] = [
        ComparedLoss(kind, kind, kind, settings={name: value})
        for (kind, value), name in zip(values.items(), names, strict=True)
    ]
    theta = from_canonical((2.0, -1.0, 1.5, 0.7), THIRD_ORDER)
    evolved = [
        TaylorLoss(
            theta, class_reduction="sum", base="cross_entropy", log_scale=-0.4, smoothing=0.2
        ),
        TaylorLoss(theta, class_reduction="sum"),
        *(TreeLoss(tree.split(), class_reduction="sum") for tree in CHECKED_TREES),
        TreeLoss(BAIKAL, BAIKAL_CMA_COEFFICIENTS, class_reduction="sum"),
    ]
    smoothed = {"label_smoothing": 0.1}
    losses = [
        *losses,
        ComparedLoss("ls", "label smoothing", "cross-entropy", settings=smoothed),
        *(compared_evolved_loss("evolved", "evolved", Role.EVOLVED, loss) for loss in evolved),
    ]
    logits = torch.randn(64, 10, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.arange(64).remainder(10)
    y = torch.softmax(logits.detach(), -1)[None]
    x = one_hot(target, 10).float()[None]
    for loss in losses:
        (expected,) = torch.autograd.grad(loss.criterion()(logits, target), logits)
        ((_, gradient, columns),) = _groups([Job(kind_of(loss), parameters_of(loss), 0, 1.0)])
        found = gradient(y, x, (y * x).sum(-1, keepdim=True), columns, 0.0)[0] / 64
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
