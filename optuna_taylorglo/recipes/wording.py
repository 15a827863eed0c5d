"""What a recipe's reader should be told, though nothing is wrong with it as such."""

from optuna_taylorglo.recipes.schema import FitnessSettings
from optuna_taylorglo.recipes.search_settings import SearchSettings


def search_size(search: SearchSettings) -> str:
    """How many generations of how many candidates there are, in words."""
    if search.glo is None:
        return f"{search.generations} generations of {search.population} candidates"
    stage = search.glo.coefficients
    coefficients = f", then {stage.generations} of {stage.population} sets of coefficients"
    trees = f"{search.glo.generations} generations of {search.glo.population} trees"
    return trees + (coefficients if stage.generations else "")


def own_loss_warning(fitness: FitnessSettings) -> str:
    """A warning for a metric that is probably the criterion's own value; empty for any other."""
    if "loss" not in fitness.metric.lower():
        return ""
    maximized = ", and it is maximized (fitness.mode: max)" if fitness.mode == "max" else ""
    return (
        f"fitness.metric {fitness.metric}{maximized}: if it is computed by self.criterion, it is "
        "each candidate's own loss and cannot compare candidates. Log one that does not depend on "
        "it, such as the cross-entropy of the predictions with mode: min, or the accuracy."
    )
