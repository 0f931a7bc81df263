"""Claims about the decoder: its parts, masks, parameters and loss."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from claims.settled import Cited, figures, near, settles

from cs336kit import lm, predict

B, S, D, A, E, V = 2, 8, 32, 4, 4, 64
CONFIG = predict.TransformerConfig(layers=2, d_model=D, heads=A, vocab=V, context=4 * S)
GPT2, GPT3 = predict.MODELS["gpt2"], predict.MODELS["gpt3-175b"]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(*shape):
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(0))


def count(module):
    return sum(p.numel() for p in module.parameters())


def on_meta(config):
    with torch.device("meta"):
        return lm.DecoderOnly(config)


def weights(z, mask):
    """Attention weights (B, A, S, S) of queries and keys that are the heads of z."""
    q = z.view(B, S, A, D // A).transpose(1, 2)
    return torch.softmax(q @ q.transpose(-2, -1) / math.sqrt(D // A) + mask, dim=-1)


def attend(z, mask):
    return weights(z, mask) @ z.view(B, S, A, D // A).transpose(1, 2)


CAUSAL = torch.full((S, S), -math.inf).triu(1)


def last_felt(function):
    """For each position of the output the last position of the input that it depends on, by the gradient."""
    found = []
    for position in range(S):
        z = random(B, S, D).requires_grad_()
        function(z)[..., position, :].square().sum().backward()
        found.append(int(z.grad.abs().sum((0, 2)).nonzero().max()))
    return found


@settles("tf-embedding-vd")
def test_embedding_vd():
    embedding = torch.nn.Embedding(V, D)
    return (V * D, (B, S, D)), (embedding.weight.numel(), tuple(embedding(ids(B, S)).shape))


@settles("tf-embedding-per-layer")
def test_embedding_per_layer():
    tables = [p for name, p in on_meta(CONFIG).named_parameters() if not name.startswith(("blocks", "final_norm"))]
    return CONFIG.layers * (V + CONFIG.context) * D, sum(p.numel() for p in tables)


@settles("tf-layernorm-axis")
def test_layernorm_axis():
    z = 3 * random(B, S, D) + 1

    def normalized(axis):
        mean, variance = z.mean(axis, keepdim=True), z.var(axis, keepdim=True, unbiased=False)
        return (z - mean) / torch.sqrt(variance + 1e-5)

    axes = {"batch": 0, "sequence": 1, "features": 2}
    by_torch = torch.nn.LayerNorm(D)(z)
    return ["sequence"], [name for name, axis in axes.items() if torch.allclose(normalized(axis), by_torch, atol=1e-4)]


@settles("tf-layernorm-2d-params")
def test_layernorm_2d_params():
    block = on_meta(CONFIG).blocks[0]
    return 2 * D, count(block.norm1) + count(block.norm2)


@settles("tf-head-index-range")
def test_head_index_range():
    # How many values f takes in {0..D/A}, and how many features a head has.
    return len(range(D // A + 1)), random(B, S, D).view(B, S, A, -1).shape[-1]


@settles("tf-attn-4d2")
def test_attn_4d2():
    return 4 * D**2, count(lm.MultiHeadAttention(D, A, bias="none"))


@settles("tf-mlp-2ed2")
def test_mlp_2ed2():
    return 2 * E * D**2, sum(p.numel() for p in lm.GELUMLP(D, E * D).parameters() if p.ndim == 2)


@settles("tf-qkv-fused")
def test_qkv_fused():
    # Whole numbers, whose sums are exact in any order.
    z, q, k, v = (torch.randint(-9, 9, shape).float() for shape in ((B, S, D), *[(D, D)] * 3))
    heads = [z @ w[:, a * D // A : (a + 1) * D // A] for w in (q, k, v) for a in range(A)]
    fused = (z @ torch.cat([q, k, v], dim=1)).split(D // A, dim=-1)
    return True, len(heads) == len(fused) and all(map(torch.equal, heads, fused))


@settles("tf-causal-w-zero")
def test_causal_w_zero():
    return list(range(S)), last_felt(lm.MultiHeadAttention(D, A))


@settles("tf-mask-inverted")
def test_mask_inverted():
    # The printed mask against the model's own attention.
    printed = torch.full((S, S), -math.inf).tril(-1)
    said, so = last_felt(lambda z: attend(z, printed)), last_felt(lm.MultiHeadAttention(D, A))
    return {"last key that each query sees": said}, {"last key that each query sees": so}


@settles("tf-softmax-scale")
def test_softmax_scale():
    # A sum of h products of normals has an excess kurtosis of 6/h, so that the variance of 40,000 of them spreads by
    # sqrt((2 + 6/8)/40,000) = 0.8 %: 5 % is six of it.
    h = D // A
    scores = (random(40_000, h) * random(40_000, h, seed=1)).sum(-1) / math.sqrt(h)
    return 1.0, near(scores.var().item(), 1.0, relative=0.05)


@settles("tf-softmax-index")
def test_softmax_index():
    # Indices b, s, s', d of w and its head a, as printed.
    return len("bssd") + 1, weights(random(B, S, D), CAUSAL).ndim


@settles("tf-noise-no-position")
def test_noise_no_position():
    # Whether a shuffled input only shuffles the output of causal attention.
    z, shuffle = random(B, S, D), torch.randperm(S, generator=torch.Generator().manual_seed(0))
    return True, torch.allclose(attend(z[:, shuffle], CAUSAL), attend(z, CAUSAL)[:, :, shuffle], atol=1e-5)


@settles("tf-forward-missing-return")
def test_forward_missing_return():
    class MLP(lm.GELUMLP):
        def forward(self, z):
            z = self.down(F.gelu(self.up(z)))  # as printed, without `return z`

    return "Tensor", type(MLP(D, E * D)(random(B, S, D))).__name__


@settles("tf-block-formula-1.9")
def test_block_formula():
    # To what the block adds its MLP: to its input z, or to z1, which has been through attention.
    block, z = lm.DecoderOnly(CONFIG).blocks[0], random(B, S, D)
    z1 = z + block.attention(block.norm1(z))
    added_to = {"z": z, "z1": z1}
    found = [
        name
        for name, base in added_to.items()
        if torch.allclose(base + block.mlp(block.norm2(z1)), block(z), atol=1e-5)
    ]
    return ["z"], found


@settles("tf-weight-tying")
def test_weight_tying():
    tied, apart = (count(on_meta(replace(CONFIG, tied_head=tied))) for tied in (True, False))
    return V * D, apart - tied


@settles("tf-loss-1.11")
def test_loss():
    logits, targets = random(B * S, V), ids(B * S)
    of_target = torch.softmax(logits, dim=-1).gather(-1, targets[:, None])
    printed = {"sum of ln p": of_target.log().mean().item(), "sum of softmax": of_target.mean().item()}
    loss = figures(F.cross_entropy(logits, targets).item(), 4)
    return {name: figures(value, 4) for name, value in printed.items()}, dict.fromkeys(printed, loss)


@settles("tf-shifted-targets")
def test_shifted_targets():
    tokens = ids(B, S + 1)
    x, y = tokens[:, :-1], tokens[:, 1:]
    return ((B, S), x[:, 1:].tolist()), (tuple(y.shape), y[:, :-1].tolist())


@settles("tf-code-runs")
def test_code_runs():
    return (B, S, V), tuple(lm.DecoderOnly(CONFIG)(ids(B, S)).shape)


@settles("tf-param-total")
def test_param_total():
    # "About": for GPT-2, where biases, norms and positions weigh most, within a hundredth.
    said = (4 + 2 * E) * GPT2.layers * GPT2.d_model**2 + GPT2.vocab * GPT2.d_model
    return said, near(count(on_meta(GPT2)), said, relative=0.01)


@settles("tf-dropout-bool-byte")
def test_dropout_bool_byte():
    return 1, torch.tensor([True]).element_size()


@settles("tf-1.3-tokens-per-word")
def test_tokens_per_word():
    return Cited(
        "https://help.openai.com/en/articles/4936856-what-are-tokens-and-how-to-count-them",
        "100 tokens are about 75 English words, which is 1.33 a word; other languages and tokenizers differ.",
    )


@settles("tf-softmax-axis-a4")
def test_softmax_axis():
    # Over which of the axes b, s, v a model's probabilities add up to one.
    p = torch.softmax(lm.DecoderOnly(CONFIG)(ids(B, S)), dim=-1)
    sums_to_one = {axis: bool(((p.sum(i) - 1).abs() < 1e-5).all()) for i, axis in enumerate("bsv")}
    return {"b": True, "s": False, "v": False}, sums_to_one


@settles("tf-regime-a1")
def test_regime():
    # The power of ten of L in "S, L ~ 1e3", for the deepest of them.
    return 3, round(math.log10(GPT3.layers))


@settles("tf-pre-ln")
def test_pre_ln():
    # Whether a block whose branches give nothing passes its input on: torch's layer has the original order by default.
    original = torch.nn.TransformerEncoderLayer(D, A, batch_first=True, dropout=0.0)
    now = lm.DecoderOnly(CONFIG).blocks[0]
    outputs = [original.self_attn.out_proj, original.linear2, now.attention.output, now.mlp.down]
    with torch.no_grad():
        for weight in (p for layer in outputs for p in layer.parameters()):
            weight.zero_()
    z = random(B, S, D)
    return (False, True), tuple(torch.allclose(block(z), z, atol=1e-4) for block in (original, now))


@settles("tf-mup-no-sqrt")
def test_mup_no_sqrt():
    return Cited(
        "https://arxiv.org/abs/2203.03466, definition 4.1",
        "Attention scores are divided by the width of a head, not its root.",
    )
