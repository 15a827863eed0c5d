"""The paper's MNIST network."""

from torch import Tensor, nn


class BasicCNN(nn.Module):
    """Two 5×5 convolutions with pooling, a hidden layer of 1,024 units and dropout.

    Source: Gonzalez and Miikkulainen, "Improved Training Speed, Accuracy, and Data Utilization
    Through Loss Function Optimization" (GLO, 2020), used again for TaylorGLO's MNIST experiments.
    Initialization: Glorot uniform weights and zero biases, the defaults of the framework of that
    time; the papers state none.
    Parameters: 3,274,634 with ten classes (3.27 M).
    """

    def __init__(self, num_classes: int = 10, dropout: float = 0.4) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding="same"),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding="same"),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 1024),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(1024, num_classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (B, 1, 28, 28) to logits of shape (B, num_classes)."""
        logits: Tensor = self.classifier(self.features(images))
        return logits
