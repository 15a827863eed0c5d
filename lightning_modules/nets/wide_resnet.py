"""Wide residual networks."""

from lightning_modules.nets.pre_resnet import PreActivationNet
from optuna_taylorglo.errors import UsageError


class WideResNet(PreActivationNet):
    """Wide ResNet of depth 6n + 4 with stages of 16, 32 and 64 times ``width`` channels.

    Source: Zagoruyko and Komodakis, "Wide Residual Networks" (2016).
    Initialization: He et al. (2015).
    Parameters with ten classes: 16-8 10,961,370 (11.0 M), 28-5 9,132,634 (9.1 M).

    Args:
        num_classes: Number of classes.
        depth: Convolutions on the longest path, 6n + 4.
        width: Widening factor k.
        dropout: Dropout between the convolutions of a block (0.3 for CIFAR-10, 0.4 for SVHN).

    Raises:
        UsageError: If ``depth`` is not 6n + 4 with n ≥ 1.
    """

    def __init__(
        self, num_classes: int = 10, depth: int = 16, width: int = 8, dropout: float = 0.3
    ) -> None:
        if depth < 10 or (depth - 4) % 6 != 0:
            raise UsageError(f"depth must be 6n + 4 with n >= 1 (10, 16, 22, ...), got {depth!r}")
        widths = (16 * width, 32 * width, 64 * width)
        super().__init__((depth - 4) // 6, widths, num_classes, dropout)
