"""Recipes for tests, and everything that a recipe must not say."""

from typing import Any

from optuna_taylorglo.recipes.schema import recipe_from_dict

MINIMAL = """\
data: {class_path: lightning_modules.data.Digits}
model: {class_path: lightning_modules.nets.digits_cnn.DigitsCNN}
optimizer: {name: sgd, lr: 0.05}
batch_size: 64
budget: {unit: steps, evaluation: 400, full: 4000}
"""


def recipe_with(path: str, value: object) -> dict[str, Any]:
    """The minimal recipe as a mapping, with one field (dotted path) set."""
    content = recipe_from_dict(minimal()).to_dict()
    *sections, name = path.split(".")
    target = content
    for section in sections:
        target[section] = target.get(section) or {}
        target = target[section]
    target[name] = value
    return content


def minimal() -> dict[str, Any]:
    return {
        "data": {"class_path": "lightning_modules.data.Digits"},
        "model": {"class_path": "lightning_modules.nets.digits_cnn.DigitsCNN"},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "batch_size": 64,
        "budget": {"unit": "steps", "evaluation": 400, "full": 4000},
    }


REQUIRED = ["data", "model.class_path", "optimizer.lr", "batch_size", "budget.full"]


def without(path: str) -> dict[str, Any]:
    """The minimal recipe without one field (dotted path)."""
    content = minimal()
    *sections, name = path.split(".")
    target = content
    for section in sections:
        target = target[section]
    del target[name]
    return content


