"""Data sets: splits, noise and batches as arguments say, from arrays, torchvision, scikit-learn."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision
from trainings import write_images

from lightning_modules.data import CIFAR10, MNIST, SVHN, Digits, FashionMNIST, ImageData, image_data
from optuna_taylorglo.errors import MissingDataError, UsageError


def ready(kind: type[ImageData], folder: Path, stage: str = "fit", **arguments: Any) -> ImageData:
    data = kind(folder, **{"batch_size": 10} | arguments)
    data.setup(stage)
    return data


def sizes(data: ImageData) -> tuple[int, int]:
    """Training and validation images."""
    return len(data.train_data.indices), len(data.val_data.indices)


def images_of(data: ImageData, loader: Any) -> torch.Tensor:
    return torch.cat([data.on_after_batch_transfer(batch, 0)[0] for batch in loader])


@pytest.mark.parametrize(
    ("kind", "train", "val"),
    [
        (MNIST, 55_000, 5_000),
        (FashionMNIST, 55_000, 5_000),
        (CIFAR10, 45_000, 5_000),
        (SVHN, 47_225, 26_032),
        (Digits, 1_077, 360),
    ],
)
def test_splits_are_exact_disjoint_and_the_same_for_every_seed_and_batches_have_the_shape(
    kind: type[ImageData], train: int, val: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    channels, height, width = kind.input_shape
    # One image seen everywhere stands for arrays of the full size.
    images = np.broadcast_to(np.zeros(1, np.uint8), (kind.n_train, height, width, channels))
    labels = (np.arange(kind.n_train) % 10).astype(np.uint8)
    monkeypatch.setattr(ImageData, "_arrays", lambda self, part: (images, labels))
    augment = {"flip": True, "padding": 2, "cutout": 4, "standardize": False}
    data, other = (ready(kind, tmp_path, "test", seed=seed, **augment) for seed in (0, 5))
    assert sizes(data) == (train, val)
    assert not set(data.train_data.indices) & set(data.val_data.indices)
    assert np.array_equal(data.val_data.indices, other.val_data.indices)
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        batch, targets = data.on_after_batch_transfer(next(iter(loader)), 0)
        assert (batch.shape[1:], batch.dtype) == (data.input_shape, torch.float32)
        assert batch.is_contiguous(memory_format=torch.channels_last)
        assert targets.dtype == torch.int64


def test_parts_keep_every_classs_share(tmp_path: Path) -> None:
    write_images(tmp_path, MNIST, train=600)
    for arguments, train, val in (
        ({}, 550, 50),
        ({"val_size": 100}, 500, 100),
        ({"fraction": 0.2}, 110, 50),
        ({"images": 120}, 110, 10),
        ({"images": 150, "val_size": 50}, 100, 50),
    ):
        data = ready(MNIST, tmp_path, **arguments)
        assert sizes(data) == (train, val)
    for part, expected in ((data.train_data, 10), (data.val_data, 5)):
        assert np.bincount(part.labels).tolist() == [expected] * 10
    indices = {*data.train_data.indices, *data.val_data.indices}
    assert len(indices) == 150
    assert max(indices) > 300  # not the first ones
    thinned = {"imbalance": 10, "label_noise": 0.2, "images": 550, "val_size": 50}
    data = ready(MNIST, tmp_path, **thinned)
    labels = np.load(tmp_path / "mnist" / "train_labels.npy")[data.train_data.indices]
    assert np.bincount(labels).tolist() == [50, 39, 30, 23, 18, 14, 11, 8, 6, 5]
    assert (labels != data.train_data.labels).sum() == round(0.2 * 204)
    digits = ready(Digits, tmp_path, "test")
    for part in (digits.train_data, digits.val_data, digits.test_data):
        shares = np.bincount(part.labels) / len(part.labels)
        assert 0.09 < shares.min() < shares.max() < 0.11


def test_images_are_scaled_to_the_unit_interval_or_standardized(tmp_path: Path) -> None:
    digits = ready(Digits, tmp_path)
    images = images_of(digits, digits.train_dataloader())
    assert (images.min(), images.max()) == (0, 1)
    write_images(tmp_path, CIFAR10, train=600)  # more than one block of the sums
    data = ready(CIFAR10, tmp_path, batch_size=540)
    images = images_of(data, data.train_dataloader())
    assert torch.allclose(images.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(images.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-4)


def test_only_a_test_reads_test_arrays(tmp_path: Path) -> None:
    write_images(tmp_path, MNIST)
    (tmp_path / "mnist" / "test_images.npy").write_bytes(b"damaged")
    for stage in ("fit", "validate"):
        ready(MNIST, tmp_path, stage)
    with pytest.raises(UsageError, match="mnist: test arrays cannot be read"):
        ready(MNIST, tmp_path, "test")


def test_arrays_of_another_shape_or_type_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path, MNIST)
    images, labels = (tmp_path / "mnist" / f"train_{name}.npy" for name in ("images", "labels"))
    for path, wrong in (
        (images, np.load(images)[:, 1:]),
        (images, np.load(images).astype(np.float32)),
        (labels, np.load(labels)[:7]),
    ):
        right = np.load(path)
        np.save(path, wrong)
        with pytest.raises(UsageError, match=r"must be uint8 of shape \('N', 28, 28\)"):
            ready(MNIST, tmp_path)
        np.save(path, right)


def test_arrays_are_read_once_and_their_memory_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path, CIFAR10)
    data = ready(CIFAR10, tmp_path)
    assert isinstance(data.train_data.images.base, np.memmap)
    monkeypatch.setattr(np, "load", lambda *arguments, **options: pytest.fail("read again"))
    monkeypatch.setattr(image_data, "channel_statistics", lambda subset: pytest.fail("again"))
    again = ready(CIFAR10, tmp_path, seed=1)
    assert again.train_data.images is data.train_data.images


def test_training_labels_are_wrong_validation_labels_if_told_and_test_labels_never(
    tmp_path: Path,
) -> None:
    write_images(tmp_path, MNIST, train=600)
    clean = ready(MNIST, tmp_path, "test")
    for kind, validation in (("symmetric", False), ("next_class", True)):
        noise = {"label_noise": 0.4, "noise_kind": kind, "noisy_validation": validation}
        noisy = ready(MNIST, tmp_path, "test", **noise)
        for part, wrong in (("train_data", 220), ("val_data", 20 * validation)):
            right, labels = getattr(clean, part), getattr(noisy, part)
            assert right.indices.tolist() == labels.indices.tolist()
            steps = (labels.labels - right.labels.astype(int)) % 10
            assert np.count_nonzero(steps) == wrong
            assert wrong == 0 or (steps.max() == 1) == (kind == "next_class")
        assert np.array_equal(clean.test_data.labels, noisy.test_data.labels)


def test_training_batches_are_bit_reproducible_and_validation_is_not_augmented(
    tmp_path: Path,
) -> None:
    write_images(tmp_path, CIFAR10)
    augment = {"flip": True, "padding": 2, "cutout": 6}

    def epoch(seed: int, steps_per_batch: int) -> torch.Tensor:
        data = ready(CIFAR10, tmp_path, seed=seed, **augment)
        data.steps_per_batch = steps_per_batch
        return images_of(data, data.train_dataloader())

    assert torch.equal(epoch(3, 1), epoch(3, 1))
    assert torch.equal(epoch(3, 1), epoch(3, 4))
    assert not torch.equal(epoch(3, 1), epoch(4, 1))
    plain, augmented = ready(CIFAR10, tmp_path), ready(CIFAR10, tmp_path, **augment)
    validation = [images_of(data, data.val_dataloader()) for data in (plain, augmented)]
    assert torch.equal(*validation)


def test_batches_are_filled_up_to_4_mb_and_20_steps(tmp_path: Path) -> None:
    for kind, batch_size, steps in ((Digits, 64, 20), (MNIST, 100, 13), (CIFAR10, 300, 1)):
        data = kind(tmp_path, batch_size=batch_size)
        data.fill_batches()
        assert data.steps_per_batch == steps


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST, CIFAR10, SVHN])
def test_missing_data_without_network_says_what_to_put_where(
    kind: type[ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(root: Path, part: Any, download: bool) -> None:
        raise URLError("no route to host") if download else RuntimeError("Dataset not found")

    monkeypatch.setattr(torchvision.datasets, kind.__name__, unreachable)
    with pytest.raises(MissingDataError) as error:
        ready(kind, tmp_path)
    message = str(error.value)
    assert "no route to host" in message
    assert f"into {tmp_path}: {kind.raw_files}" in message
    assert f"into {tmp_path / kind.dataset}: train_images.npy, train_labels.npy" in message


@pytest.mark.parametrize("kind", [CIFAR10, SVHN])
def test_images_come_through_torchvision_which_downloads_them_once(
    kind: type[ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads: list[bool] = []

    def dataset(root: Path, part: Any, download: bool) -> Any:
        if not download and not downloads:
            raise RuntimeError("Dataset not found")
        downloads.append(download)
        labels = np.arange(50 if part in (True, "train") else 20) % 10
        data = np.zeros((len(labels), 32, 32, 3), np.uint8)
        data[..., 0] = labels.reshape(-1, 1, 1)
        # SVHN's images have their channels first.
        stored = data.transpose(0, 3, 1, 2) if kind is SVHN else data
        return SimpleNamespace(data=stored, labels=labels, targets=labels.tolist())

    monkeypatch.setattr(torchvision.datasets, kind.__name__, dataset)
    data = ready(kind, tmp_path / "data", "test")
    assert downloads == [True, False]
    assert data.train_data.images.shape == (50, 32, 32, 3)
    assert data.train_data.images[:, 5, 7, 0].tolist() == (np.arange(50) % 10).tolist()
    assert len(data.test_data.labels) == 20


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST])
def test_idx_files_are_read_where_torchvision_puts_them(kind: Any, tmp_path: Path) -> None:
    raw = tmp_path / kind.__name__ / "raw"
    raw.mkdir(parents=True)
    for part, size in (("train", 30), ("t10k", 20)):
        labels = (np.arange(size) % 10).astype(np.uint8)
        images = np.broadcast_to(labels.reshape(-1, 1, 1), (size, 28, 28))
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
            content = bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()
            (raw / f"{part}-{name}-ubyte").write_bytes(content)
    data = ready(kind, tmp_path, "test")
    assert data.test_data.images[:, 3, 4, 0].tolist() == data.test_data.labels.tolist()
    assert sizes(data) == (28, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size.*0"),
        ({"fraction": 1.5}, "fraction.*1.5"),
        ({"label_noise": -0.1}, "label_noise.*-0.1"),
        ({"noise_kind": "pair"}, "noise_kind.*symmetric, next_class.*pair"),
        ({"images": 1}, "images.*1"),
        ({"images": 201}, r"images.*at most 200.*mnist.*201"),
        ({"imbalance": 0.5}, "imbalance.*0.5"),
        ({"val_size": 0}, "val_size.*0"),
        ({"images": 50, "val_size": 50}, r"val_size.*\[1, 49\] with 50 images.*50"),
        ({"padding": -2}, "padding.*-2"),
        # More than there are training images.
        ({"fraction": 0.1, "batch_size": 100}, r"batch_size.*18 training images.*100"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_images(tmp_path, MNIST)
    with pytest.raises(UsageError, match=message):
        ready(MNIST, tmp_path, **arguments)
