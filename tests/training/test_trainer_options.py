"""What `trainer`, `schedule` and `checkpoint` of a recipe do, for plain nets and own modules."""

from __future__ import annotations

import logging
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from searches import ROOT, small_recipe
from torch import Tensor, nn
from trainings import cpu, digits_training

from optuna_taylorglo.errors import RecipeError
from optuna_taylorglo.recipes.load import load_recipe
from optuna_taylorglo.training.training import Training

CE = nn.CrossEntropyLoss()
PLAIN, OWN = "two_lightnings.PlainNet", "own_optimizers.Scheduled"
ALLOWED = ("own_optimizers", "two_lightnings", "tabular", "pytorch_lightning")


def training_of(folder: Path, model: str, **changes: Any) -> Training:
    settings = {
        "model": {"class_path": model},
        "optimizer": {"lr": 0.02, "momentum": 0.9},
        "early_abort": None,
        "early_stop": None,
    }
    recipe = small_recipe(folder / "recipe.yaml", **(settings | changes))
    return Training(load_recipe(recipe), cpu(folder, *ALLOWED))


def trained(training: Training, steps: int = 6, **options: Any) -> Any:
    modules: list[Any] = []
    training.run(CE, seed=1, steps=steps, on_trained=modules.append, **options)
    return modules[0]


def weights(module: Any) -> Tensor:
    return torch.cat([value.flatten() for value in module.net.parameters()]).detach()


class Reference:
    """Steps of plain PyTorch on the same batches from the same weights."""

    def __init__(self, training: Training, lr: float = 0.02, momentum: float = 0.9) -> None:
        import pytorch_lightning as pl

        pl.seed_everything(1, verbose=False)
        self.net = training._build_module(CE).net
        data = training._build_data(1)
        data.setup("fit")
        self.batches = (data.on_after_batch_transfer(b, 0) for b in data.train_dataloader())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=momentum)

    def step(self, n_batches: int = 1, clip: Any = lambda parameters: None) -> None:
        self.optimizer.zero_grad()
        for _ in range(n_batches):
            images, labels = next(self.batches)
            (CE(self.net(images), labels) / n_batches).backward()
        clip(list(self.net.parameters()))
        self.optimizer.step()


@pytest.mark.parametrize("model", [PLAIN, OWN])
@pytest.mark.parametrize(
    ("algorithm", "clip"),
    [
        ("norm", lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1)),
        ("value", lambda parameters: nn.utils.clip_grad_value_(parameters, 0.1)),
    ],
)
def test_gradients_are_clipped(tmp_path: Path, model: str, algorithm: str, clip: Any) -> None:
    options = {"gradient_clip_val": 0.1, "gradient_clip_algorithm": algorithm}
    training = training_of(tmp_path, model, trainer=options)
    reference = Reference(training)
    for _ in range(6):
        reference.step(clip=clip)
    found = weights(trained(training))
    assert torch.allclose(found, weights(reference), atol=1e-6)
    unclipped = weights(trained(training_of(tmp_path, model)))
    assert not torch.allclose(found, unclipped, atol=1e-4)


@pytest.mark.parametrize("model", [PLAIN, OWN])
def test_gradients_of_several_batches_make_one_step(tmp_path: Path, model: str) -> None:
    training = training_of(tmp_path, model, trainer={"accumulate_grad_batches": 3})
    assert training.steps_per_pass == 6  # of 16 batches
    seen: list[int] = []
    module = trained(training, 5, check_at=[2], on_validation=lambda step, _: seen.append(step))
    assert seen == [2, 5]
    assert module.trainer.global_step == 5
    reference = Reference(training)
    for _ in range(5):
        reference.step(n_batches=3)
    assert torch.allclose(weights(module), weights(reference), atol=1e-6)


@pytest.mark.parametrize("model", ["tabular.MLP", "tabular.LightningMLP"])
def test_what_an_epoch_of_a_plain_loader_has_left_makes_a_step(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five batches an epoch, two a step: three steps, each validated once where asked for."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples" / "own_model")
    training = training_of(
        tmp_path,
        model,
        data={"class_path": "tabular.BreastCancer", "init_args": {}},
        trainer={"accumulate_grad_batches": 2},
    )
    assert training.steps_per_pass == 3
    calls: list[int] = []

    class Counting(nn.CrossEntropyLoss):
        def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
            calls.append(int(logits.requires_grad))
            return super().forward(logits, labels)

    seen: list[int] = []
    training.run(
        Counting(),
        seed=0,
        steps=7,
        check_at=[2, 3, 5],
        on_validation=lambda step, _: seen.append(step),
    )
    assert seen == [2, 3, 5, 7]
    assert sum(calls) == 12  # two epochs, and two batches


