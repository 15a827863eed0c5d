"""Fixed choices among images: which validate, which are left out, which carry a wrong label.

All of them are functions of the labels and of ``SPLIT_SEED`` alone, never of the training seed, so
every candidate of a search and every process sees the same data. They rank images by the raw
64-bit stream of PCG64, which numpy guarantees never to change; its higher-level draws may.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SPLIT_SEED = 42

Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[np.integer]


def shuffled(size: int, *stream: int) -> Indices:
    """A permutation of 0 … size − 1; other numbers after `size` give other ones."""
    return np.argsort(_raw(size, stream), kind="stable").astype(np.int64)


def split(labels: Labels, held_out: int, stratified: bool) -> tuple[Indices, Indices]:
    """Ascending indices of a rest and of a held-out part of images with some labels (N,).

    A stratified part has the same share of every class; else one plain shuffle decides.
    """
    chosen = stratified_choice(labels, held_out) if stratified else shuffled(len(labels))[:held_out]
    is_held_out = np.zeros(len(labels), dtype=bool)
    is_held_out[chosen] = True
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def stratified_choice(labels: Labels, size: int) -> Indices:
    """Ascending indices of `size` images such that every class keeps its share of the labels (N,).

    A class contributes a prefix of its fixed order, so choices of growing size nest but for the
    rounding of class counts, by largest remainders.
    """
    members = _by_class(labels)
    exact = np.array([len(member) for member in members]) * size / len(labels)
    counts = np.floor(exact).astype(int)
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: size - counts.sum()]] += 1
    return _first_of_each(members, counts.tolist())


def long_tailed_choice(labels: Labels, imbalance: float, num_classes: int) -> Indices:
    """Ascending indices of fewer images of each class than of the one before.

    Class k of C keeps imbalance^(−k / (C − 1)) of its images, and at least one.
    """
    members = _by_class(labels)
    shares = [imbalance ** (-int(labels[member[0]]) / (num_classes - 1)) for member in members]
    counts = [max(1, round(s * len(member))) for s, member in zip(shares, members, strict=True)]
    return _first_of_each(members, counts)


def with_symmetric_noise(labels: Labels, share: float, num_classes: int, *stream: int) -> Labels:
    """Labels (N,) of which round(share · N) are wrong, each other class being equally likely.

    Another `stream` makes other labels wrong.
    """
    step = 1 + _raw(len(labels), (3, *stream)) % np.uint64(num_classes - 1)
    return _moved(labels, share, step.astype(np.int64), num_classes, stream)


def with_next_class_noise(labels: Labels, share: float, num_classes: int, *stream: int) -> Labels:
    """The same with the label of the next class on the wrong ones; the first follows the last."""
    return _moved(labels, share, np.ones(len(labels), np.int64), num_classes, stream)


def _moved(
    labels: Labels, share: float, step: Indices, num_classes: int, stream: tuple[int, ...]
) -> Labels:
    wrong = shuffled(len(labels), 2, *stream)[: round(share * len(labels))]
    noisy = labels.astype(np.int64)
    noisy[wrong] = (noisy[wrong] + step[wrong]) % num_classes
    return noisy


def _by_class(labels: Labels) -> list[Indices]:
    """Each class's images in their fixed order."""
    order = shuffled(len(labels), 1)
    return [order[labels[order] == label] for label in np.unique(labels)]


def _first_of_each(members: Sequence[Indices], counts: Sequence[int]) -> Indices:
    chosen = [member[:count] for member, count in zip(members, counts, strict=True)]
    return np.sort(np.concatenate(chosen))


def _raw(size: int, stream: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    raw = np.random.PCG64(np.random.SeedSequence((SPLIT_SEED, *stream))).random_raw(size)
    return np.asarray(raw, dtype=np.uint64)
