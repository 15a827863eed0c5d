"""A convolutional network small enough to train on 8×8 digits in seconds."""

from torch import Tensor, nn

from lightning_modules.nets.mlp import he_normal_


class DigitsCNN(nn.Module):
    """Two convolutions and two linear layers for scikit-learn's 8×8 digits.

    Source: this project; the default task has to train on one core in a couple of seconds.
    Initialization: He et al. (2015), as every hidden layer is a ReLU.
    Parameters: 38,282 with ten classes.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(inplace=True),
            nn.Linear(64, num_classes),
        )
        self.apply(he_normal_)

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (B, 1, 8, 8) to logits of shape (B, num_classes)."""
        logits: Tensor = self.classifier(self.features(images))
        return logits
