"""Evolve loss functions with TaylorGLO, on Optuna, CMA-ES and PyTorch Lightning."""

import lazy_loader

__version__ = "0.1.0"

# The public names stand in __init__.pyi. They are imported when first used: a command that only
# reads a study must not wait for torch.
__getattr__, _, _names = lazy_loader.attach_stub(__name__, __file__)

# `import *` must not wait for plotly.
__all__ = [name for name in _names if name != "visualization"]


def __dir__() -> list[str]:
    return [*_names, "__version__"]
