"""Whether a recipe's fitness is one that its network has, and that says which loss is better."""

from __future__ import annotations

import logging

from lightning_modules.metrics import MODES
from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.schema import FitnessSettings
from optuna_taylorglo.recipes.wording import own_loss_warning

logger = logging.getLogger(__name__)

_FEWEST_FOR_TOP_5 = 6


def bundled_metric(fitness: FitnessSettings, n_classes: int) -> str:
    """The metric that a `Classifier` has to log for a plain network's fitness.

    Args:
        fitness: The recipe's fitness.
        n_classes: Number of classes.

    Returns:
        Its name in `MODES`, without ``val_``.

    Raises:
        RecipeError: If there is no such metric, the other direction is better, the data have too
            few classes, or it is each candidate's own loss.
    """
    name = fitness.metric.removeprefix("val_")
    if fitness.metric == "val_loss":
        raise RecipeError(
            "fitness.metric",
            "val_loss is each candidate's own loss, so it cannot compare candidates; write "
            "metric: val_nll and mode: min, the cross-entropy of the predictions whatever loss "
            "trained them",
        )
    if name not in MODES or name == fitness.metric:
        known = ", ".join(f"val_{metric}" for metric in MODES)
        raise RecipeError(
            "fitness.metric",
            f"{fitness.metric!r} is not logged for a plain network, for which it may be {known}; "
            "a LightningModule may log any",
        )
    if fitness.mode != MODES[name]:
        better = "greater" if MODES[name] == "max" else "smaller"
        raise RecipeError(
            "fitness.mode",
            f"{fitness.mode} is not allowed with {fitness.metric}, of which {better} is better; "
            f"write mode: {MODES[name]}",
        )
    if name == "top5_accuracy" and n_classes < _FEWEST_FOR_TOP_5:
        raise RecipeError(
            "fitness.metric",
            f"val_top5_accuracy is 1 whatever is learnt, as the data have {n_classes} classes; it "
            f"needs {_FEWEST_FOR_TOP_5}, use val_accuracy",
        )
    return name


def warn_of_own_loss(fitness: FitnessSettings) -> None:
    """Say so in the log if an own module's metric may be made of the criterion."""
    if warning := own_loss_warning(fitness):
        logger.warning("%s", warning)
