"""Loaders and augmentation: a stream that the seed decides, however it is cut."""

from typing import Any

import numpy as np
import pytest
import torch

from lightning_modules.data.batches import (
    Augmentation,
    Draws,
    EvaluationBatches,
    RawBatch,
    Subset,
    TrainingBatches,
)

IMAGES = np.arange(100, dtype=np.uint8).reshape(100, 1, 1, 1)
INDICES = np.arange(0, 100, 2)
SUBSET = Subset(IMAGES, INDICES, INDICES % 10)
ALL = Augmentation(flip=True, padding=3, cutout=1)


def training(seed: int = 0, augmentation: Augmentation = ALL, **settings: Any) -> TrainingBatches:
    return TrainingBatches(SUBSET, 8, seed, augmentation, **settings)


def seen(batches: list[RawBatch]) -> list[int]:
    return torch.cat([batch.images.flatten() for batch in batches]).tolist()


def test_evaluation_goes_through_everything_in_order() -> None:
    loader = EvaluationBatches(SUBSET, 20)
    batches = list(loader)
    assert len(batches) == len(loader) == 3
    assert seen(batches) == INDICES.tolist()
    assert torch.cat([batch.labels for batch in batches]).tolist() == (INDICES % 10).tolist()


def test_a_pass_has_no_image_twice_and_drops_the_rest() -> None:
    loader = training()
    epoch = list(loader)
    assert len(epoch) == len(loader) == loader.steps_per_pass == 6
    assert all(len(batch.labels) == 8 for batch in epoch)
    assert len(set(seen(epoch))) == 48
    assert set(seen(epoch)) < set(INDICES.tolist())
    assert all(torch.equal(b.images.flatten() % 10, b.labels) for b in epoch)
    # Each pass and each seed has its own order.
    second = list(loader)
    assert seen(epoch) == seen(list(training()))
    assert seen(epoch) not in (seen(second), seen(list(training(seed=1))))
    assert seen(second) == IMAGES[INDICES[loader.order(1)][:48]].flatten().tolist()
    assert all(batch.draws is None for batch in training(augmentation=Augmentation()))


@pytest.mark.parametrize(("steps_per_epoch", "steps_per_batch"), [(6, 4), (18, 5), (1, 1), (7, 3)])
def test_batches_and_epochs_of_any_length_cut_the_same_stream(
    steps_per_epoch: int, steps_per_batch: int
) -> None:
    plain = training()
    stream = [*plain, *plain, *plain]
    loader = training(steps_per_epoch=steps_per_epoch, steps_per_batch=steps_per_batch)
    cut: list[RawBatch] = []
    for _ in range(18 // steps_per_epoch):
        epoch = list(loader)
        assert len(epoch) == len(loader)
        assert sum(len(batch.labels) for batch in epoch) == 8 * steps_per_epoch
        cut += epoch
    n = len(seen(cut))
    assert seen(cut) == seen(stream)[:n]
    for name in Draws._fields:
        drawn = [torch.cat([getattr(b.draws, name) for b in part]) for part in (cut, stream)]
        assert torch.equal(drawn[0], drawn[1][:n])


def fixed_draws(flip: bool = False, shift: tuple[int, int] = (0, 0), hole: int = 0) -> Draws:
    return Draws(torch.tensor([flip]), torch.tensor([shift]), torch.tensor([[hole, hole]]))


def test_a_crop_shifts_and_pads_with_black_and_a_mirror_is_left_to_right() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 3, 3, 1)
    moved = Augmentation(padding=1).move(image, fixed_draws(shift=(0, 2)))
    # The window starts one row above and one column right of the image's corner.
    assert moved[0, :, :, 0].tolist() == [[0, 0, 0], [2, 3, 0], [5, 6, 0]]
    image = torch.randint(0, 256, (1, 4, 5, 3), dtype=torch.uint8)
    assert torch.equal(Augmentation(flip=True).move(image, fixed_draws(flip=True)), image.flip(2))


def test_cutout_zeroes_a_square_clipped_at_the_border() -> None:
    cutout = Augmentation(cutout=4)
    hole = cutout.cut_out_(torch.ones(1, 3, 8, 8), fixed_draws(hole=4))[0, 0] == 0
    assert hole.nonzero().tolist() == [[r, c] for r in range(2, 6) for c in range(2, 6)]
    assert (cutout.cut_out_(torch.ones(1, 3, 8, 8), fixed_draws(hole=0)) == 0).sum() == 3 * 2 * 2


def test_draws_cover_their_ranges() -> None:
    augmentation = Augmentation(flip=True, padding=2, cutout=16)
    draws = augmentation.draw(2000, 32, 32, torch.Generator().manual_seed(3))
    assert 0.45 < draws.flip.float().mean() < 0.55
    assert draws.shift.unique().tolist() == [0, 1, 2, 3, 4]
    assert draws.hole.unique().tolist() == list(range(32))
