"""A recipe in sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence

from optuna_taylorglo.losses.expansion import VARIABLES
from optuna_taylorglo.losses.tree import OPERATORS
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.recipes.settings import Component, OptimizerSettings, SearchSettings
from optuna_taylorglo.search.candidates import parameter_names
from optuna_taylorglo.verdict.families import MODULE, RECIPE

_ANCHORED = {
    "log_scale": "the logarithm of that scale",
    "smoothing": "the label smoothing of cross-entropy",
}


def recipe_in_words(recipe: Recipe, optimizer: str | None = RECIPE) -> list[str]:
    """What was searched, how, and what was trained on what: a few paragraphs of plain text.

    Args:
        recipe: The recipe.
        optimizer: Whose optimizer trained, as `verdict.learning_rates.optimizer_owner` says.
    """
    paragraphs = [
        _family(recipe),
        _conventions(recipe),
        _search(recipe),
        _rules(recipe),
        _training(recipe, optimizer),
        _trainer(recipe),
    ]
    return [text for text in paragraphs if text]


def _family(recipe: Recipe) -> str:
    loss = recipe.loss
    if recipe.search.glo is not None:
        return (
            f"The losses are trees of {', '.join(OPERATORS)} over the target x and the output y, "
            f"of a depth of {recipe.search.glo.max_depth} at most, "
            f"{'averaged' if loss.class_reduction == 'mean' else 'summed'} over the classes."
        )
    variables = ", and ".join(f"{name}, the {VARIABLES[name]}" for name in loss.variables)
    polynomials = (
        f"Taylor polynomials of order {loss.order} in {variables}, "
        f"{'averaged' if loss.class_reduction == 'mean' else 'summed'} over the classes"
    )
    anchored = [name for name in parameter_names(recipe) if name in _ANCHORED]
    space = (
        "the four numbers of its canonical form"
        if recipe.search.space == "canonical"
        else f"its {len(parameter_names(recipe)) - len(anchored)} parameters θ"
    )
    if loss.base == "none":
        return f"The losses are {polynomials}. The search varies {space}."
    varied = _and([space, *(_ANCHORED[name] for name in anchored)])
    return (
        f"The losses are cross-entropy less {polynomials}, all times a scale: at 0 they are "
        f"cross-entropy itself. The search varies {varied}."
    )


def _conventions(recipe: Recipe) -> str:
    """What all losses of the study have in common, the compared ones included."""
    loss, parts = recipe.loss, []
    if loss.class_weights == "balanced":
        parts.append("weigh classes by the inverse of their frequency")
    elif loss.class_weights is not None:
        parts.append(f"weigh the classes by {', '.join(f'{w:.4g}' for w in loss.class_weights)}")
    if loss.label_smoothing:
        parts.append(f"smooth the labels by {loss.label_smoothing:g}")
    if loss.ignore_index >= 0:
        parts.append(f"leave out the label {loss.ignore_index}")
    words = _and(parts) if len(parts) > 1 else "".join(parts)
    return f"All losses, those that they are compared with too, {words}." if parts else ""


def _and(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def _search(recipe: Recipe) -> str:
    search, budget, fitness = recipe.search, recipe.budget, recipe.fitness
    repeats = f", averaged over {search.repeats} trainings" if search.repeats > 1 else ""
    smaller = ", smaller being better" if fitness.mode == "min" else ""
    return (
        f"{_proposing(search)} A candidate's fitness is the {fitness.take} {fitness.metric} of a "
        f"training of {budget.evaluation} {budget.unit}"
        f"{repeats}{smaller}; a full training has {budget.full}."
    )


def _proposing(search: SearchSettings) -> str:
    if search.glo is None:
        start = "0"
        if search.start is not None:
            start = f"the expansion of {search.start.loss}" if search.start.loss else "given θ"
        return (
            f"CMA-ES, starting at {start} with step size {search.sigma:g}, proposed "
            f"{search.popsize} candidates per generation for {search.n_generations} generations."
        )
    glo, stage = search.glo, search.glo.coefficients
    trees = (
        f"Genetic programming (GLO) bred {glo.popsize} trees per generation for "
        f"{glo.n_generations} generations, of which the best {glo.elite} went on as they were; of "
        "equal functions one was evaluated."
    )
    if not stage.n_generations:
        return trees
    return (
        f"{trees} Then CMA-ES, starting at 1 with step size {stage.sigma:g}, proposed "
        f"{stage.popsize} sets of coefficients on the nodes of the best tree per generation for "
        f"{stage.n_generations} generations."
    )


def _rules(recipe: Recipe) -> str:
    search, rules = recipe.search, []
    if search.filter == "trainable":
        rules.append("Candidates that cannot begin to learn were drawn again.")
    if search.filter == "steady":
        rules.append(
            "Candidates that cannot begin to learn, or that draw all predictions to one class, "
            "were drawn again."
        )
    if search.scale == "normalized":
        rules.append("All candidates were scaled to cross-entropy's first gradient.")
    if recipe.selection is not None:
        best = f"The {recipe.selection.candidates} best candidates that differ as functions"
        trained = "are trained fully on validation, by successive halving over seeds."
        if search.glo is not None and not search.glo.coefficients.n_generations:
            rules.append(f"{best} {trained}")
        else:
            rules.append(
                f"{best} and the mean of the final distribution {trained} The mean of the "
                "distribution wins unless another is clearly better."
            )
    if search.seed_policy == "common":
        rules.append("All candidates of a generation were trained from the same seeds.")
    if (abort := recipe.early_abort) is not None:
        worse = "below" if recipe.fitness.mode == "max" else "above"
        rules.append(
            f"A training {worse} {abort.threshold:g} after {abort.at} {abort.unit} was aborted"
            + (
                f"; a candidate got up to {abort.attempts} trainings."
                if abort.attempts > 1
                else "."
            )
        )
    if (pace := recipe.early_stop) is not None:
        rules.append(
            f"A candidate that after {pace.at} {pace.unit} was behind the best {pace.keep:.0%} of "
            "the generation before was stopped, and ranked below all that went on."
        )
    return " ".join(rules)


def _training(recipe: Recipe, optimizer: str | None) -> str:
    checkpoint = recipe.checkpoint
    start = "" if checkpoint is None else f", starting from the weights in {checkpoint.path}"
    batches = f"batches of {recipe.batch_size}"
    text = f"The network is {_component(recipe.model)}, trained on {_component(recipe.data)}"
    if optimizer == MODULE or recipe.optimizer is None:
        return f"{text} with its own optimizer and {batches}{start}."
    unless = "" if optimizer == RECIPE else ", unless it brings its own optimizer"
    described = f"{recipe.optimizer.name} ({', '.join(_details(recipe.optimizer))})"
    return f"{text} with {described}, {batches} and {_rate(recipe)}{start}{unless}."


def found_with(recipe: Recipe, optimizer: str | None = RECIPE) -> str:
    """Which optimizer a loss belongs to, in a few words; arguments as of `recipe_in_words`."""
    if optimizer == MODULE or recipe.optimizer is None:
        return f"the optimizer of {recipe.model.class_path}"
    described = f"{recipe.optimizer.name} at learning rate {recipe.optimizer.lr:g}"
    return described if optimizer == RECIPE else f"{described}, or the module's own optimizer,"


def _details(optimizer: OptimizerSettings) -> list[str]:
    details = [f"learning rate {optimizer.lr:g}"]
    if optimizer.momentum:
        kind = "Nesterov momentum" if optimizer.nesterov else "momentum"
        details.append(f"{kind} {optimizer.momentum:g}")
    if optimizer.weight_decay:
        details.append(f"weight decay {optimizer.weight_decay:g}")
    return details


def _rate(recipe: Recipe) -> str:
    schedule = recipe.schedule
    rate = "constant learning rate"
    if schedule.kind == "cosine":
        rate = "learning rate falling as a cosine to 0 at the end of a full training"
    if schedule.kind == "one_cycle":
        rate = "learning rate of one cycle over a full training"
    if schedule.milestones:
        when = ", ".join(str(milestone) for milestone in schedule.milestones)
        rate = f"learning rate multiplied by {schedule.gamma:g} after {when} {schedule.unit}"
    warmup = f", after a warm-up of {schedule.warmup} {schedule.unit}" if schedule.warmup else ""
    return rate + warmup


def _trainer(recipe: Recipe) -> str:
    trainer, said = recipe.trainer, []
    if trainer.gradient_clip_val is not None:
        what = "their norm" if trainer.gradient_clip_algorithm == "norm" else "each entry"
        said.append(f"Gradients were clipped, {what} to {trainer.gradient_clip_val:g}.")
    if trainer.accumulate_grad_batches > 1:
        said.append(f"{trainer.accumulate_grad_batches} batches made one optimizer step.")
    if trainer.precision is not None:
        said.append(f"The precision was {trainer.precision}.")
    if trainer.deterministic:
        said.append("Only deterministic algorithms were used.")
    if trainer.callbacks:
        callbacks = ", ".join(_component(callback) for callback in trainer.callbacks)
        said.append(f"Callbacks: {callbacks}.")
    return " ".join(said)


def _component(component: Component) -> str:
    arguments = ", ".join(f"{k}={json.dumps(v)}" for k, v in component.init_args.items())
    return f"{component.class_path}({arguments})"
