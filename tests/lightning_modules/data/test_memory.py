"""Workers on one host share the data: what each adds is private memory only."""

import multiprocessing
import sys
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from lightning_modules.data import CIFAR10

WORKERS = 4


def _private_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def _read_one_pass(data_dir: Path, barrier: Barrier, added: "Queue[int]") -> None:
    import torch

    torch.set_num_threads(1)
    torch.zeros(1000, 1000).sum()  # PyTorch's own first allocations are not the data's
    before = _private_bytes()
    data = CIFAR10(data_dir, batch_size=128, flip=True, padding=4, cutout=16)
    data.setup("fit")
    for loader in (data.train_dataloader(), data.val_dataloader()):
        for raw in loader:
            data.on_after_batch_transfer(raw, 0)
    barrier.wait()  # pages are shared only while several processes map them
    added.put(_private_bytes() - before)
    barrier.wait()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps_rollup")
def test_four_workers_over_cifar10_add_less_than_100_mb_each(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for part, size in (("train", 50_000), ("test", 10_000)):
        images = np.random.default_rng(0).integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
        np.save(folder / f"{part}_images.npy", images)
        np.save(folder / f"{part}_labels.npy", (np.arange(size) % 10).astype(np.uint8))
    context = multiprocessing.get_context("spawn")
    barrier, added = context.Barrier(WORKERS), context.Queue()
    workers = [
        context.Process(target=_read_one_pass, args=(tmp_path, barrier, added))
        for _ in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    megabytes = [added.get(timeout=300) / 2**20 for _ in workers]
    for worker in workers:
        worker.join()
    print(f"private memory added: {', '.join(f'{value:.0f} MB' for value in megabytes)}")
    assert max(megabytes) < 100