def test_progress_counts_optimizer_steps(tmp_path: Path) -> None:
    told: list[float] = []

    class Clock(nn.CrossEntropyLoss):
        progress: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("progress", torch.zeros(()))

        def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
            if logits.requires_grad:
                told.append(self.progress.item())
            return super().forward(logits, labels)

    for model in (PLAIN, OWN):
        told.clear()
        options = {"accumulate_grad_batches": 2}
        training_of(tmp_path, model, trainer=options).run(Clock(), seed=0, steps=4)
        assert told == pytest.approx([0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"gradient_clip_val": 1.0}, "trainer.gradient_clip_val"),
        ({"accumulate_grad_batches": 2}, "trainer.accumulate_grad_batches"),
    ],
)
def test_a_module_that_optimizes_by_hand_refuses_what_the_trainer_cannot_do(
    tmp_path: Path, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(RecipeError, match="optimization is manual") as caught:
        training_of(tmp_path, "own_optimizers.ByHand", trainer=options)
    assert caught.value.field == field


@pytest.mark.parametrize("model", [PLAIN, OWN])
def test_precision_of_the_recipe_goes_before_the_workers(tmp_path: Path, model: str) -> None:
    assert trained(training_of(tmp_path, model)).trainer.precision == "32-true"
    options = {"precision": "bf16-mixed"}
    assert trained(training_of(tmp_path, model, trainer=options)).trainer.precision == "bf16-mixed"


def test_deterministic_reaches_pytorch(tmp_path: Path) -> None:
    try:
        trained(training_of(tmp_path, PLAIN, trainer={"deterministic": True}), 1)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_loggers_and_checkpoint_callbacks_write_what_they_are_for(tmp_path: Path) -> None:
    options = {
        "loggers": [
            {
                "class_path": "pytorch_lightning.loggers.CSVLogger",
                "init_args": {"save_dir": str(tmp_path / "logs")},
            }
        ],
        "callbacks": [
            {
                "class_path": "pytorch_lightning.callbacks.ModelCheckpoint",
                "init_args": {"dirpath": str(tmp_path / "kept")},
            }
        ],
    }
    trained(training_of(tmp_path, PLAIN, trainer=options), 2)
    (metrics,) = (tmp_path / "logs").glob("**/metrics.csv")
    assert "val_accuracy" in metrics.read_text()
    assert list((tmp_path / "kept").glob("*.ckpt"))


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"class_path": "os.PathLike"}, "--allow os"),
        ({"class_path": "two_lightnings.PlainNet"}, "must be a subclass of Callback"),
        ({"class_path": "two_lightnings.Nothing"}, "no such name"),
        (
            {
                "class_path": "pytorch_lightning.callbacks.EarlyStopping",
                "init_args": {"patience": 3},
            },
            "cannot build .*'monitor'",
        ),
    ],
)
def test_wrong_callbacks_are_refused_at_the_door(
    tmp_path: Path, part: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RecipeError, match=problem) as caught:
        training_of(tmp_path, PLAIN, trainer={"callbacks": [part]})
    assert caught.value.field.startswith("trainer.callbacks")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"kind": "cosine", "unit": "steps"}, 0.05 * 0.5),
        ({"kind": "cosine", "unit": "epochs", "warmup": 1}, 0.05),
        ({"unit": "steps", "warmup": 100}, 0.05 * 17 / 100),
    ],
)
def test_a_short_training_follows_the_beginning_of_the_full_schedule(
    tmp_path: Path, schedule: dict[str, Any], expected: float
) -> None:
    """A full training has two passes of 16 steps, or 200 steps."""
    long = {"unit": "epochs", "evaluation": 1, "full": 2}
    training = digits_training(
        tmp_path,
        schedule=schedule,
        budget=long if schedule.get("warmup", 0) < 100 else long | {"unit": "steps", "full": 200},
    )
    groups: list[dict[str, Any]] = []
    training.run(
        CE,
        seed=0,
        steps=16,
        on_trained=lambda module: groups.extend(module.trainer.optimizers[0].param_groups),
    )
    assert groups[0]["lr"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "last"),
    [("cosine", (1 + math.cos(math.pi * 7 / 8)) / 2), ("one_cycle", 1 / 25 / 1e4)],
)
def test_beyond_a_full_training_the_rate_stays(tmp_path: Path, kind: str, last: float) -> None:
    """As a sweep over lengths may ask for."""
    training = digits_training(
        tmp_path, schedule={"kind": kind}, budget={"unit": "steps", "evaluation": 4, "full": 8}
    )
    groups: list[dict[str, Any]] = []
    training.run(
        CE,
        seed=0,
        steps=12,
        on_trained=lambda module: groups.extend(module.trainer.optimizers[0].param_groups),
    )
    assert groups[0]["lr"] == pytest.approx(0.05 * last)


