"""The data cache: plain uint8 arrays on disk, verified once and memory-mapped ever after.

A data set is a folder ``<data_dir>/<name>`` of four files, ``{train,test}_{images,labels}.npy``:
images (N, H, W) or (N, H, W, C), labels (N,), all uint8. Memory maps of one file share their pages,
so any number of worker processes on a host holds one copy.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from optuna_taylorglo.errors import CorruptCacheError
from optuna_taylorglo.files import write_atomically

Part = Literal["train", "test"]
UInt8Array = npt.NDArray[np.uint8]
MANIFEST = "manifest.json"
FILES = ("train_images", "train_labels", "test_images", "test_labels")


class LabeledImages(NamedTuple):
    """Images (N, H, W[, C]) and their labels (N,), both uint8."""

    images: UInt8Array
    labels: UInt8Array


def is_cached(folder: Path) -> bool:
    """Tell whether the folder holds all four arrays of a data set."""
    return all((folder / f"{name}.npy").is_file() for name in FILES)


def write_cache(folder: Path, read: Callable[[], Mapping[str, UInt8Array]]) -> None:
    """Fill the folder with the arrays that ``read`` returns, unless it is filled already.

    Safe when many processes start at once: one reads, the others wait for it; every file appears
    under its name only when it is complete.

    Args:
        folder: The data set's folder, created if need be.
        read: Returns the arrays by the names in ``FILES``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if is_cached(folder):
            return
        for name, array in read().items():
            _write_array(folder / f"{name}.npy", np.ascontiguousarray(array, dtype=np.uint8))


def open_part(folder: Path, part: Part, image_shape: tuple[int, ...]) -> LabeledImages:
    """Memory-map the images and labels of one part, and touch no file of the other.

    Args:
        folder: The data set's folder.
        part: "train" or "test".
        image_shape: Shape that one image must have, (H, W) or (H, W, C).

    Raises:
        CorruptCacheError: If a file is damaged, of another shape or type, or not what its
            checksum in ``manifest.json`` says. The message names the file.
    """
    images = _open_verified(folder / f"{part}_images.npy")
    labels = _open_verified(folder / f"{part}_labels.npy")
    if images.shape[1:] != image_shape:
        raise CorruptCacheError(
            f"{folder / f'{part}_images.npy'}: images have shape {images.shape[1:]}, "
            f"expected {image_shape}"
        )
    if labels.shape != images.shape[:1]:
        raise CorruptCacheError(
            f"{folder / f'{part}_labels.npy'}: shape {labels.shape} does not match "
            f"{images.shape[0]} images"
        )
    return LabeledImages(images, labels)


def _write_array(path: Path, array: UInt8Array) -> None:
    write_atomically(path, lambda file: np.save(file, array))
    _record(path, _checksum(path))


def _open_verified(path: Path) -> UInt8Array:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise CorruptCacheError(
            f"{path} cannot be read as a .npy array ({error}); delete it to have it made again"
        ) from error
    if array.dtype != np.uint8:
        raise CorruptCacheError(f"{path} holds {array.dtype}, expected uint8")
    stat = path.stat()
    _verify(path, stat.st_size, stat.st_mtime_ns)
    return array  # type: ignore[no-any-return]


@cache
def _verify(path: Path, size: int, modified: int) -> None:
    """Compare a file with its manifest entry, once a process for each state of the file."""
    checksum = _checksum(path)
    recorded = _read_manifest(path.parent).get(path.name)
    if recorded is None:
        _record(path, checksum)
    elif recorded != checksum:
        raise CorruptCacheError(
            f"{path} does not have the checksum in {path.parent / MANIFEST}; delete the file to "
            "have it made again, or the manifest if you replaced the data on purpose"
        )


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _read_manifest(folder: Path) -> dict[str, str]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CorruptCacheError(f"{folder / MANIFEST} is not valid JSON ({error})") from error
    return dict(manifest)


def _record(path: Path, checksum: str) -> None:
    """Enter a checksum into the folder's manifest; a read-only folder goes without one."""
    if not os.access(path.parent, os.W_OK):
        return
    with FileLock(path.parent / ".manifest.lock"):
        manifest = {**_read_manifest(path.parent), path.name: checksum}
        text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
        write_atomically(path.parent / MANIFEST, text)
