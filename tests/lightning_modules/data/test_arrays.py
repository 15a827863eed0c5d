import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from lightning_modules.data.arrays import FILES, MANIFEST, is_cached, open_part, write_cache
from optuna_taylorglo.errors import CorruptCacheError


def arrays(size: int = 30) -> dict[str, np.ndarray]:
    images = np.arange(size * 16, dtype=np.uint8).reshape(size, 4, 4)
    labels = (np.arange(size) % 10).astype(np.uint8)
    return dict(zip(FILES, (images, labels, images, labels), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_cache(tmp_path / "set", arrays)
    return tmp_path / "set"


def test_what_is_written_is_read_back_as_a_memory_map(folder: Path) -> None:
    part = open_part(folder, "train", (4, 4))
    assert isinstance(part.images, np.memmap)
    assert np.array_equal(part.images, arrays()["train_images"])
    assert np.array_equal(part.labels, arrays()["train_labels"])
    assert sorted(json.loads((folder / MANIFEST).read_text())) == sorted(f"{n}.npy" for n in FILES)


def test_a_filled_cache_is_not_read_again(folder: Path) -> None:
    def read() -> dict[str, np.ndarray]:
        raise AssertionError("the cache is filled")

    write_cache(folder, read)


def test_a_failed_read_leaves_no_cache_behind(tmp_path: Path) -> None:
    def read() -> dict[str, np.ndarray]:
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        write_cache(tmp_path / "set", read)
    assert not is_cached(tmp_path / "set")
    assert not list((tmp_path / "set").glob("*.npy*"))


@pytest.mark.parametrize("kept", [5, 200])
def test_a_truncated_file_is_named(folder: Path, kept: int) -> None:
    path = folder / "train_images.npy"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CorruptCacheError, match=r"train_images\.npy"):
        open_part(folder, "train", (4, 4))


def test_a_changed_byte_is_found_by_the_checksum(folder: Path) -> None:
    path = folder / "train_labels.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptCacheError, match=r"train_labels\.npy.*checksum"):
        open_part(folder, "train", (4, 4))


def test_damage_to_the_test_part_does_not_stop_training(folder: Path) -> None:
    (folder / "test_images.npy").write_bytes(b"broken")
    assert len(open_part(folder, "train", (4, 4)).labels) == 30
    with pytest.raises(CorruptCacheError, match=r"test_images\.npy"):
        open_part(folder, "test", (4, 4))


def test_wrong_type_and_shape_are_refused(folder: Path) -> None:
    with pytest.raises(CorruptCacheError, match=r"\(4, 4\).*expected \(5, 5\)"):
        open_part(folder, "train", (5, 5))
    (folder / MANIFEST).unlink()
    np.save(folder / "train_labels.npy", np.zeros(30, dtype=np.int64))
    with pytest.raises(CorruptCacheError, match="int64, expected uint8"):
        open_part(folder, "train", (4, 4))
    np.save(folder / "train_labels.npy", np.zeros(29, dtype=np.uint8))
    with pytest.raises(CorruptCacheError, match=r"\(29,\).*30 images"):
        open_part(folder, "train", (4, 4))


def test_arrays_without_a_manifest_are_adopted(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    open_part(folder, "train", (4, 4))
    # Only what was opened is vouched for; the test part stays unread.
    assert sorted(json.loads((folder / MANIFEST).read_text())) == [
        "train_images.npy",
        "train_labels.npy",
    ]


def test_a_read_only_folder_needs_no_manifest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / MANIFEST).unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert len(open_part(folder, "train", (4, 4)).labels) == 30
    assert not (folder / MANIFEST).exists()


def _fill(folder: Path, reads: Path) -> None:
    def read() -> dict[str, np.ndarray]:
        with reads.open("a") as file:
            file.write("read\n")
        return arrays(3000)

    write_cache(folder, read)
    part = open_part(folder, "train", (4, 4))
    assert int(part.images.sum()) == int(arrays(3000)["train_images"].sum())


def test_processes_that_start_at_once_share_one_read(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    arguments = (tmp_path / "set", tmp_path / "reads")
    processes = [context.Process(target=_fill, args=arguments) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    assert arguments[1].read_text() == "read\n"
