"""Evolve loss functions with TaylorGLO, on Optuna, CMA-ES and PyTorch Lightning."""
