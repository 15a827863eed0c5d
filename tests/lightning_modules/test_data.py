"""Data sets: splits, noise and batches as arguments say, from arrays, torchvision, scikit-learn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision

from lightning_modules.data import CIFAR10, MNIST, SVHN, Digits, FashionMNIST, ImageData, image_data
from optuna_taylorglo.errors import MissingDataError, UsageError

TinyArrays = Callable[..., Path]

ALL = [Digits, MNIST, FashionMNIST, CIFAR10, SVHN]


def ready(kind: type[ImageData], folder: Path, stage: str = "fit", **arguments: Any) -> ImageData:
    """A data set that is set up."""
    data = kind(folder, **{"batch_size": 10} | arguments)
    data.setup(stage)
    return data


def sizes(data: ImageData) -> tuple[int, int]:
    """Training and validation images."""
    return len(data.train_data.indices), len(data.val_data.indices)


def images_of(data: ImageData, loader: Any) -> torch.Tensor:
    return torch.cat([data.on_after_batch_transfer(batch, 0)[0] for batch in loader])


@pytest.mark.parametrize("kind", ALL)
def test_batches_have_the_shape_that_the_module_states(
    kind: type[ImageData], tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    if kind is not Digits:
        tiny_arrays(kind.dataset)
    data = ready(kind, tmp_path, "test", flip=True, padding=2, cutout=4)
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        images, labels = data.on_after_batch_transfer(next(iter(loader)), 0)
        assert images.shape[1:] == data.input_shape
        assert images.dtype == torch.float32
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.dtype == torch.int64
        assert labels.max() < data.num_classes == 10


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
def test_split_sizes_are_exact_the_parts_disjoint_and_the_same_for_every_seed(
    kind: type[ImageData], train: int, val: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    channels, height, width = kind.input_shape
    # One image seen everywhere stands for arrays of the full size.
    images = np.broadcast_to(np.zeros(1, np.uint8), (kind.n_train, height, width, channels))
    labels = (np.arange(kind.n_train) % 10).astype(np.uint8)
    monkeypatch.setattr(ImageData, "_arrays", lambda self, part: (images, labels))
    data, other = (ready(kind, tmp_path, standardize=False, seed=seed) for seed in (0, 5))
    assert sizes(data) == (train, val)
    assert not set(data.train_data.indices) & set(data.val_data.indices)
    assert np.array_equal(data.val_data.indices, other.val_data.indices)


def test_fewer_images_are_split_in_proportion_or_as_told(
    tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("cifar10")
    assert sizes(ready(CIFAR10, tmp_path)) == (180, 20)
    assert sizes(ready(CIFAR10, tmp_path, val_size=50)) == (150, 50)


def test_only_a_test_reads_the_test_arrays(tmp_path: Path, tiny_arrays: TinyArrays) -> None:
    tiny_arrays("mnist")
    (tmp_path / "mnist" / "test_images.npy").write_bytes(b"damaged")
    for stage in ("fit", "validate"):
        ready(MNIST, tmp_path, stage)
    with pytest.raises(UsageError, match="mnist: test arrays cannot be read"):
        ready(MNIST, tmp_path, "test")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("images", lambda array: array[:, 1:]),
        ("images", lambda array: array.astype(np.float32)),
        ("labels", lambda array: array[:7]),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(
    name: str, change: Callable[[Any], Any], tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    path = tiny_arrays("mnist") / "mnist" / f"train_{name}.npy"
    np.save(path, change(np.load(path)))
    with pytest.raises(UsageError, match=r"must be uint8 of shape \('N', 28, 28\)"):
        ready(MNIST, tmp_path)


def test_arrays_are_read_once_and_their_memory_is_shared(
    tmp_path: Path, tiny_arrays: TinyArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_arrays("cifar10")
    data = ready(CIFAR10, tmp_path)
    assert isinstance(data.train_data.images.base, np.memmap)
    monkeypatch.setattr(np, "load", lambda *arguments, **options: pytest.fail("read again"))
    monkeypatch.setattr(image_data, "channel_statistics", lambda subset: pytest.fail("again"))
    again = ready(CIFAR10, tmp_path, seed=1)
    assert again.train_data.images is data.train_data.images


def test_fraction_keeps_every_class_and_only_training_images_shrink(
    tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("mnist", train=600)
    data, whole = ready(MNIST, tmp_path, fraction=0.2), ready(MNIST, tmp_path)
    assert sizes(data) == (110, 50)
    kept, all_ = (np.bincount(each.train_data.labels) for each in (data, whole))
    assert np.abs(kept - 0.2 * all_).max() < 1


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("kind", ["symmetric", "next_class"])
def test_training_labels_are_wrong_validation_labels_if_told_and_test_labels_never(
    kind: str, validation: bool, tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("mnist", train=600)
    noise = {"label_noise": 0.4, "noise_kind": kind, "noisy_validation": validation}
    clean, noisy = ready(MNIST, tmp_path, "test"), ready(MNIST, tmp_path, "test", **noise)
    for part, wrong in (("train_data", 220), ("val_data", 20 * validation)):
        right, labels = getattr(clean, part), getattr(noisy, part)
        assert right.indices.tolist() == labels.indices.tolist()
        steps = (labels.labels - right.labels.astype(int)) % 10
        assert np.count_nonzero(steps) == wrong
        assert wrong == 0 or (steps.max() == 1) == (kind == "next_class")
    assert np.array_equal(clean.test_data.labels, noisy.test_data.labels)


def test_few_images_are_a_stratified_choice_for_both_parts(
    tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("mnist", train=600)
    data = ready(MNIST, tmp_path, images=150, val_size=50)
    assert np.bincount(data.train_data.labels).tolist() == [10] * 10
    assert np.bincount(data.val_data.labels).tolist() == [5] * 10
    indices = {*data.train_data.indices, *data.val_data.indices}
    assert len(indices) == 150
    assert max(indices) > 300  # not the first ones
    assert sizes(ready(MNIST, tmp_path, images=120)) == (110, 10)


def test_imbalance_thins_training_images_only(tmp_path: Path, tiny_arrays: TinyArrays) -> None:
    tiny_arrays("mnist", train=600)
    chosen = {"images": 550, "val_size": 50}
    data = ready(MNIST, tmp_path, imbalance=10, label_noise=0.2, **chosen)
    labels = np.load(tmp_path / "mnist" / "train_labels.npy")[data.train_data.indices]
    assert np.bincount(labels).tolist() == [50, 39, 30, 23, 18, 14, 11, 8, 6, 5]
    assert (labels != data.train_data.labels).sum() == round(0.2 * 204)
    plain = ready(MNIST, tmp_path, **chosen)
    assert np.array_equal(data.val_data.indices, plain.val_data.indices)


def test_standardized_training_images_have_mean_zero_and_deviation_one(
    tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("cifar10", train=600)  # more than one block of the sums
    data = ready(CIFAR10, tmp_path, batch_size=540)
    images = images_of(data, data.train_dataloader())
    assert torch.allclose(images.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(images.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-4)


def test_digits_come_from_scikit_learn_with_every_class_in_proportion(tmp_path: Path) -> None:
    data = ready(Digits, tmp_path, "test")
    parts = (data.train_data, data.val_data, data.test_data)
    assert [len(part.labels) for part in parts] == [1077, 360, 360]
    for part in parts:
        shares = np.bincount(part.labels) / len(part.labels)
        assert shares.min() > 0.09
        assert shares.max() < 0.11
    images = images_of(data, data.train_dataloader())
    assert (images.min(), images.max()) == (0, 1)


@pytest.mark.parametrize("augment", [{}, {"flip": True, "padding": 2, "cutout": 6}])
def test_training_batches_are_bit_reproducible_and_validation_is_not_augmented(
    augment: dict[str, Any], tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("cifar10")

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


@pytest.mark.parametrize(
    ("kind", "batch_size", "steps"), [(Digits, 64, 20), (MNIST, 100, 13), (CIFAR10, 300, 1)]
)
def test_batches_are_filled_up_to_4_mb_and_20_steps(
    kind: type[ImageData], batch_size: int, steps: int, tmp_path: Path
) -> None:
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


class FakeTorchvision:
    """A data set of torchvision's that has to be downloaded first."""

    downloaded: ClassVar[list[bool]] = []

    def __init__(self, root: Path, part: Any, download: bool) -> None:
        if not download and not self.downloaded:
            raise RuntimeError("Dataset not found")
        self.downloaded.append(download)
        size = 50 if part in (True, "train") else 20
        self.labels = np.arange(size) % 10
        self.targets = self.labels.tolist()
        self.data: Any = np.zeros((size, 32, 32, 3), np.uint8)
        self.data[..., 0] = self.labels.reshape(-1, 1, 1)