BAD_VALUES: list[tuple[str, object, list[str]]] = [
    ("serach", {}, ["did you mean search?"]),
    ("lr", 0.1, ["did you mean optimizer.lr?"]),
    ("search.momentum", 0.9, ["did you mean optimizer.momentum?"]),
    ("search.lambda", 28, ["unknown field", "known are popsize, sigma"]),
    ("search.popsise", 28, ["did you mean popsize?"]),
    ("data_dir", "/data", ["belongs to the machine", "--data-dir"]),
    ("search.device", "cuda", ["belongs to the machine", "--device"]),
    ("data.init_args", {"data_dir": "/data"}, ["belongs to the machine", "--data-dir"]),
    ("data", "lightning_modules.data.Digits", ["must be a mapping", "class_path, init_args"]),
    ("data.class_path", "Digits", ['"Digits" is not allowed', "dotted path"]),
    ("data.class_path", "os.system('x')", ["dotted path"]),
    ("model.class_path", 3, ["3 is not allowed", "dotted path"]),
    ("model.init_args", [1], ["[1] is not allowed", "mapping"]),
    ("model.init_args", {"a b": 1}, ["no argument name"]),
    ("model.init_args", {True: 1}, ["true is no text"]),
    ("model.init_args", {"width": float("nan")}, ["plain JSON"]),
    ("model.init_args", {"net": object()}, ["plain JSON", "not JSON serializable"]),
    ("optimizer.name", "SGD", ['"SGD" is not allowed', "sgd, adam or adamw", "mean sgd?"]),
    ("optimizer.name", None, ["null is not allowed"]),
    ("optimizer.lr", 0, ["0 is not allowed", "above 0"]),
    ("optimizer.lr", -1e-3, ["-0.001 is not allowed"]),
    ("optimizer.lr", float("nan"), ["NaN is not allowed", "finite"]),
    ("optimizer.lr", float("inf"), ["Infinity is not allowed", "finite"]),
    ("optimizer.lr", 10**400, ["finite"]),
    ("optimizer.lr", True, ["true is not allowed", "number"]),
    ("optimizer.lr", "fast", ['"fast" is not allowed', "text, not a number"]),
    ("optimizer.momentum", 1, ["1 is not allowed", "below 1"]),
    ("optimizer.nesterov", 1, ["1 is not allowed", "true or false"]),
    ("optimizer.nesterov", True, ["needs a momentum"]),
    ("optimizer.weight_decay", -1, ["at least 0"]),
    ("schedule.unit", "epoch", ["steps or epochs", "did you mean epochs?"]),
    ("schedule.milestones", [122, 81], ["[122, 81] is not allowed", "ascending"]),
    ("schedule.milestones", [0, 81], ["ascending list of whole numbers of at least 1"]),
    ("schedule.milestones", 81, ["81 is not allowed", "list"]),
    ("schedule.milestones", [81, 81], ["ascending"]),
    ("schedule.milestones", [True], ["[true] is not allowed", "ascending"]),
    ("schedule.milestones", ["81"], ["ascending", "text, not a number"]),
    ("schedule.gamma", 0, ["above 0"]),
    ("schedule.kind", "cosin", ["steps, cosine or one_cycle", "did you mean cosine?"]),
    ("schedule.warmup", -1, ["at least 0"]),
    ("trainer.gradient_clip_val", 0, ["0 is not allowed", "above 0"]),
    ("trainer.gradient_clip_algorithm", "value", ["needs gradient_clip_val"]),
    ("trainer.accumulate_grad_batches", 0, ["at least 1"]),
    ("trainer.precision", "8-mixed", ["32-true, bf16-mixed or 16-mixed"]),
    ("trainer.max_steps", 5, ["belongs to the budget"]),
    ("trainer.devices", 2, ["belongs to the machine", "--device"]),
    ("trainer.limit_val_batches", 2, ["the data that losses are judged by"]),
    ("trainer.val_check_interval", 2, ["decided by the search"]),
    ("trainer.logger", True, ["did you mean loggers"]),
    ("trainer.callbacks", "my.Callback", ["a list of mappings with class_path"]),
    ("trainer.callbacks", [{"class_path": "Mine"}], ["a list of mappings with class_path"]),
    ("checkpoint", "weights.pt", ["null or a mapping with the fields path, skip"]),
    ("checkpoint.path", "", ["text"]),
    ("batch_size", 0, ["0 is not allowed", "at least 1"]),
    ("batch_size", 2.5, ["2.5 is not allowed", "whole number"]),
    ("batch_size", False, ["false is not allowed"]),
    ("batch_size", float("inf"), ["whole number"]),
    ("batch_size", 10**400, ["whole number", "too large"]),
    ("batch_size", "64", ['"64" is not allowed', "text, not a number"]),
    ("budget.evaluation", 4001, ["4001 is not allowed", "at most budget.full, 4000"]),
    ("budget.evaluation", "atuo", ['"atuo" is not allowed', "at most 1000000000"]),
    ("budget.evaluation", 0, ["at most 1000000000"]),
    ("budget.full", "auto", ["whole number of at least 1"]),
    ("budget.unit", "minutes", ["steps or epochs"]),
    ("fitness.metric", "test_accuracy", ["never one of the test set"]),
    ("fitness.metric", "", ["metric"]),
    ("fitness.metric", "TestAccuracy", ["never one of the test set"]),
    ("fitness.metric", " val_accuracy", ["metric"]),
    ("fitness.metric", "val_accuracy\n", ["metric"]),
    ("fitness.take", "mean", ["last or best"]),
    ("fitness.mode", "minimize", ["max or min"]),
    ("early_abort", False, ["false is not allowed", "unit, at, threshold, attempts"]),
    ("early_abort.attempts", 0, ["at least 1"]),
    ("early_stop.at", 0, ["at least 1"]),
    ("early_stop", True, ["true is not allowed", "unit, at, keep"]),
    ("loss.order", 0, ["at least 1"]),
    ("loss.order", 99, ["at most 10"]),
    ("loss.variables", "xy", ['"xy" is not allowed', "such as [x, y]"]),
    ("loss.variables", ["x", "q"], ["such as [x, y]"]),
    ("loss.variables", ["x", "t"], ["then y or z"]),
    ("loss.variables", ["y", "x"], ["in this order"]),
    ("loss.variables", ["x", "y", "y"], ["in this order"]),
    ("loss.variables", ["y"], ["x, then"]),
    ("loss.class_reduction", "none", ["mean or sum"]),
    ("loss.class_weights", "balancd", ["list of finite numbers above 0 or balanced"]),
    ("loss.class_weights", [1.0, 0], ["[1.0, 0] is not allowed", "above 0"]),
    ("loss.class_weights", [1.0, "2"], ["text, not a number"]),
    ("loss.label_smoothing", 1, ["at least 0 and below 1"]),
    ("loss.label_smoothing", -0.1, ["at least 0 and below 1"]),
    ("loss.ignore_index", 0.5, ["whole number"]),
    ("search.popsize", 1, ["at least 2"]),
    ("search.overlap", -1, ["-1 is not allowed", "at least 0"]),
    ("search.overlap", 28, ["28 is not allowed", "below search.popsize, 28"]),
    ("search.sigma", 0.0, ["above 0"]),
    ("search.sigma", 1e6, ["below 100"]),
    ("search.n_generations", 0, ["at least 1"]),
    ("search.seed", -1, ["at least 0"]),
    ("search.seed", 2**32, ["at most 4294967295"]),
    # What would fill the memory, or overflow a counter, is refused at the door.
    ("search.popsize", 10**12, ["1000000000000 is not allowed", "at most 10000"]),
    ("search.n_generations", 10**12, ["at most 100000"]),
    ("search.repeats", 10**12, ["at most 1000"]),
    ("early_abort.attempts", 10**12, ["at most 1000"]),
    ("early_abort.at", 10**12, ["at most 1000000000"]),
    ("early_stop.at", 10**12, ["at most 1000000000"]),
    ("batch_size", 10**12, ["at most 10000000"]),
    ("budget.evaluation", 10**12, ["at most 1000000000"]),
    ("budget.full", 10**12, ["at most 1000000000"]),
    ("schedule.warmup", 10**12, ["at most 1000000000"]),
    ("schedule.milestones", [1, 10**12], ["at most 1000000000"]),
    ("trainer.accumulate_grad_batches", 10**12, ["at most 1000000000"]),
    ("loss.ignore_index", -(10**30), ["of at least -1000000000"]),
    ("search.space", "thetas", ["theta or canonical", "did you mean theta?"]),
    ("search.filter", False, ["none, trainable or steady"]),
    ("search.scale", "normalised", ["did you mean normalized?"]),
    ("search.repeats", 0, ["at least 1"]),
    ("search.seed_policy", "shared", ["independent or common"]),
    ("selection", True, ["true is not allowed", "null or a mapping"]),
    ("selection.candidates", 0, ["at least 1 and at most 100"]),
    ("selection.candidates", 101, ["at most 100"]),
]

# Settings of a schedule that do not go together, and the field to blame.
BAD_SCHEDULES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "cosine", "milestones": [5]}, "milestones"),
    ({"kind": "one_cycle", "milestones": [5]}, "milestones"),
    ({"kind": "cosine", "gamma": 0.5}, "gamma"),
    ({"kind": "one_cycle", "warmup": 5}, "warmup"),
]

SGD_ONLY = {"momentum": 0.9, "nesterov": True}

# Settings of loss and of search that do not go together, and the field to blame.
BAD_COMBINATIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"order": 4}, {"space": "canonical"}, "search.space"),
    ({"variables": ["x", "z"]}, {"space": "canonical"}, "search.space"),
    ({"variables": ["x", "y", "t"]}, {"filter": "trainable"}, "search.filter"),
    ({"variables": ["x", "y", "t"]}, {"filter": "steady"}, "search.filter"),
    ({"order": 4}, {"filter": "steady"}, "search.filter"),
    ({"variables": ["x", "y", "z"]}, {"scale": "normalized"}, "search.scale"),
]
