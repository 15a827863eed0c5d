"""Losses in the `Trainer` of Hugging Face transformers, which this module does not import."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from optuna_taylorglo.losses.conventions import ClassificationLoss

IGNORED = -100
"""The label that `Trainer` leaves out of num_items_in_batch."""


def trainer_loss(
    loss: ClassificationLoss | nn.CrossEntropyLoss, *, shift: bool = False
) -> Callable[..., Tensor]:
    """A loss as the `compute_loss_func` of Hugging Face's `Trainer`.

        Trainer(model, compute_loss_func=trainer_loss(load_loss("best_loss.json")), ...)

    The class indices in the batch's "labels" are compared with the model's "logits", or with its
    first output. Labels of -100 do not count. With gradient accumulation the loss is the sum over
    the labels divided by the number that count in the whole batch, as in transformers; class
    weights do not enter that number.

    Args:
        loss: One of the losses here, or `nn.CrossEntropyLoss`; its `reduction` is left aside.
        shift: Whether logits (…, T, V) predict the next label, as in causal language models.

    Returns:
        ``compute(outputs, labels, num_items_in_batch=None)``, which can be pickled.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import FocalLoss, trainer_loss
        >>> compute = trainer_loss(FocalLoss(gamma=2.0))
        >>> outputs, labels = {"logits": torch.zeros(2, 3, 4)}, torch.zeros(2, 3).long()
        >>> compute(outputs, labels)
        tensor(0.7798)
        >>> compute(outputs, labels, num_items_in_batch=12)  # half of the labels to come
        tensor(0.3899)
    """
    if loss.ignore_index != IGNORED:
        raise ValueError(
            f"ignore_index is {loss.ignore_index}; Trainer counts labels other than {IGNORED}: "
            f"give the loss ignore_index={IGNORED}, as in load_loss(path, ignore_index={IGNORED})."
        )
    return partial(_compute, loss, shift)


def _compute(
    loss: nn.Module,
    shift: bool,
    outputs: Mapping[str, Any] | Sequence[Any] | Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    if isinstance(outputs, Tensor):
        logits = outputs
    else:
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    loss = copy.copy(loss.to(logits.device))  # Trainer moves models, not losses
    loss.reduction = "mean" if num_items_in_batch is None else "sum"  # type: ignore[assignment]
    value: Tensor = loss(logits.flatten(0, -2), labels.flatten().to(logits.device))
    if num_items_in_batch is None:
        return value
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(value.device)
    return value / num_items_in_batch
