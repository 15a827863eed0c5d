"""Channel statistics of uint8 images."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lightning_modules.data.arrays import UInt8Array
from lightning_modules.data.splits import Indices

# 255² · 250 is below 2²⁴, so sums over a block are exact in float32.
BLOCK = 250


class ChannelStatistics(NamedTuple):
    """Mean and standard deviation of each channel over all pixels, each of shape (C,)."""

    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]


def channel_statistics(images: UInt8Array, indices: Indices) -> ChannelStatistics:
    """Compute the statistics of some of the images, a block at a time.

    Args:
        images: Shape (M, H, W, C), usually a memory map.
        indices: Which images, shape (N,).
    """
    channels = images.shape[-1]
    total = np.zeros(channels)
    total_of_squares = np.zeros(channels)
    for first in range(0, len(indices), BLOCK):
        # Summing over the images first keeps the inner loop long and contiguous.
        block = np.take(images, indices[first : first + BLOCK], axis=0).astype(np.float32)
        total += block.sum(axis=0).sum(axis=(0, 1), dtype=np.float64)
        np.multiply(block, block, out=block)
        total_of_squares += block.sum(axis=0).sum(axis=(0, 1), dtype=np.float64)
    pixels = len(indices) * images.shape[1] * images.shape[2]
    mean = total / pixels
    # A channel that is constant would divide by zero.
    variance = np.maximum(total_of_squares / pixels - mean**2, 1.0)
    return ChannelStatistics(mean, np.sqrt(variance))