class FakeSVHN(FakeTorchvision):
    """SVHN's images have their channels first."""

    def __init__(self, root: Path, part: Any, download: bool) -> None:
        super().__init__(root, part, download)
        self.data = self.data.transpose(0, 3, 1, 2)


@pytest.mark.parametrize(("kind", "fake"), [(CIFAR10, FakeTorchvision), (SVHN, FakeSVHN)])
def test_images_come_through_torchvision_which_downloads_them_once(
    kind: type[ImageData], fake: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision.datasets, kind.__name__, fake)
    monkeypatch.setattr(FakeTorchvision, "downloaded", [])
    data = ready(kind, tmp_path / "data", "test")
    assert FakeTorchvision.downloaded == [True, False]
    assert data.train_data.images.shape == (50, 32, 32, 3)
    assert data.train_data.images[:, 5, 7, 0].tolist() == (np.arange(50) % 10).tolist()
    assert len(data.test_data.labels) == 20


@pytest.mark.parametrize(("kind", "folder"), [(MNIST, "MNIST"), (FashionMNIST, "FashionMNIST")])
def test_idx_files_are_read_where_torchvision_puts_them(
    kind: type[ImageData], folder: str, tmp_path: Path
) -> None:
    raw = tmp_path / folder / "raw"
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
        ({"fraction": 0.0}, "fraction.*0.0"),
        ({"fraction": 1.5}, "fraction.*1.5"),
        ({"label_noise": -0.1}, "label_noise.*-0.1"),
        ({"noise_kind": "pair"}, "noise_kind.*symmetric, next_class.*pair"),
        ({"images": 1}, "images.*1"),
        ({"images": 201}, r"images.*at most 200.*mnist.*201"),
        ({"imbalance": 0.5}, "imbalance.*0.5"),
        ({"val_size": 0}, "val_size.*0"),
        ({"val_size": 200}, "val_size.*200"),
        ({"images": 50, "val_size": 50}, r"val_size.*\[1, 49\] with 50 images.*50"),
        ({"cutout": -1}, "cutout.*-1"),
        ({"padding": -2}, "padding.*-2"),
        # More than there are training images.
        ({"fraction": 0.1, "batch_size": 100}, r"batch_size.*18 training images.*100"),
    ],
)
def test_bad_arguments_are_named(
    arguments: dict[str, Any], message: str, tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("mnist")
    with pytest.raises(UsageError, match=message):
        ready(MNIST, tmp_path, **arguments)
