from typing import Any

import numpy as np
import pytest
import torch

from lightning_modules.data.augment import Augmentation
from lightning_modules.data.batches import EvaluationBatches, RawBatch, Subset, TrainingBatches

IMAGES = np.arange(100, dtype=np.uint8).reshape(100, 1, 1, 1)
INDICES = np.arange(0, 100, 2)
SUBSET = Subset(IMAGES, INDICES, INDICES % 10)


def training(batch_size: int = 8, seed: int = 0, **settings: Any) -> TrainingBatches:
    settings.setdefault("augmentation", Augmentation())
    return TrainingBatches(SUBSET, batch_size, seed, **settings)


def seen(batches: list[RawBatch]) -> list[int]:
    return torch.cat([batch.images.flatten() for batch in batches]).tolist()


def test_evaluation_goes_through_everything_in_order() -> None:
    loader = EvaluationBatches(SUBSET, 20)
    batches = list(loader)
    assert len(batches) == len(loader) == 3
    assert seen(batches) == INDICES.tolist()
    assert torch.cat([batch.labels for batch in batches]).tolist() == (INDICES % 10).tolist()


def test_an_epoch_has_no_image_twice_and_drops_the_rest() -> None:
    loader = training()
    epoch = list(loader)
    assert len(epoch) == len(loader) == 6
    assert all(len(batch.labels) == 8 for batch in epoch)
    assert len(set(seen(epoch))) == 48
    assert set(seen(epoch)) < set(INDICES.tolist())


def test_epochs_and_seeds_have_their_own_order_and_labels_follow() -> None:
    loader = training()
    first, second = list(loader), list(loader)
    assert seen(first) != seen(second)
    assert seen(first) == seen(list(training()))
    assert seen(first) != seen(list(training(seed=1)))
    assert all(torch.equal(b.images.flatten() % 10, b.labels) for b in first)


def test_chunks_and_epoch_lengths_cut_the_same_stream() -> None:
    plain, chunked = training(), training(chunk=4)
    long = training(steps_per_epoch=18, chunk=5)
    stream = seen([*plain, *plain, *plain])
    assert seen([*chunked, *chunked, *chunked]) == stream
    assert seen(list(long)) == stream
    assert [batch.steps for batch in training(chunk=4)] == [4, 2]
    assert len(training(chunk=4)) == 2


def test_augmentation_draws_follow_the_stream_too() -> None:
    settings = {"augmentation": Augmentation(flip=True, padding=3, cutout=1)}
    plain, chunked = list(training(**settings)), list(training(chunk=4, **settings))
    for name in ("flip", "shift", "hole"):
        drawn = [torch.cat([getattr(b.draws, name) for b in epoch]) for epoch in (plain, chunked)]
        assert torch.equal(*drawn)
    assert all(batch.draws is None for batch in training())


def test_a_loader_may_begin_anywhere_in_the_stream() -> None:
    whole, resumed = training(), training(first_step=4)
    stream = [*whole, *whole]
    assert seen([*resumed, *resumed]) == seen(stream[4:])
    assert resumed.next_step == 12


def test_an_abandoned_epoch_is_not_continued_by_the_next() -> None:
    whole, abandoned = training(), training()
    next(iter(abandoned))
    list(whole)
    assert seen(list(abandoned)) == seen(list(whole))


@pytest.mark.parametrize("steps", [1, 6, 7])
def test_epoch_lengths_are_exact(steps: int) -> None:
    loader = training(steps_per_epoch=steps)
    assert len(list(loader)) == len(loader) == steps
