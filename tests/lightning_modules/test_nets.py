import pytest
import torch
from torch import nn

from lightning_modules import nets
from lightning_modules.nets import MLP, AlexNet, AllCNN, BasicCNN, DigitsCNN, PreResNet, WideResNet
from lightning_modules.nets.pre_resnet import PreActivationBlock
from optuna_taylorglo.errors import UsageError


@pytest.mark.parametrize(
    ("make", "settings", "published", "tolerance"),
    [
        # Gonzalez & Miikkulainen, GLO (2020): layers as listed; 832 + 51,264 + 3,212,288 + 10,250.
        (BasicCNN, {}, 3_274_634, 0),
        # The CIFAR variant's layers (64-192-384-256-256, linear) add up to 2.47 M, "about 2.5 M".
        (AlexNet, {}, 2.47e6, 0.005e6),
        # Springenberg et al. (2015), Table 3: about 1.4 M; its layers add up to 1.37 M.
        (AllCNN, {}, 1.37e6, 0.005e6),
        # He et al. (2016a), Table 6: ResNet-20 0.27 M, ResNet-110 1.7 M.
        (PreResNet, {}, 0.27e6, 0.005e6),
        (PreResNet, {"depth": 110}, 1.7e6, 0.05e6),
        # Zagoruyko & Komodakis (2016), Table 4: WRN 16-8 11.0 M; 28-10 36.5 M.
        (WideResNet, {"depth": 16, "width": 8}, 11.0e6, 0.05e6),
        (WideResNet, {"depth": 28, "width": 10}, 36.5e6, 0.05e6),
        (DigitsCNN, {}, 38_282, 0),
        (DigitsCNN, {"channels": 3, "side": 32}, 530_090, 0),
        (MLP, {}, 8_970, 0),
        (MLP, {"inputs": 784}, 55_050, 0),
    ],
)
def test_parameter_counts_are_the_published_ones(
    make: type[nn.Module], settings: dict[str, int], published: float, tolerance: float
) -> None:
    with torch.device("meta"):
        net = make(**settings)
    assert abs(sum(weight.numel() for weight in net.parameters()) - published) <= tolerance


@pytest.mark.parametrize("name", nets.__all__)
def test_every_net_maps_images_to_logits_and_every_weight_has_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    settings = {"depth": 10, "width": 1} if name == "WideResNet" else {}
    net = getattr(nets, name)(num_classes=7, **settings)
    small = {"BasicCNN": (1, 28, 28), "DigitsCNN": (1, 8, 8), "MLP": (1, 8, 8)}
    logits = net(torch.randn(4, *small.get(name, (3, 32, 32))))
    assert logits.shape == (4, 7)
    nn.functional.cross_entropy(logits, torch.arange(4)).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in net.parameters())


def test_residual_networks_reject_impossible_depths() -> None:
    for net, depth in ((PreResNet, 19), (PreResNet, 2), (WideResNet, 20)):
        with pytest.raises(UsageError, match=f"depth.*{depth}"):
            net(depth=depth)


def test_architectures_have_the_details_of_their_papers() -> None:
    torch.manual_seed(0)
    net = PreResNet(depth=8)
    weight = net.blocks[2].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    # Dropout is between the convolutions of wide blocks only.
    assert not isinstance(net.blocks[0].dropout, nn.Dropout)
    assert isinstance(WideResNet(depth=10, width=1, dropout=0.3).blocks[0].dropout, nn.Dropout)
    # An identity shortcut passes the block's input on.
    block, maps = PreActivationBlock(4, 4), torch.randn(2, 4, 8, 8)
    nn.init.zeros_(block.conv2.weight)
    assert torch.equal(block(maps), maps)
    assert AllCNN().features(torch.randn(1, 3, 32, 32)).shape == (1, 10, 6, 6)


def test_mlp_has_the_layers_it_is_told_and_he_s_weights() -> None:
    torch.manual_seed(0)
    layers = [m for m in MLP(7, inputs=784, hidden=[300, 20]).modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(784, 300), (300, 20), (20, 7)]
    assert layers[0].weight.std().item() == pytest.approx((2 / 784) ** 0.5, rel=0.02)
    assert not any(m.bias.any() for m in layers)
    assert MLP(3, inputs=5, hidden=())(torch.randn(2, 5)).shape == (2, 3)
    with pytest.raises(UsageError, match=r"inputs must be 784.*\(1, 28, 28\), got 64"):
        MLP()(torch.randn(2, 1, 28, 28))
