"""A convolutional network small enough to train on small images in seconds."""

from torch import Tensor, nn

from lightning_modules.nets.mlp import he_normal_


class DigitsCNN(nn.Module):
    """Two convolutions and two linear layers, by default for scikit-learn's 8×8 digits.

    Source: this project; the default task has to train on one core in a couple of seconds.
    Initialization: He et al. (2015), as every hidden layer is a ReLU.
    Parameters: 38,282 with ten classes.

    Args:
        num_classes: Number of classes.
        channels: Of the images.
        side: Height and width of the images, an even number.
    """

    def __init__(self, num_classes: int = 10, channels: int = 1, side: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(32 * (side // 2) ** 2, 64),
            nn.ReLU(inplace=True),
            nn.Linear(64, num_classes),
        )
        self.apply(he_normal_)

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (B, channels, side, side) to logits of shape (B, num_classes)."""
        logits: Tensor = self.classifier(self.features(images))
        return logits
