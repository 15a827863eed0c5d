"""Weight initializations shared by several architectures; use with ``nn.Module.apply``."""

from torch import nn


def he_normal_(module: nn.Module) -> None:
    """Draw weights from N(0, 2 / fan_in) and zero the biases.

    He et al., "Delving Deep into Rectifiers" (2015), Eq. 10.
    """
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
