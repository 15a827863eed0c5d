import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from lightning_modules.metrics import BalancedAccuracy


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("absent", [(), (2,), (0, 4)])
def test_balanced_accuracy_is_scikit_learn_s_over_batches_of_any_size(
    absent: tuple[int, ...],
) -> None:
    generator = torch.Generator().manual_seed(0)
    metric = BalancedAccuracy()
    for _ in range(2):  # a reset metric starts afresh
        weights = torch.tensor([8.0, 5.0, 3.0, 2.0, 1.0])
        weights[list(absent)] = 0
        labels = torch.multinomial(weights, 100, replacement=True, generator=generator)
        logits = torch.randn(100, 5, generator=generator)
        logits[torch.arange(100), labels] += 1.0
        for batch in torch.arange(100).split(30):
            metric.update(logits[batch], labels[batch])
        expected = balanced_accuracy_score(labels, logits.argmax(dim=1))
        assert metric.compute().item() == pytest.approx(expected, abs=1e-6)
        metric.reset()


def test_a_rare_class_counts_as_much_as_a_common_one() -> None:
    metric = BalancedAccuracy()
    labels = torch.tensor([0] * 99 + [1])
    metric.update(torch.tensor([[1.0, 0.0]]).expand(100, 2), labels)
    assert metric.compute() == 0.5
