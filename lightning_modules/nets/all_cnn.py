"""AllCNN-C: convolutions only, strides in place of pooling."""

from torch import Tensor, nn

from lightning_modules.nets.mlp import he_normal_


class AllCNN(nn.Module):
    """Nine convolutions and a global average.

    Source: Springenberg et al., "Striving for Simplicity: The All Convolutional Net" (2015),
    Table 1 with model C's strided replacement of pooling. The third 3×3 stage is unpadded, which
    gives the 6×6 map that the paper averages over, and a ReLU follows every convolution, the last
    one too. Dropout: 0.2 on the input, 0.5 after each strided convolution.
    Initialization: He et al. (2015); the paper states none.
    Parameters: 1,369,738 with ten classes (1.37 M).
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Dropout(0.2),
            *_conv(3, 96),
            *_conv(96, 96),
            *_conv(96, 96, stride=2),
            nn.Dropout(0.5),
            *_conv(96, 192),
            *_conv(192, 192),
            *_conv(192, 192, stride=2),
            nn.Dropout(0.5),
            *_conv(192, 192, padding=0),
            *_conv(192, 192, kernel=1, padding=0),
            *_conv(192, num_classes, kernel=1, padding=0),
        )
        self.apply(he_normal_)

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (B, 3, 32, 32) to logits of shape (B, num_classes)."""
        maps: Tensor = self.features(images)
        return maps.mean(dim=(2, 3))


def _conv(
    channels_in: int, channels_out: int, kernel: int = 3, stride: int = 1, padding: int = 1
) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(channels_in, channels_out, kernel, stride=stride, padding=padding)
    return convolution, nn.ReLU(inplace=True)
