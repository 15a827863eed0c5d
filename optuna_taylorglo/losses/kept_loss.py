"""What all losses have in common that a search can find: where they come from, and a file."""

from __future__ import annotations

from abc import abstractmethod
from os import PathLike
from typing import Any, ClassVar

from optuna_taylorglo.losses.conventions import ClassificationLoss
from optuna_taylorglo.losses.files import LossFile, Origin, TreeLossFile, write_loss


class KeptLoss(ClassificationLoss):
    """A loss that can be kept in a file; arguments as `ClassificationLoss`.

    Attributes:
        n_classes: Number of classes the loss was made for, if that is known.
        origin: Where the loss came from, if it was loaded from a file that says so.
    """

    file_type: ClassVar[type[LossFile | TreeLossFile]]

    def __init__(self, **conventions: Any) -> None:
        super().__init__(**conventions)
        self.n_classes: int | None = None
        self.origin: Origin | None = None

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The arguments that make it the function it is, as plain JSON values."""

    def save(
        self,
        path: str | PathLike[str],
        *,
        n_classes: int | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Write the loss to a JSON file that `load_loss` reads back exactly.

        Args:
            path: File to write; replaced atomically if it exists.
            n_classes: Number of classes it was made for; by default what the loss remembers.
            origin: Where it came from; by default what the loss remembers.
        """
        settings = self.settings() | {
            "reduction": self.reduction,
            "weight": None if self.weight is None else self.weight.tolist(),
            "ignore_index": self.ignore_index,
            "n_classes": self.n_classes if n_classes is None else n_classes,
            "origin": self.origin if origin is None else origin,
        }
        write_loss(path, self.file_type(**settings))
