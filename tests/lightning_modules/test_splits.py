import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from lightning_modules.data.splits import (
    Labels,
    long_tailed_choice,
    split,
    stratified_choice,
    with_next_class_noise,
    with_symmetric_noise,
)

LABELS = np.repeat(np.arange(10), 100).astype(np.uint8)


def test_splits_choices_and_noise_never_change() -> None:
    """Others would make searches incomparable with earlier ones."""
    for indices, expected in (
        (split(np.zeros(50_000, dtype=np.uint8), 5_000, stratified=False)[1], "2dabb28d2076e6b6"),
        (stratified_choice(LABELS, 333), "e4c79da1afbd08d7"),
        (with_symmetric_noise(LABELS, 0.4, 10), "38e5b108e27ad63d"),
    ):
        assert hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest()[:16] == expected


def test_stratified_choice_keeps_shares_to_the_nearest_image() -> None:
    uneven = np.array([0] * 70 + [1] * 20 + [2] * 10)
    assert np.bincount(uneven[stratified_choice(uneven, 50)]).tolist() == [35, 10, 5]
    counts = np.bincount(LABELS[stratified_choice(LABELS, 123)])
    assert counts.sum() == 123
    assert set(counts) == {12, 13}
    assert set(stratified_choice(LABELS, 100)) < set(stratified_choice(LABELS, 500))


def test_symmetric_noise_changes_exactly_the_share_and_spreads_it_evenly() -> None:
    labels = np.zeros(9000, dtype=np.uint8)
    noisy = with_symmetric_noise(labels, 0.4, 10)
    assert (noisy != 0).sum() == 3600
    others = np.bincount(noisy, minlength=10)[1:]
    assert others.min() > 320
    assert others.max() < 480


@pytest.mark.parametrize("add_noise", [with_symmetric_noise, with_next_class_noise])
def test_each_stream_makes_other_labels_wrong(add_noise: Callable[..., Labels]) -> None:
    noisy = [add_noise(LABELS, 0.3, 10, *stream) for stream in ((), (1,))]
    if add_noise is with_next_class_noise:
        assert set((noisy[0] - LABELS) % 10) == {0, 1}
    wrong = [set(np.flatnonzero(labels != LABELS)) for labels in noisy]
    assert len(wrong[0]) == len(wrong[1]) == 300
    assert 60 < len(wrong[0] & wrong[1]) < 120  # 90 are expected of independent choices


def test_a_long_tail_falls_exponentially_from_the_first_class_to_the_last() -> None:
    chosen = long_tailed_choice(LABELS, 100, num_classes=10)
    counts = np.bincount(LABELS[chosen])
    assert counts.tolist() == [100, 60, 36, 22, 13, 8, 5, 3, 2, 1]
    assert chosen.tolist() == sorted(chosen)
    # No class is left without images, and none is invented.
    labels = np.array([0] * 9 + [3] * 5)
    assert np.bincount(labels[long_tailed_choice(labels, 1e6, 4)]).tolist() == [9, 0, 0, 1]
    assert long_tailed_choice(LABELS, 1, num_classes=10).tolist() == list(range(1000))
