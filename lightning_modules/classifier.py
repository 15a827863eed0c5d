"""One LightningModule for every classification network, criterion and optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from pytorch_lightning import Callback, LightningModule
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from torchmetrics import Metric

from lightning_modules.metrics import build_metric
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.settings import OptimizerSettings, ScheduleSettings, TrainerSettings

# Calling those that do nothing takes as long as the optimizer of a small network.
_NAMES = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")
HOOKS = [(name, getattr(Callback, name)) for name in _NAMES]


class Classifier(LightningModule):
    """Trains a network with any criterion that is called as ``nn.CrossEntropyLoss`` is.

    Optimization is manual in Lightning's sense: a batch may hold several mini-batches, because a
    batch costs Lightning more than a small network. ``trainer.global_step`` counts steps.

    Logged: ``val_accuracy``, ``val_balanced_accuracy`` (the mean of the classes' accuracies) and
    ``val_loss``, and the metric that is asked for; the same with ``test_``.

    Args:
        net: Maps a batch of inputs to logits (B, classes) or (B, classes, d1, …), or of sequences
            (B, T, classes), whose labels are (B, T).
        criterion: Called with logits in float32 and the labels. If it has a tensor attribute
            ``progress``, that is set to the share of training done, in [0, 1], before every step.
        optimizer: Optimizer settings.
        schedule: Learning-rate schedule, epochs being those of the Trainer; None: constant.
        schedule_length: Units of the schedule that a full training has.
        trainer_settings: Clipping and accumulation of gradients, which a Trainer cannot do here;
            None: neither. What an epoch has left makes a step too.
        channels_last: Keep 4-D weights and inputs in PyTorch's channels_last memory format.
        metric: One of `metrics.MODES` to log besides.
        num_classes: Number of classes, for such a metric.
        ignore_index: Label that no metric counts.
        batch_size: Examples of a mini-batch, into which batches are cut; None: they are not.

    Attributes:
        total_steps: Optimizer steps of the whole training; None: as the Trainer has batches.
    """

    def __init__(
        self,
        net: nn.Module,
        criterion: nn.Module | None = None,
        *,
        optimizer: OptimizerSettings,
        schedule: ScheduleSettings | None = None,
        schedule_length: int = 1,
        trainer_settings: TrainerSettings | None = None,
        channels_last: bool = False,
        metric: str = "accuracy",
        num_classes: int = 0,
        ignore_index: int = -100,
        batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.criterion = nn.CrossEntropyLoss() if criterion is None else criterion
        self.optimizer_settings = optimizer
        self.schedule_settings = schedule or ScheduleSettings()
        self.schedule_length = schedule_length
        self.trainer_settings = trainer_settings or TrainerSettings()
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.ignore_index = ignore_index
        self.batch_size = batch_size
        self.total_steps: float | None = None
        self.metric_names = dict.fromkeys(["loss", "accuracy", "balanced_accuracy", metric])
        for name in self.metric_names:
            for stage in ("val", "test"):
                setattr(self, f"{stage}_{name}", build_metric(name, num_classes, ignore_index))
        self._n_accumulated = 0

    def forward(self, inputs: Tensor | Mapping[str, Any]) -> Tensor:
        """Map inputs (B, ...) to logits in float32, whatever the net computes in.

        A mapping's entries are the net's arguments by name, or a single one by another name; its
        output may hold ``logits``, as with models of Hugging Face.
        """
        if isinstance(inputs, Mapping):
            output = self._call_net(inputs)
            logits: Tensor = getattr(output, "logits", output)
            return logits.float()
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=self.memory_format)
        logits = self.net(inputs)
        return logits.float()

    def _call_net(self, entries: Mapping[str, Any]) -> Any:
        signature = inspect.signature(self.net.forward)
        parameters = signature.parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        arguments, named = [], dict(entries)
        if len(named) == 1 and not takes_any and not named.keys() & parameters.keys():
            arguments, named = list(named.values()), {}
        try:
            signature.bind(*arguments, **named)
        except TypeError as error:
            raise RecipeError(
                "data.class_path",
                f"its batches hold {', '.join(map(str, entries)) or 'nothing'} besides labels, but "
                f"{type(self.net).__name__}.forward takes {', '.join(parameters)}: {error}; name "
                "the entries as these arguments",
            ) from error
        return self.net(*arguments, **named)

    def _logits(self, inputs: Any, labels: Tensor) -> Tensor:
        """Logits with the classes where PyTorch has them, second, also of sequences (B, T, C)."""
        logits: Tensor = self(inputs)
        if logits.ndim == 3 and labels.shape == logits.shape[:2] != logits.shape[::2]:
            logits = logits.movedim(-1, 1)
        return logits

    def configure_optimizers(self) -> Any:
        if self.memory_format == torch.channels_last:
            self.net.to(memory_format=self.memory_format)
        # A fused update may unscale gradients itself, so Lightning clips none in mixed precision.
        clips = self.trainer_settings.gradient_clip_val is not None
        fused = not (clips and isinstance(self.trainer.precision_plugin, MixedPrecision))
        optimizer = build_optimizer(self.optimizer_settings, self.net.parameters(), fused=fused)
        if self.schedule_settings.is_constant:
            return optimizer
        schedule = build_schedule(self.schedule_settings, optimizer, self.schedule_length)
        return [optimizer], [schedule]

    def on_train_start(self) -> None:
        if self.total_steps is None:
            batches = self.trainer.estimated_stepping_batches
            self.total_steps = batches / self.trainer_settings.accumulate_grad_batches
        self._n_accumulated = 0
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        self._needs_hooks = (
            getattr(self.trainer.precision_plugin, "scaler", None) is not None
            or type(self) is not Classifier
            or self.trainer_settings.gradient_clip_val is not None
            or any(getattr(type(c), hook) is not plain for c in callbacks for hook, plain in HOOKS)
        )

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Take one optimizer step on each mini-batch, or on several whose gradients add up.

        Returns:
            The losses of the mini-batches as "loss", shape (n,).
        """
        inputs, labels = split_batch(batch)
        mini_batches = [(inputs, labels)]
        if self.batch_size is not None:
            parts = (part.split(self.batch_size) for part in (inputs, labels))
            mini_batches = list(zip(*parts, strict=True))
        assert self.total_steps is not None
        optimizer = cast(LightningOptimizer, self.optimizers())
        n_accumulate = self.trainer_settings.accumulate_grad_batches
        losses, step, n_accumulated = [], self.trainer.global_step, self._n_accumulated
        for number, (inputs, labels) in enumerate(mini_batches, start=1):
            set_progress(self.criterion, step / self.total_steps)
            loss = self.criterion(self._logits(inputs, labels), labels)
            losses.append(loss.detach())
            if n_accumulated == 0:
                optimizer.zero_grad()
            loss = loss if n_accumulate == 1 else loss / n_accumulate
            if self._needs_hooks:
                self.manual_backward(loss)
            else:
                loss.backward()
            n_accumulated += 1
            epoch_ends = number == len(mini_batches) and self.trainer.is_last_batch
            if n_accumulated == n_accumulate or epoch_ends:
                self._step(optimizer)
                n_accumulated = 0
                self._step_schedule("steps")
                step += 1
        self._n_accumulated = n_accumulated
        return {"loss": torch.stack(losses)}

    def _step(self, optimizer: LightningOptimizer) -> None:
        if self._needs_hooks:
            optimizer.step()
        else:  # Lightning has no public way to count a step that it does not make
            optimizer._on_before_step()
            optimizer.optimizer.step()
            optimizer._on_after_step()

    def on_before_optimizer_step(self, optimizer: optim.Optimizer) -> None:
        """Clip gradients, which are not scaled any more here."""
        settings = self.trainer_settings
        if (clip := settings.gradient_clip_val) is not None:
            self.clip_gradients(optimizer, clip, settings.gradient_clip_algorithm)

    def on_train_epoch_end(self) -> None:
        self._step_schedule("epochs")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def _evaluate(self, batch: Any, stage: str) -> None:
        inputs, labels = split_batch(batch)
        logits, classes = self._logits(inputs, labels), class_indices(labels)
        for name in self.metric_names:
            metric: Metric = getattr(self, f"{stage}_{name}")
            if name == "accuracy":
                counted = (classes != self.ignore_index).float()
                metric.update((logits.argmax(dim=1) == classes).float(), counted)
            elif name == "loss":
                metric.update(self.criterion(logits, labels), weight=len(labels))
            else:
                metric.update(logits, classes)
            self.log(f"{stage}_{name}", metric)

    def _step_schedule(self, unit: str) -> None:
        if self.schedule_settings.unit == unit and not self.schedule_settings.is_constant:
            schedule = cast(lr_scheduler.LRScheduler, self.lr_schedulers())
            # A longer training keeps the rate of the last step; a cosine would rise again.
            longer = schedule.last_epoch >= self.schedule_length - 1
            if self.schedule_settings.kind == "steps" or not longer:
                schedule.step()


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Inputs and labels of a batch, a pair or a mapping in which ``labels`` stands by its name."""
    if isinstance(batch, Mapping) and "labels" in batch:
        return {name: part for name, part in batch.items() if name != "labels"}, batch["labels"]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, labels = batch
        return inputs, labels
    found = f"a {type(batch).__name__}"
    if isinstance(batch, Mapping):
        found = f"a mapping with the keys {', '.join(map(str, batch))}"
    elif isinstance(batch, tuple | list):
        found += f" of {len(batch)}"
    raise RecipeError(
        "data.class_path",
        f"its batches are {found}, must be (inputs, labels), or a mapping with the key labels "
        "whose other entries are arguments of the network; a LightningModule takes any",
    )


def class_indices(labels: Tensor) -> Tensor:
    """Labels as indices: of probabilities (B, classes, …) the most probable class."""
    is_soft = labels.is_floating_point() and labels.ndim > 1
    return labels.argmax(dim=1) if is_soft else labels


def set_progress(criterion: object, share: float) -> None:
    """Set the criterion's tensor ``progress``, if it has one, to a share of training done."""
    progress = getattr(criterion, "progress", None)
    if isinstance(progress, Tensor):
        progress.fill_(min(share, 1.0))


def build_optimizer(
    settings: OptimizerSettings, parameters: Iterable[nn.Parameter], *, fused: bool = True
) -> optim.Optimizer:
    """Build an optimizer; a fused update is one kernel, the fastest on CPU and GPU."""
    kinds: Any = {"sgd": optim.SGD, "adam": optim.Adam, "adamw": optim.AdamW}
    options = settings.model_dump(include={"lr", "weight_decay"})
    if settings.name == "sgd":
        options |= settings.model_dump(include={"momentum", "nesterov"})
    optimizer: optim.Optimizer = kinds[settings.name](parameters, fused=fused, **options)
    return optimizer


def build_schedule(
    settings: ScheduleSettings, optimizer: optim.Optimizer, length: int
) -> lr_scheduler.LRScheduler:
    """Build a scheduler, whose ``step`` is for every unit of a full training of some length."""
    if settings.kind == "one_cycle":
        # Momentum stays as the recipe has it.
        peak = [group["lr"] for group in optimizer.param_groups]
        return lr_scheduler.OneCycleLR(optimizer, peak, total_steps=length, cycle_momentum=False)
    warmup = settings.warmup
    after: lr_scheduler.LRScheduler
    if settings.kind == "cosine":
        after = lr_scheduler.CosineAnnealingLR(optimizer, T_max=length - warmup)
    else:
        milestones = [milestone - warmup for milestone in settings.milestones]
        after = lr_scheduler.MultiStepLR(optimizer, milestones, settings.gamma)
    if not warmup:
        return after
    # The first unit has 1 / warmup of the rate, the last one of the rise all of it.
    rise = lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
    return lr_scheduler.SequentialLR(optimizer, [rise, after], milestones=[warmup])
