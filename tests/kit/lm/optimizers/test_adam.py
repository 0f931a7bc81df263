import pytest
import torch

from cs336kit import lm

pytestmark = pytest.mark.torch

PAIRS = ((lm.Adam, torch.optim.Adam), (lm.AdamW, torch.optim.AdamW))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize(
    "options",
    [{}, {"lr": 0.1, "weight_decay": 0.1}, {"betas": (0.95, 0.5), "eps": 1e-4}, {"maximize": True}],
    ids=str,
)
def test_adam_is_torchs_to_the_last_bit(twins, dtype, ours, theirs, options):
    twins.assert_equal_walks(ours, theirs, dtype, **options)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_groups_and_missing_gradients(twins, ours, theirs):
    twins.assert_equal_walks(ours, theirs, torch.float32, groups=True, skip=4)


def test_the_first_step_has_the_length_of_the_rate():
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([1e-3, -5.0, 1e4])
    lm.Adam([parameter], lr=0.01).step()
    assert parameter.tolist() == pytest.approx([-0.01, 0.01, -0.01], rel=1e-4)


def test_decoupled_decay_shrinks_what_has_no_gradient_signal():
    ours, l2 = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    for parameter, optimizer in ((ours, lm.AdamW), (l2, lm.Adam)):
        parameter.grad = torch.zeros(1)
        optimizer([parameter], lr=0.1, weight_decay=0.5).step()
    assert ours.item() == pytest.approx(1 - 0.1 * 0.5)
    assert l2.item() == pytest.approx(1 - 0.1)  # √v̂ divides λp by its own size: λ no longer matters


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"betas": (1.0, 0.999)}, r"betas\[0\] must be at least 0 and below 1, such as 0.9, got 1.0"),
        ({"betas": (0.9, float("nan"))}, r"betas\[1\] must be a finite number of at least 0, got nan"),
        ({"betas": 0.9}, r"betas is 0.9; it must be a pair"),
        ({"eps": -1e-8}, "eps must be a finite number of at least 0, got -1e-08"),
    ],
)
@pytest.mark.parametrize("make", [lm.Adam, lm.AdamW])
def test_refusals(make, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make([torch.nn.Parameter(torch.ones(1))], **options)
