"""Pre-activation residual networks for 32×32 images."""

from torch import Tensor, nn

from optuna_taylorglo.errors import UsageError


class PreActivationBlock(nn.Module):
    """Two 3×3 convolutions, each after batch normalization and ReLU, added to a shortcut.

    He et al., "Identity Mappings in Deep Residual Networks" (2016), Fig. 4(e); dropout between the
    convolutions is that of Wide ResNets. The shortcut is the identity, or a strided 1×1 projection
    where the shape changes.
    Projections take the activated input, the identity does if `activate_shortcut`.
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        stride: int = 1,
        dropout: float = 0.0,
        activate_shortcut: bool = False,
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        projects = stride != 1 or channels_in != channels_out
        self.shortcut: nn.Module = (
            nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False)
            if projects
            else nn.Identity()
        )
        self.activate_shortcut = projects or activate_shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, channels_in, H, W) to (B, channels_out, H / stride, W / stride)."""
        activated = self.relu(self.norm1(maps))
        shortcut: Tensor = self.shortcut(activated if self.activate_shortcut else maps)
        residual: Tensor = self.conv1(activated)
        residual = self.conv2(self.dropout(self.relu(self.norm2(residual))))
        return shortcut + residual


class PreActivationNet(nn.Module):
    """A 3×3 convolution, three stages of blocks that halve the image, and a global average."""

    def __init__(
        self, blocks: int, widths: tuple[int, int, int], num_classes: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        stack: list[nn.Module] = []
        channels = 16
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                # The unit after the stem activates before it splits (He et al. 2016, appendix).
                stack.append(
                    PreActivationBlock(
                        channels, width, stride, dropout, activate_shortcut=not stack
                    )
                )
                channels = width
        self.blocks = nn.Sequential(*stack)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            # He et al. (2015), Eq. 14: N(0, 2 / fan_out), as the authors train with.
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (B, 3, 32, 32) to logits of shape (B, num_classes)."""
        maps: Tensor = self.relu(self.norm(self.blocks(self.stem(images))))
        logits: Tensor = self.classifier(maps.mean(dim=(2, 3)))
        return logits


class PreResNet(PreActivationNet):
    """Pre-activation ResNet of any depth 6n + 2, with stages of 16, 32 and 64 channels.

    Source: He et al., "Identity Mappings in Deep Residual Networks" (2016).
    Initialization: He et al. (2015).
    Parameters: 272,282 at depth 20 with ten classes (0.27 M).

    Raises:
        UsageError: If ``depth`` is not 6n + 2 with n ≥ 1.
    """

    def __init__(self, num_classes: int = 10, depth: int = 20) -> None:
        if depth < 8 or (depth - 2) % 6 != 0:
            raise UsageError(f"depth must be 6n + 2 with n >= 1 (8, 14, 20, ...), got {depth!r}")
        super().__init__((depth - 2) // 6, (16, 32, 64), num_classes)
