"""Evolve loss functions with TaylorGLO, on Optuna, CMA-ES and PyTorch Lightning."""

import lazy_loader

__version__ = "0.1.0"

# The public names stand in __init__.pyi. They are imported when first used: a command that only
# reads a study must not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
