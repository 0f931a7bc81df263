import pytest
import torch

from cs336kit import lm, predict

pytestmark = pytest.mark.torch


def test_rope_is_a_multiplication_of_complex_numbers():
    S, h = 6, 8
    x = torch.randn(2, 3, S, h, dtype=torch.float64)
    cosine, sine = (table.double() for table in lm.rope_tables(S, h, base=100.0))
    pairs = torch.complex(x[..., : h // 2], x[..., h // 2 :])
    angle = torch.arange(S).double()[:, None] * 100.0 ** (-torch.arange(0, h, 2).double() / h)
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    torch.testing.assert_close(lm.rope(x, cosine, sine), expected, atol=1e-5, rtol=1e-5)


def test_rope_keeps_lengths_and_sees_distances_only():
    cosine, sine = lm.rope_tables(50, 16)
    q, k = torch.randn(16), torch.randn(16)
    many_q, many_k = (lm.rope(x.expand(50, 16), cosine, sine) for x in (q, k))
    torch.testing.assert_close(many_q.norm(dim=-1), q.norm().expand(50))
    scores = many_q @ many_k.T
    for distance in (0, 1, 7):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=1e-4)


def test_the_first_position_is_left_alone_and_the_dtype_stays():
    cosine, sine = lm.rope_tables(4, 8)
    x = torch.randn(4, 8).bfloat16()
    turned = lm.rope(x, cosine, sine)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned[0], x[0])
    assert not torch.equal(turned[1], x[1])


def test_a_table_in_bf16_has_the_angles_of_every_position():
    """bf16 has no 257: a position that was rounded before it is multiplied would turn as another one does."""
    angles = torch.arange(600).double()[:, None] * torch.tensor([1, 0.01, 1, 0.01]).double()
    for table, exact in zip(lm.rope_tables(600, 4, dtype=torch.bfloat16), (angles.cos(), angles.sin()), strict=True):
        assert table.dtype == torch.bfloat16
        # Rounded once, by half of the spacing below 1, and the angle before that to fp32.
        torch.testing.assert_close(table.double(), exact, rtol=0, atol=2**-9 + 1e-4)


def test_refuses():
    with pytest.raises(ValueError, match="head_dim=7 is odd"):
        lm.rope_tables(4, 7)
    with pytest.raises(ValueError, match="base must be a finite number above 0"):
        lm.rope_tables(4, 8, base=0)
    with pytest.raises(ValueError, match="unknown pairing of rotary positions 'pairs'. .*Known: halves, neighbours"):
        lm.rope(torch.ones(4, 8), *lm.rope_tables(4, 8), pairs="pairs")


@pytest.mark.parametrize("positions", [1, 3, 5])
def test_tables_that_are_not_one_row_per_position_are_refused(positions):
    """One row would be broadcast over all positions, silently."""
    with pytest.raises(ValueError, match=rf"x has 4 positions of width 8, the tables \({positions}, 8\)"):
        lm.rope(torch.ones(2, 4, 8), *lm.rope_tables(positions, 8))


def test_the_two_pairings_differ_until_the_rows_are_put_in_order():
    config = predict.TransformerConfig(
        layers=2, d_model=16, heads=4, kv_heads=2, vocab=31, context=12, positions="rope", bias="qkv"
    )
    halves = lm.DecoderOnly(config).double()
    neighbours = lm.DecoderOnly(config, rope_pairs="neighbours").double()
    for name, parameter in halves.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    state, tokens = halves.state_dict(), torch.randint(31, (2, 12))
    neighbours.load_state_dict(state)
    assert not torch.allclose(neighbours(tokens), halves(tokens), atol=1e-2)
    for name, tensor in state.items():
        if ".query." in name or ".key." in name:
            state[name] = lm.reorder_pairs(tensor, head_dim=4, to="neighbours")
            assert torch.equal(lm.reorder_pairs(state[name], head_dim=4, to="halves"), tensor)
    neighbours.load_state_dict(state)
    torch.testing.assert_close(neighbours(tokens), halves(tokens))
