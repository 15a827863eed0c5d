"""Data sets: splits, noise and batches as arguments say, from arrays, torchvision, scikit-learn."""

import subprocess
import sys
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


def all_batches(data: ImageData, loader: Any) -> list[Any]:
    return [data.on_after_batch_transfer(batch, 0) for batch in loader]


@pytest.mark.parametrize("kind", ALL)
def test_batches_have_the_shape_that_the_module_states(
    kind: type[ImageData], tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays(kind.dataset)
    data = kind(tmp_path, batch_size=20, flip=True, padding=2, cutout=4)
    data.setup("test")
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        images, labels = next(iter(all_batches(data, loader)))
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
def test_split_sizes_are_exact_and_the_parts_disjoint(
    kind: type[ImageData], train: int, val: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    size = kind.n_train
    channels, height, width = kind.input_shape
    # One image seen everywhere stands for arrays of the full size.
    images = np.broadcast_to(np.zeros(1, np.uint8), (size, height, width, channels))
    labels = (np.arange(size) % 10).astype(np.uint8)
    monkeypatch.setattr(ImageData, "_arrays", lambda self, part: (images, labels))
    data = kind(tmp_path, standardize=False)
    data.setup("fit")
    assert (len(data.train_data.indices), len(data.val_data.indices)) == (train, val)
    assert not set(data.train_data.indices) & set(data.val_data.indices)


def test_every_process_and_every_seed_splits_alike(tmp_path: Path, tiny_arrays: TinyArrays) -> None:
    tiny_arrays("mnist")
    here = []
    for seed in (0, 5):
        data = MNIST(tmp_path, batch_size=10, seed=seed)
        data.setup("fit")
        here.append(data.val_data.indices.tolist())
    code = (
        "from lightning_modules.data import MNIST\n"
        f"data = MNIST({str(tmp_path)!r}, batch_size=10)\n"
        "data.setup('fit')\n"
        "print(data.val_data.indices.tolist())"
    )
    root = Path(__file__).parents[2]
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert str(here[0]) == str(here[1]) == there.stdout.strip()


def test_a_small_cache_is_split_in_proportion_or_as_told(
    tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("cifar10")
    data = CIFAR10(tmp_path, batch_size=10)
    data.setup("fit")
    assert (len(data.train_data.indices), len(data.val_data.indices)) == (180, 20)
    data = CIFAR10(tmp_path, batch_size=10, val_size=50)
    data.setup("fit")
    assert (len(data.train_data.indices), len(data.val_data.indices)) == (150, 50)
    with pytest.raises(ValueError, match=r"val_size.*200"):
        CIFAR10(tmp_path, val_size=200).setup("fit")


def test_only_a_test_reads_the_test_arrays(tmp_path: Path, tiny_arrays: TinyArrays) -> None:
    tiny_arrays("mnist")
    (tmp_path / "mnist" / "test_images.npy").write_bytes(b"damaged")
    data = MNIST(tmp_path, batch_size=20)
    for stage in ("fit", "validate"):
        data.setup(stage)
    with pytest.raises(UsageError, match="mnist: test arrays cannot be read"):
        data.setup("test")


def test_arrays_of_another_shape_or_type_are_refused(
    tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    folder = tiny_arrays("mnist") / "mnist"
    images = np.load(folder / "train_images.npy")
    for name, changed in (
        ("train_images", images[:, 1:]),
        ("train_images", images.astype(np.float32)),
        ("train_labels", np.zeros(7, np.uint8)),
    ):
        before = np.load(folder / f"{name}.npy")
        np.save(folder / f"{name}.npy", changed)
        with pytest.raises(UsageError, match=r"must be uint8 of shape \('N', 28, 28\)"):
            MNIST(tmp_path).setup("fit")
        np.save(folder / f"{name}.npy", before)


def test_arrays_are_read_once_and_their_memory_is_shared(
    tmp_path: Path, tiny_arrays: TinyArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_arrays("cifar10")
    data = CIFAR10(tmp_path, batch_size=20)
    data.setup("fit")
    assert isinstance(data.train_data.images.base, np.memmap)
    monkeypatch.setattr(np, "load", lambda *arguments, **options: pytest.fail("read again"))
    monkeypatch.setattr(image_data, "channel_statistics", lambda subset: pytest.fail("again"))
    again = CIFAR10(tmp_path, batch_size=20, seed=1)
    again.setup("fit")
    assert again.train_data.images is data.train_data.images


def test_fraction_keeps_every_class_and_only_training_images_shrink(
    tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("mnist", train=600)
    data = MNIST(tmp_path, batch_size=10, fraction=0.2)
    data.setup("fit")
    assert len(data.train_data.indices) == 110
    assert len(data.val_data.indices) == 50
    whole = MNIST(tmp_path, batch_size=10)
    whole.setup("fit")
    kept, all_ = (np.bincount(each.train_data.labels) for each in (data, whole))
    assert np.abs(kept - 0.2 * all_).max() < 1


def test_label_noise_touches_training_labels_only(tmp_path: Path, tiny_arrays: TinyArrays) -> None:
    tiny_arrays("mnist", train=600)
    clean, noisy = MNIST(tmp_path), MNIST(tmp_path, label_noise=0.3)
    for data in (clean, noisy):
        data.setup("test")
    assert (clean.train_data.labels != noisy.train_data.labels).sum() == round(0.3 * 550)
    assert np.array_equal(clean.val_data.labels, noisy.val_data.labels)
    assert np.array_equal(clean.test_data.labels, noisy.test_data.labels)


@pytest.mark.parametrize("kind", ["symmetric", "next_class"])
def test_validation_labels_are_wrong_too_if_told_and_test_labels_never(
    kind: str, tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("mnist", train=600)
    clean = MNIST(tmp_path)
    noisy = MNIST(tmp_path, label_noise=0.4, noise_kind=kind, noisy_validation=True)
    for data in (clean, noisy):
        data.setup("test")
    for part, size in (("train_data", 550), ("val_data", 50)):
        right, labels = getattr(clean, part), getattr(noisy, part)
        assert right.indices.tolist() == labels.indices.tolist()
        steps = (labels.labels - right.labels.astype(int)) % 10
        assert np.count_nonzero(steps) == round(0.4 * size)
        assert (steps.max() == 1) == (kind == "next_class")
    assert np.array_equal(clean.test_data.labels, noisy.test_data.labels)


def test_few_images_are_a_stratified_choice_for_both_parts(
    tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("mnist", train=600)
    data = MNIST(tmp_path, batch_size=10, images=150, val_size=50)
    data.setup("fit")
    assert np.bincount(data.train_data.labels).tolist() == [10] * 10
    assert np.bincount(data.val_data.labels).tolist() == [5] * 10
    indices = {*data.train_data.indices, *data.val_data.indices}
    assert len(indices) == 150
    assert max(indices) > 300  # not the first ones
    data = MNIST(tmp_path, batch_size=10, images=120)
    data.setup("fit")
    assert (len(data.train_data.indices), len(data.val_data.indices)) == (110, 10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": 201}, r"images.*at most 200.*mnist.*201"),
        ({"images": 50, "val_size": 50}, r"val_size.*\[1, 49\] with 50 images.*50"),
    ],
)
def test_images_that_do_not_suffice_are_refused(
    settings: dict[str, int], message: str, tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("mnist")
    with pytest.raises(UsageError, match=message):
        MNIST(tmp_path, batch_size=10, **settings).setup("fit")


def test_imbalance_thins_training_images_only(tmp_path: Path, tiny_arrays: TinyArrays) -> None:
    tiny_arrays("mnist", train=600)
    data = MNIST(tmp_path, batch_size=10, images=550, val_size=50, imbalance=10, label_noise=0.2)
    plain = MNIST(tmp_path, batch_size=10, images=550, val_size=50)
    for each in (data, plain):
        each.setup("fit")
    labels = np.load(tmp_path / "mnist" / "train_labels.npy")
    counts = np.bincount(labels[data.train_data.indices])
    assert counts.tolist() == [50, 39, 30, 23, 18, 14, 11, 8, 6, 5]
    assert (labels[data.train_data.indices] != data.train_data.labels).sum() == round(0.2 * 204)
    assert np.array_equal(data.val_data.indices, plain.val_data.indices)


def test_standardized_training_images_have_mean_zero_and_deviation_one(
    tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("cifar10")
    data = CIFAR10(tmp_path, batch_size=180)
    data.setup("fit")
    images, _ = all_batches(data, data.train_dataloader())[0]
    assert torch.allclose(images.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(images.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-4)


def test_other_images_are_scaled_to_the_unit_interval(tmp_path: Path) -> None:
    data = Digits(tmp_path, batch_size=360)
    data.setup("fit")
    images = torch.cat([images for images, _ in all_batches(data, data.train_dataloader())])
    assert images.min() == 0
    assert images.max() == 1


def test_digits_come_from_scikit_learn_with_every_class_in_proportion(tmp_path: Path) -> None:
    data = Digits(tmp_path)
    data.setup("test")
    sizes = [len(part.labels) for part in (data.train_data, data.val_data, data.test_data)]
    assert sizes == [1077, 360, 360]
    for part in (data.train_data, data.val_data, data.test_data):
        shares = np.bincount(part.labels) / len(part.labels)
        assert shares.min() > 0.09
        assert shares.max() < 0.11


@pytest.mark.parametrize("augment", [{}, {"flip": True, "padding": 2, "cutout": 6}])
def test_training_batches_are_bit_reproducible_from_the_seed(
    augment: dict[str, Any], tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("cifar10")

    def epoch(seed: int, steps_per_batch: int) -> torch.Tensor:
        data = CIFAR10(tmp_path, batch_size=20, seed=seed, **augment)
        data.steps_per_batch = steps_per_batch
        data.setup("fit")
        return torch.cat([images for images, _ in all_batches(data, data.train_dataloader())])

    assert torch.equal(epoch(3, 1), epoch(3, 1))
    assert torch.equal(epoch(3, 1), epoch(3, 4))
    assert not torch.equal(epoch(3, 1), epoch(4, 1))


@pytest.mark.parametrize(
    ("kind", "batch_size", "steps"), [(Digits, 64, 20), (MNIST, 100, 13), (CIFAR10, 300, 1)]
)
def test_batches_are_filled_up_to_4_mb_and_20_steps(
    kind: type[ImageData], batch_size: int, steps: int, tmp_path: Path
) -> None:
    data = kind(tmp_path, batch_size=batch_size)
    data.fill_batches()
    assert data.steps_per_batch == steps


def test_validation_images_are_not_augmented(tmp_path: Path, tiny_arrays: TinyArrays) -> None:
    tiny_arrays("cifar10")
    plain = CIFAR10(tmp_path, batch_size=10)
    augmented = CIFAR10(tmp_path, batch_size=10, flip=True, padding=4, cutout=16)
    images = []
    for data in (plain, augmented):
        data.setup("fit")
        images.append(all_batches(data, data.val_dataloader())[0][0])
    assert torch.equal(*images)


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST, CIFAR10, SVHN])
def test_missing_data_without_network_says_what_to_put_where(
    kind: type[ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(root: Path, part: Any, download: bool) -> None:
        raise URLError("no route to host") if download else RuntimeError("Dataset not found")

    monkeypatch.setattr(torchvision.datasets, kind.__name__, unreachable)
    with pytest.raises(MissingDataError) as error:
        kind(tmp_path).setup("fit")
    message = str(error.value)
    assert "no route to host" in message
    assert f"into {tmp_path}: {kind.raw_files}" in message
    assert str(tmp_path / kind.dataset) in message
    for name in ("train_images", "train_labels", "test_images", "test_labels"):
        assert f"{name}.npy" in message


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
    data = kind(tmp_path / "data", batch_size=10)
    data.setup("test")
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
            sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
            content = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
            (raw / f"{part}-{name}-ubyte").write_bytes(content)
    data = kind(tmp_path, batch_size=10)
    data.setup("test")
    assert data.test_data.images[:, 3, 4, 0].tolist() == data.test_data.labels.tolist()
    assert (len(data.train_data.indices), len(data.val_data.indices)) == (28, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("seed", -1),
        ("fraction", 0.0),
        ("fraction", 1.5),
        ("label_noise", -0.1),
        ("noise_kind", "pair"),
        ("images", 1),
        ("imbalance", 0.5),
        ("val_size", 0),
        ("cutout", -1),
        ("padding", -2),
    ],
)
def test_bad_arguments_are_named(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        MNIST(tmp_path, **{name: value})


def test_a_batch_larger_than_the_training_set_is_refused(
    tmp_path: Path, tiny_arrays: TinyArrays
) -> None:
    tiny_arrays("mnist")
    with pytest.raises(ValueError, match=r"batch_size.*18 training images.*100"):
        MNIST(tmp_path, fraction=0.1).setup("fit")
