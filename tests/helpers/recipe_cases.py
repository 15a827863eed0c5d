"""The smallest recipe, as a mapping and with changes."""

from typing import Any


def minimal(**sections: Any) -> dict[str, Any]:
    """The smallest recipe, with further or other sections."""
    return {
        "data": {"class_path": "lightning_modules.data.Digits"},
        "model": {"class_path": "lightning_modules.nets.digits_cnn.DigitsCNN"},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "batch_size": 64,
        "budget": {"unit": "steps", "evaluation": 400, "full": 4000},
        **sections,
    }


def recipe_with(path: str, value: object) -> dict[str, Any]:
    """The smallest recipe with one field (dotted path) set."""
    content = target = minimal()
    *sections, name = path.split(".")
    for section in sections:
        target = target.setdefault(section, {"path": "x"} if section == "checkpoint" else {})
    target[name] = value
    return content


def glo(**settings: Any) -> dict[str, Any]:
    """The search of a GLO recipe."""
    return {"method": "glo", "glo": settings}
