import hashlib

import numpy as np
import pytest

from lightning_modules.data.splits import shuffled, split, stratified_choice, with_symmetric_noise

LABELS = np.repeat(np.arange(10), 100).astype(np.uint8)


def test_the_split_never_changes() -> None:
    # Pinned: another split would make searches incomparable with earlier ones.
    train, held_out = split(np.zeros(50_000, dtype=np.uint8), 5_000, stratified=False)
    assert len(train) == 45_000
    assert hashlib.sha256(held_out.astype("<i8").tobytes()).hexdigest()[:16] == "2dabb28d2076e6b6"


@pytest.mark.parametrize("stratified", [False, True])
def test_split_parts_are_disjoint_and_complete(stratified: bool) -> None:
    rest, held_out = split(LABELS, 137, stratified)
    assert len(held_out) == 137
    assert sorted([*rest, *held_out]) == list(range(1000))


def test_shuffles_differ_by_stream() -> None:
    assert sorted(shuffled(100)) == list(range(100))
    assert shuffled(100).tolist() != shuffled(100, 1).tolist()


def test_stratified_choice_keeps_shares_to_the_nearest_image() -> None:
    uneven = np.array([0] * 70 + [1] * 20 + [2] * 10)
    assert np.bincount(uneven[stratified_choice(uneven, 50)]).tolist() == [35, 10, 5]
    counts = np.bincount(LABELS[stratified_choice(LABELS, 123)])
    assert counts.sum() == 123
    assert set(counts) == {12, 13}


def test_stratified_choices_nest() -> None:
    small, large = stratified_choice(LABELS, 100), stratified_choice(LABELS, 500)
    assert set(small) < set(large)


def test_symmetric_noise_changes_exactly_the_share_and_spreads_it_evenly() -> None:
    labels = np.zeros(9000, dtype=np.uint8)
    noisy = with_symmetric_noise(labels, 0.4, 10)
    assert (noisy != 0).sum() == 3600
    others = np.bincount(noisy, minlength=10)[1:]
    assert others.min() > 320
    assert others.max() < 480
    assert with_symmetric_noise(labels, 0.4, 10).tolist() == noisy.tolist()