def test_a_warm_up_as_long_as_the_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"1 epochs are 16 steps, must be below the 16") as caught:
        digits_training(
            tmp_path,
            schedule={"warmup": 1},
            budget={"unit": "steps", "evaluation": 4, "full": 16},
        )
    assert caught.value.field == "schedule.warmup"


class TestCheckpoint:
    """Weights to start from."""

    @pytest.mark.parametrize("model", [PLAIN, OWN])
    def test_every_training_starts_from_it(self, tmp_path: Path, model: str) -> None:
        first = trained(training_of(tmp_path, model), 30)
        net_or_module = first.net if model == PLAIN else first
        torch.save(net_or_module.state_dict(), tmp_path / "weights.pt")
        checkpoint = {"path": "weights.pt"}  # in the data directory
        training = training_of(tmp_path, model, checkpoint=checkpoint)
        built = training._build_module(CE)
        assert torch.equal(weights(built), weights(first))
        accuracies = [training.run(CE, seed=seed, steps=1) for seed in (0, 1)]
        fresh = training_of(tmp_path, model).run(CE, seed=0, steps=1)
        assert min(accuracies) > fresh + 0.1

    @pytest.mark.parametrize("model", [PLAIN, OWN])
    def test_a_checkpoint_of_lightning_will_do(self, tmp_path: Path, model: str) -> None:
        module = trained(training_of(tmp_path, model), 3)
        module.trainer.save_checkpoint(tmp_path / "last.ckpt")
        checkpoint = {"path": str(tmp_path / "last.ckpt")}
        training = training_of(tmp_path, model, checkpoint=checkpoint)
        assert torch.equal(weights(training._build_module(CE)), weights(module))

    def test_a_head_stays_fresh_only_if_the_recipe_says_so(self, tmp_path: Path) -> None:
        module = trained(training_of(tmp_path, OWN), 3)
        content = module.state_dict()
        content["net.3.weight"], content["net.3.bias"] = torch.zeros(7, 8), torch.zeros(7)
        torch.save(content, tmp_path / "weights.pt")
        with pytest.raises(
            RecipeError, match=r"mismatch for net\.3\.weight: .*\[7, 8\].*\[10, 8\]"
        ) as caught:
            training_of(tmp_path, OWN, checkpoint={"path": "weights.pt"})
        assert caught.value.field == "checkpoint"
        assert "checkpoint.skip" in caught.value.problem
        skipping = {"path": "weights.pt", "skip": ["net.3."]}
        built: Any = training_of(tmp_path, OWN, checkpoint=skipping)._build_module(CE)
        assert torch.equal(built.net[1].weight, content["net.1.weight"])
        assert built.net[3].weight.abs().min() > 0

    def test_names_that_do_not_fit_are_told(self, tmp_path: Path) -> None:
        content = trained(training_of(tmp_path, OWN), 1).state_dict()
        content["trunk.weight"] = content.pop("net.1.weight")
        torch.save(content, tmp_path / "weights.pt")
        with pytest.raises(
            RecipeError, match=r"it lacks net\.1\.weight; it has besides trunk\.weight"
        ):
            training_of(tmp_path, OWN, checkpoint={"path": "weights.pt"})

    def test_files_that_hold_no_weights_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "text.pt").write_text("weights")
        torch.save([1, 2], tmp_path / "list.pt")
        (tmp_path / "code.pt").write_bytes(pickle.dumps(logging.getLogger))
        for name, problem in (
            ("missing.pt", "No such file"),
            ("text.pt", "cannot be read as weights"),
            ("code.pt", "cannot be read as weights"),
            ("list.pt", "holds no state dict"),
        ):
            with pytest.raises(RecipeError, match=problem) as caught:
                training_of(tmp_path, PLAIN, checkpoint={"path": name})
            assert caught.value.field == "checkpoint.path"
            assert name in caught.value.problem
