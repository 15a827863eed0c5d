"""Text: opinions made by a grammar, labeled by hasty readers, and a small transformer.

"the soup was not good but the waiter was really kind" is positive: what follows "but" is
what the writer means, and "not" or "hardly" turns it round. So no word decides alone. The readers
who labeled the sentences overlooked such a word a quarter of the time; the test labels are right.
"""

from __future__ import annotations

import random

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

THINGS = ["soup", "bread", "wine", "waiter", "room", "view", "music", "garden", "price", "bed"]
GOOD = ["good", "kind", "lovely", "fresh", "perfect", "charming", "great", "pleasant"]
BAD = ["bad", "rude", "ugly", "stale", "awful", "boring", "poor", "noisy"]
DEGREES = ["really", "very", "quite", "rather", "so"]
TURNS = ["not", "hardly", "never"]
LINKS = ["and", "but", "though"]
WORDS = ["<pad>", "the", "was", *THINGS, *GOOD, *BAD, *DEGREES, *TURNS, *LINKS]
LENGTH = 13  # two clauses of six words and a link between them


def opinion(chance: random.Random) -> tuple[list[str], bool, bool]:
    """A sentence, whether it is positive, and whether a reader who overlooks "not" says so."""
    words: list[str] = []
    meant = overlooked = False
    for number in range(chance.randint(1, 2)):
        link = chance.choice(LINKS) if number else ""
        turned, good = chance.random() < 0.4, chance.random() < 0.5
        words += [link] if link else []
        words += ["the", chance.choice(THINGS), "was"]
        words += [chance.choice(TURNS)] if turned else []
        words += [chance.choice(DEGREES)] if chance.random() < 0.5 else []
        words += [chance.choice(GOOD if good else BAD)]
        # "and" adds to what was said, "but" takes it back, "though" only makes room for it.
        if link in ("", "but"):
            meant, overlooked = good != turned, good
    return words, meant, overlooked


class Opinions(pl.LightningDataModule):
    """Sentences (B, 13) of word numbers, positive (1) or negative (0).

    Args:
        batch_size: Sentences a training step; the recipe's `batch_size`.
        haste: How often the readers overlooked a turning word in training and validation.
    """

    num_classes = 2

    def __init__(self, batch_size: int, haste: float = 0.25) -> None:
        super().__init__()
        self.batch_size, self.haste = batch_size, haste

    def setup(self, stage: str) -> None:
        """Write the sentences; always the same ones, so that all candidates are judged alike."""
        chance = random.Random(0)
        self.train_data = self._sentences(2000, self.haste, chance)
        self.val_data = self._sentences(2000, self.haste, chance)
        self.test_data = self._sentences(2000, 0.0, chance)

    def _sentences(self, n: int, haste: float, chance: random.Random) -> TensorDataset:
        numbers, labels = torch.zeros(n, LENGTH, dtype=torch.int64), []
        for row in numbers:
            words, meant, overlooked = opinion(chance)
            row[: len(words)] = torch.tensor([WORDS.index(word) for word in words])
            labels.append(overlooked if chance.random() < haste else meant)
        return TensorDataset(numbers, torch.tensor(labels).long())

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled by PyTorch's global generator, which every training seeds."""
        return DataLoader(self.train_data, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Fitness is measured on these examples."""
        return DataLoader(self.val_data, 500)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The test set, which a search does not use."""
        return DataLoader(self.test_data, 500)


class Transformer(nn.Module):
    """Words and their places, attention, and logits (B, classes) of the mean over the words.

    Args:
        num_classes: Number of classes; given by the search.
        width: Size of the embeddings.
        layers: Layers of attention.
    """

    def __init__(self, num_classes: int, width: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), width, padding_idx=0)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width,
            nhead=4,
            dim_feedforward=2 * width,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, sentences: Tensor) -> Tensor:
        """Logits of sentences (B, 13), padding left out."""
        padding = sentences == 0
        seen = self.words(sentences) + self.places.weight
        encoded = self.encoder(seen, src_key_padding_mask=padding)
        counts = (~padding).unsqueeze(-1)
        logits: Tensor = self.head((encoded * counts).sum(dim=1) / counts.sum(dim=1))
        return logits
