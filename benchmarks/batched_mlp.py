"""Many trainings of a recipe's small MLP at once, for measurements that take thousands of them.

All networks of a batch take their steps together, by batched matrix products, several times as fast
as one after the other. Weights and order of data are those of a worker's training with the same
seed, so the results differ by rounding only.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import optuna
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, softplus

from lightning_modules.data import ImageData
from lightning_modules.data.batches import EvaluationBatches, Subset
from lightning_modules.nets.mlp import MLP
from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX, N_CLASSES
from optuna_taylorglo.evolution.candidates import candidate_loss, make_sampler
from optuna_taylorglo.evolution.history import attach_recipe
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.losses.canonical import to_canonical
from optuna_taylorglo.losses.robust import LEAST_OF_ACTIVE_NEGATIVE, LEAST_OF_EPSILON_SOFTMAX
from optuna_taylorglo.losses.taylor import TaylorLoss
from optuna_taylorglo.losses.tree import Tree, tree_from_prefix
from optuna_taylorglo.losses.tree_loss import LEAST_PROBABILITY
from optuna_taylorglo.recipes.load import data_module_class
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import training_seed
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import ComparedLoss, Task, compared_evolved_loss

AT_A_TIME = 48
"""Networks trained together; more no longer saves anything."""

Columns = dict[str, Tensor]
"""Parameters of the losses by name, shape (networks, 1)."""


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        kind: One of `LOSSES`, or `TREE` and the prefix form of a tree.
        parameters: Parameters of the loss.
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


class Outputs:
    """What losses are computed from, for several networks.

    Attributes:
        logits: Shape (networks, samples, classes).
        log_y: Logarithms of the softmax outputs, of the same shape.
        y: The outputs.
        x: Targets, one-hot.
        log_y_t: Logarithms of the targets' outputs, shape (networks, samples).
        y_t: The targets' outputs.
    """

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        self.logits = logits
        self.log_y = torch.log_softmax(logits, -1)
        self.y = self.log_y.exp()
        self.x = one_hot(labels, logits.shape[-1]).to(logits.dtype)
        self.log_y_t = (self.log_y * self.x).sum(-1)
        self.y_t = self.log_y_t.exp()


def _cross_entropy(o: Outputs, p: Columns) -> Tensor:
    return -(1 - p["smoothing"]) * o.log_y_t - p["smoothing"] * o.log_y.mean(-1)


def _polynomial(o: Outputs, p: Columns) -> Tensor:
    at_target = p["alpha"] * o.y_t + p["beta"] / 2 * o.y_t**2
    return at_target + p["gamma"] / 2 * (o.y**2).sum(-1) + p["delta"] / 3 * (o.y**3).sum(-1)


def _taylor_cross_entropy(o: Outputs, p: Columns) -> Tensor:
    orders = range(1, int(p["order"].max()) + 1)
    return sum((p["order"] >= i) * (1 - o.y_t) ** i / i for i in orders)


def _normalized_cross_entropy(o: Outputs) -> Tensor:
    return o.log_y_t / o.log_y.sum(-1)


def _asymmetric(o: Outputs, p: Columns) -> Tensor:
    passive = ((p["a"] + 1) ** p["q"] - (p["a"] + o.y_t) ** p["q"]) / p["q"]
    return p["alpha"] * _normalized_cross_entropy(o) + p["beta"] * passive


def _active_negative(o: Outputs, p: Columns) -> Tensor:
    above = (o.log_y - math.log(LEAST_OF_ACTIVE_NEGATIVE)).clamp_min(0.0)
    negative = 1 - (above * o.x).sum(-1) / above.sum(-1)
    return p["alpha"] * _normalized_cross_entropy(o) + p["beta"] * negative


def _epsilon_softmax(o: Outputs, p: Columns) -> Tensor:
    top = o.log_y.argmax(-1) == o.x.argmax(-1)
    raised = (o.y_t + p["m"]).log().where(top, o.log_y_t) - p["m"].log1p()
    raised = raised.clamp_min(math.log(LEAST_OF_EPSILON_SOFTMAX))
    return 2 * p["beta"] * (1 - o.y_t) - p["alpha"] * raised


def _joint_asymmetric(o: Outputs, p: Columns) -> Tensor:
    squares = ((p["a"][..., None] * o.x - o.y) ** 2).mean(-1)
    return p["alpha"] * _normalized_cross_entropy(o) + p["beta"] * squares


def _label_distributionally_robust(o: Outputs, p: Columns) -> Tensor:
    positive = softplus(o.logits)
    f = positive / positive.mean(-1, keepdim=True)
    margins = p["margin"][..., None] * (1 - o.x)
    distances = (f - (f * o.x).sum(-1, keepdim=True) + margins) / p["temperature"][..., None]
    return p["temperature"] * (distances.logsumexp(-1) - math.log(f.shape[-1]))


def _logit_clip(o: Outputs, p: Columns) -> Tensor:
    tau = p["tau"][..., None]
    norm = torch.linalg.vector_norm(o.logits, dim=-1, keepdim=True)
    log_y = torch.log_softmax(o.logits * tau / torch.maximum(norm, tau), -1)
    return -(log_y * o.x).sum(-1)


LOSSES: dict[str, Callable[[Outputs, Columns], Tensor]] = {
    "taylor": lambda o, p: p["log_scale"].exp() * (_cross_entropy(o, p) - _polynomial(o, p)),
    "plain-taylor": lambda o, p: -_polynomial(o, p),
    "cross-entropy": _cross_entropy,
    "focal": lambda o, p: -((1 - o.y_t).clamp_min(1e-7) ** p["gamma"]) * o.log_y_t,
    "gce": lambda o, p: (1 - o.y_t ** p["q"]) / p["q"],
    "poly": lambda o, p: p["epsilon"] * (1 - o.y_t) - o.log_y_t,
    "sce": lambda o, p: 4 * p["beta"] * (1 - o.y_t) - p["alpha"] * o.log_y_t,
    "taylor-ce": _taylor_cross_entropy,
    "nce-rce": lambda o, p: p["alpha"] * _normalized_cross_entropy(o) + 4 * p["beta"] * (1 - o.y_t),
    "nce-agce": _asymmetric,
    "anl-ce": _active_negative,
    "eps-softmax": _epsilon_softmax,
    "jal-ce": _joint_asymmetric,
    "ldr-kl": _label_distributionally_robust,
    "logit-clip": _logit_clip,
}
"""Each sample's loss, shape (networks, samples)."""

