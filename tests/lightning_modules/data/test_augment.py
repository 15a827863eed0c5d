import pytest
import torch

from lightning_modules.data.augment import Augmentation, Draws, cut_out_, draw, move


def fixed_draws(flip: bool = False, shift: tuple[int, int] = (0, 0), hole: int = 0) -> Draws:
    return Draws(torch.tensor([flip]), torch.tensor([shift]), torch.tensor([[hole, hole]]))


def test_move_shifts_and_pads_with_black() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 3, 3, 1)
    moved = move(image, fixed_draws(shift=(0, 2)), padding=1)
    # The window starts one row above and one column right of the image's corner.
    assert moved[0, :, :, 0].tolist() == [[0, 0, 0], [2, 3, 0], [5, 6, 0]]


def test_move_mirrors_left_to_right_and_keeps_channels() -> None:
    image = torch.randint(0, 256, (1, 4, 5, 3), dtype=torch.uint8)
    moved = move(image, fixed_draws(flip=True), padding=0)
    assert torch.equal(moved, image.flip(2))


def test_cutout_zeroes_a_square_clipped_at_the_border() -> None:
    assert (
        cut_out_(torch.ones(1, 3, 8, 8), fixed_draws(hole=4), 4)[0, 0] == 0
    ).nonzero().tolist() == [[row, column] for row in range(2, 6) for column in range(2, 6)]
    assert (cut_out_(torch.ones(1, 3, 8, 8), fixed_draws(hole=0), 4) == 0).sum() == 3 * 2 * 2


def test_draws_cover_their_ranges_and_depend_on_the_seed_alone() -> None:
    augmentation = Augmentation(flip=True, padding=2, cutout=16)
    draws = draw(augmentation, 2000, 32, 32, torch.Generator().manual_seed(3))
    again = draw(augmentation, 2000, 32, 32, torch.Generator().manual_seed(3))
    assert all(torch.equal(a, b) for a, b in zip(draws, again, strict=True))
    assert 0.45 < draws.flip.float().mean() < 0.55
    assert draws.shift.unique().tolist() == [0, 1, 2, 3, 4]
    assert draws.hole.unique().tolist() == list(range(32))


@pytest.mark.parametrize("name", ["padding", "cutout"])
def test_negative_sizes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*-1"):
        Augmentation(**{name: -1})
