"""Image augmentation by whole batches: random draws first, then their application on any device.

Draws are made on the CPU for a whole pass over the training set and travel with the images, so a
seed gives the same training images on every device and however the pass is cut into batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from optuna_taylorglo.errors import UsageError


@dataclass(frozen=True)
class Augmentation:
    """What to do to training images.

    Attributes:
        flip: Mirror an image left to right with probability 1/2.
        padding: Pad with black by this many pixels on each side, then cut out a window of the
            original size at random (the paper says 2, its code 4). 0: no crop.
        cutout: Side of one square hole, centered at random and clipped at the border, filled with
            the value 0 after normalization (DeVries and Taylor, 2017). 0: no hole.
    """

    flip: bool = False
    padding: int = 0
    cutout: int = 0

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("padding", "cutout"):
            value = getattr(self, name)
            if value < 0:
                raise UsageError(f"{name} must not be negative, got {value!r}")

    @property
    def moves(self) -> bool:
        """Whether images are mirrored or shifted."""
        return self.flip or self.padding > 0

    @property
    def active(self) -> bool:
        """Whether anything is done at all."""
        return self.moves or self.cutout > 0


class Draws(NamedTuple):
    """One random draw an image; the leading shape is that of the images' batch.

    Attributes:
        flip: Whether to mirror, bool.
        shift: Row and column of the crop in the padded image, shape (..., 2).
        hole: Row and column of the hole's center, shape (..., 2).
    """

    flip: Tensor
    shift: Tensor
    hole: Tensor


def draw(
    augmentation: Augmentation, images: int, height: int, width: int, generator: torch.Generator
) -> Draws:
    """Draw for a number of images of one size."""
    span = 2 * augmentation.padding + 1
    rows = torch.randint(height, (images,), generator=generator)
    columns = torch.randint(width, (images,), generator=generator)
    return Draws(
        flip=torch.rand(images, generator=generator) < (0.5 if augmentation.flip else 0.0),
        shift=torch.randint(span, (images, 2), generator=generator),
        hole=torch.stack((rows, columns), dim=1),
    )


def move(images: Tensor, draws: Draws, padding: int) -> Tensor:
    """Crop from the padded image and mirror.

    Args:
        images: Shape (B, H, W, C).
        draws: One draw an image.
        padding: Black pixels on each side.

    Returns:
        New images of the same shape and type.
    """
    batch, height, width, channels = images.shape
    padded = functional.pad(images, (0, 0, padding, padding, padding, padding))
    rows = draws.shift[:, :1] + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(batch, width)
    columns = torch.where(draws.flip[:, None], width - 1 - columns, columns) + draws.shift[:, 1:]
    padded_height, padded_width = height + 2 * padding, width + 2 * padding
    first = torch.arange(batch, device=images.device)[:, None] * padded_height
    pixels = (first + rows)[:, :, None] * padded_width + columns[:, None, :]
    moved = padded.reshape(-1, channels).index_select(0, pixels.reshape(-1))
    return moved.reshape(batch, height, width, channels)


def cut_out_(images: Tensor, draws: Draws, size: int) -> Tensor:
    """Set a square of each image to zero, in place.

    Args:
        images: Shape (B, C, H, W).
        draws: One draw an image.
        size: Side of the square before clipping.
    """

    def inside(length: int, center: Tensor) -> Tensor:
        offset = torch.arange(length, device=images.device) - (center[:, None] - size // 2)
        return (offset >= 0) & (offset < size)

    rows = inside(images.shape[2], draws.hole[:, 0])
    columns = inside(images.shape[3], draws.hole[:, 1])
    return images.masked_fill_((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)