TREE = "tree "

OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "log": torch.log,
    "square": torch.square,
    "sqrt": torch.sqrt,
}


def _tree_loss(tree: Tree) -> Callable[[Outputs, Columns], Tensor]:
    def loss(o: Outputs, p: Columns) -> Tensor:
        # As `TreeLoss` has it: below the least probability 1/y is a straight line in log y.
        below = (math.log(LEAST_PROBABILITY) - o.log_y).clamp_min(0.0)
        y = torch.where(below > 0, LEAST_PROBABILITY / (1 + below), o.y)
        coefficients = iter(p.values())

        def value(node: Tree) -> Tensor | float:
            factor = next(coefficients)[..., None]
            if node.operator == "log" and node.children[0].operator == "y":
                return factor * (o.log_y + next(coefficients)[..., None].log())
            if node.children:
                operands = [value(child) for child in node.children]
                return factor * OPERATIONS[node.operator](*operands)
            return factor * {"x": o.x, "y": y, "1": 1.0, "-1": -1.0}[node.operator]

        return -(value(tree) + 0 * y).sum(-1)

    return loss


def loss_of(kind: str) -> Callable[[Outputs, Columns], Tensor]:
    """Each sample's loss, for networks whose losses are of one kind."""
    if kind.startswith(TREE):
        return _tree_loss(tree_from_prefix(kind.removeprefix(TREE).split()))
    return LOSSES[kind]


class BatchedMLP:
    """The trainings of a recipe on an MLP.

    Args:
        recipe: A recipe with `lightning_modules.nets.mlp.MLP`, SGD and a budget in steps.
        data_dir: Folder of the data sets.
        results: File in which results are saved, so that an interrupted measurement resumes.
    """

    def __init__(self, recipe: Recipe, data_dir: Path, results: Path | None = None) -> None:
        self.recipe = recipe
        data_class = data_module_class(recipe.data.class_path)
        assert issubclass(data_class, ImageData)
        self._data = data_class(data_dir, recipe.batch_size, **recipe.data.init_args)
        self._data.setup("test")
        self.n_classes = self._data.num_classes
        self._train = self._whole(self._data.train_data)
        self._judges = [self._whole(self._data.val_data), self._whole(self._data.test_data)]
        self._balanced = recipe.fitness.metric == "val_balanced_accuracy"
        self._results = results
        lines = results.read_text().splitlines() if results and results.exists() else []
        self._known: dict[str, float | None] = dict(json.loads(line) for line in lines)

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
        """Metric after each training; None if it diverged or, in a search, was aborted."""
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
            d = logit_gradients(logits, labels[chosen], groups).div_(recipe.batch_size)
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
        """Whether a training is not aborted; only those of a search ever are."""
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
    """The kind of a job with this loss."""
    if loss.kind == "tree":
        return TREE + " ".join(loss.settings["tree"])
    plain = loss.kind == "taylor" and loss.settings.get("base", "none") == "none"
    kind = "cross-entropy" if loss.kind == "label-smoothing" else loss.kind
    return "plain-taylor" if plain else kind


def parameters_of(loss: ComparedLoss) -> dict[str, float]:
    """The parameters of a job with this loss."""
    if loss.kind == "tree":
        assert loss.settings["class_reduction"] == "sum"
        return {f"c_{i}": c for i, c in enumerate(loss.settings["coefficients"])}
    if loss.kind == "taylor":
        taylor = TaylorLoss(**loss.settings)
        assert taylor.class_reduction == "sum"
        canonical = to_canonical(taylor.theta, taylor.form)
        anchor = {} if taylor.anchor is None else taylor.anchor._asdict()
        return canonical._asdict() | anchor
    if loss.kind in ("cross-entropy", "label-smoothing"):
        return {"smoothing": loss.settings.get("label_smoothing", 0.0)}
    return dict(loss.settings)


Groups = list[tuple[slice, Callable[[Outputs, Columns], Tensor], Columns]]


def _groups(jobs: Sequence[Job]) -> Groups:
    """Networks of one kind of loss beside each other, with their loss and its parameters."""
    found: Groups = []
    first = 0
    for kind, same in groupby(jobs, key=lambda job: job.kind):
        rows = [job.parameters for job in same]
        columns = {
            name: torch.tensor([row[name] for row in rows], dtype=torch.float32)[:, None]
            for name in rows[0]
        }
        found.append((slice(first, first + len(rows)), loss_of(kind), columns))
        first += len(rows)
    return found


def logit_gradients(logits: Tensor, labels: Tensor, groups: Groups) -> Tensor:
    """Derivatives of each sample's loss with respect to its logits, of the shape of these."""
    logits = logits.detach().requires_grad_()
    losses = [
        loss(Outputs(logits[these], labels[these]), columns).sum()
        for these, loss, columns in groups
    ]
    (gradients,) = torch.autograd.grad(torch.stack(losses).sum(), logits)
    return gradients
