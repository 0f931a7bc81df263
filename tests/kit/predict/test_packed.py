"""A packed, frozen base with adapters against a real step on a CPU, and optimizers whose state has a shape of its own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cs336kit import lm, measure
from cs336kit.predict import (
    PACKINGS,
    TransformerConfig,
    optimizer_state_bytes,
    packed_bytes,
    peak_moments,
    step_peak,
)
from cs336kit.predict.decoder.programs import program
from cs336kit.predict.engine.states import states

pytestmark = pytest.mark.torch

CONFIG = TransformerConfig(
    layers=3, d_model=64, heads=4, kv_heads=2, d_ff=192, vocab=300, context=64, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
#: module of a block → component
NAMES = {"query": "query", "key": "key", "value": "value", "output": "attention output", "gate": "mlp gate",
         "up": "mlp up", "down": "mlp down"}  # fmt: skip


class Unpacked(torch.autograd.Function):
    """x Wᵀ of a packed W, which both passes unpack for themselves, as bitsandbytes does."""

    @staticmethod
    def forward(ctx, x, packed, shape):
        ctx.save_for_backward(packed)
        ctx.shape = shape
        weight = torch.zeros(shape, dtype=x.dtype)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        assert len(ctx.saved_tensors) == 1
        weight = torch.zeros(ctx.shape, dtype=gradient.dtype)
        return gradient @ weight, None, None


class Packed(nn.Module):
    def __init__(self, linear, rank):
        super().__init__()
        self.shape = tuple(linear.weight.shape)
        self.register_buffer("codes", torch.zeros(packed_bytes(linear.weight.numel(), "nf4"), dtype=torch.uint8))
        self.A = nn.Linear(self.shape[1], rank, bias=False) if rank else None
        self.B = nn.Linear(rank, self.shape[0], bias=False) if rank else None

    def forward(self, x):
        y = Unpacked.apply(x, self.codes, self.shape)
        return y + self.B(self.A(x)) if self.A is not None else y


@pytest.mark.parametrize("targets", [("query", "value"), tuple(NAMES.values())])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_peak_of_a_step_beside_a_packed_base_is_that_of_a_real_one(precision, checkpointing, targets):
    model = lm.DecoderOnly(CONFIG, attention="sdpa", checkpointing=checkpointing).requires_grad_(False)
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if name in NAMES and isinstance(layer, nn.Module) and hasattr(layer, "weight"):
                setattr(module, name, Packed(layer, 8 if NAMES[name] in targets else 0))
    if precision == "bf16":
        model.bfloat16()
    tokens = torch.randint(300, (2, 33))
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, foreach=False)

    def loss():
        return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
    options = {"batch": 2, "sequence": 33, "precision": precision, "attention": "sdpa", "checkpointing": checkpointing}
    options |= {"lora_rank": 8, "lora_targets": targets, "base": "nf4"}
    assert max(peak_moments(CONFIG, **options).values()) == measure.step_memory(model, loss, optimizer).peak_bytes
    held = sum(
        p.numel() * p.element_size()
        for p in [*model.parameters(), *(b for n, b in model.named_buffers() if "codes" in n)]
    )
    assert step_peak(CONFIG, **options)["parameters"] == held


def test_bits_of_a_packed_weight():
    assert PACKINGS["nf4"].bits_per_weight == 4 + 8 / 64 + 32 / 64 / 256 == pytest.approx(4.127, abs=5e-4)
    assert 8 * packed_bytes(64 * 256 * 100, "nf4") == PACKINGS["nf4"].bits_per_weight * 64 * 256 * 100
    assert PACKINGS["int4"].bits_per_weight == 4 + 20 / 128
    assert PACKINGS["mxfp4"].bits_per_weight == 4.25
    assert packed_bytes(32, "mxfp4") == 17 and packed_bytes(33, "mxfp4") == 17 + 2
    assert packed_bytes(1, "nf4") == 1 + 1 + 4


def test_muon_gets_the_matrices_of_blocks_and_adamw_the_rest():
    model = lm.DecoderOnly(CONFIG)
    blocks = {id(p) for p in model.blocks.parameters() if p.ndim == 2}
    hidden = [p for p in model.parameters() if id(p) in blocks]
    others = [p for p in model.parameters() if id(p) not in blocks]
    optimizers = torch.optim.Muon(hidden), torch.optim.AdamW(others)
    tokens = torch.randint(300, (1, 8))
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    for optimizer in optimizers:
        optimizer.step()
    real = sum(measure.state_bytes(optimizer).total for optimizer in optimizers)
    assert states(program(CONFIG, batch=1, sequence=8), "muon")["optimizer state"] == real


def test_eight_bit_states_have_a_byte_for_a_value_and_a_number_for_each_block():
    # 64 × 64 is as large as the smallest tensor that is kept in 8 bits; a norm's 64 scales stay in fp32.
    sizes = [(64, 64), (192, 64), (64,)]
    by_hand = 2 * (64 * 64 + 4 * 16 + 192 * 64 + 4 * 48 + 4 * 64)

    assert optimizer_state_bytes("adamw8bit", shapes=sizes).total == by_hand
    with pytest.raises(ValueError, match="by shape"):
        optimizer_state_bytes("adamw8bit", parameters=10, tensors=1)
