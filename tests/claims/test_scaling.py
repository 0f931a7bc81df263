"""Claims about the FLOPs of a Transformer by token: Kaplan's table, 6N, and where they end."""

from dataclasses import replace
from functools import cache

import torch
from claims.settled import figures, near, settles

from cs336kit import lm, measure, predict

B, L, D, A, V, E, S = 2, 2, 32, 4, 64, 4, 16
#: Heads so wide that they are together twice as wide as the model: d_attn is not d_model.
CONFIG = predict.TransformerConfig(
    layers=L, d_model=D, heads=A, head_dim=2 * D // A, vocab=V, context=S, bias="none", d_ff=3 * D
)
WIDTH = CONFIG.query_width
#: The block that most formulas assume: d_attn = d_model, d_ff = 4 d_model.
USUAL = replace(CONFIG, head_dim=None, d_ff=E * D, context=64 * D)
#: The smallest and the largest shape of Hoffmann et al. 2022, table A4.
SMALL = predict.TransformerConfig(layers=10, d_model=640, heads=10, head_dim=64, vocab=32000, context=2048)
LARGE = predict.TransformerConfig(layers=40, d_model=3584, heads=28, head_dim=128, vocab=32000, context=2048)


@cache
def weights(config):
    """Elements of the parameters by name."""
    return {name: weight.numel() for name, weight in lm.DecoderOnly(config, device="meta").named_parameters()}


def of(counted, *parts):
    """The sum of what belongs to these parts of the model."""
    return sum(amount for name, amount in counted.items() if any(part in name for part in parts))


@cache
def per_token(config):
    """FLOPs of one token's forward pass by module, counted by torch in a sequence that fills the context."""
    model, tokens = (
        lm.DecoderOnly(config, device="meta"),
        torch.zeros(B, config.context, dtype=torch.int64, device="meta"),
    )
    counted = measure.flops(lambda: model(tokens), by="module")
    return {name: amount / (B * config.context) for name, amount in counted.items()}


@cache
def blocks(config, sequence, batch=B):
    """Parameters of the matrices in the blocks, and FLOPs of a forward and of a backward pass through the blocks."""
    stack = lm.DecoderOnly(config, device="meta").blocks
    x = torch.zeros(batch, sequence, config.d_model, device="meta", requires_grad=True)
    counted = measure.flops(lambda: torch.nn.Sequential(*stack)(x).sum().backward(), by="pass")
    return sum(w.numel() for w in stack.parameters() if w.ndim == 2), counted["forward"], counted["backward"]


@settles("kaplan-embed-params")
def test_embed_params():
    return (V + S) * D, of(weights(CONFIG), "embedding", "positions")


@settles("kaplan-embed-4d")
def test_embed_4d():
    one_hot, table = torch.zeros(B * S, V, device="meta"), torch.zeros(V, D, device="meta")
    return 4 * D, measure.flops(lambda: one_hot @ table).total // (B * S)


@settles("kaplan-qkv")
def test_qkv():
    said, parts = L * D * 3 * WIDTH, ("query", "key", "value")
    return [said, 2 * said], [of(weights(CONFIG), *parts), of(per_token(CONFIG), *parts)]


@settles("kaplan-mask")
def test_mask():
    # Which counts of one head's products give the row, summed over a sequence: QKᵀ alone over all pairs, and both
    # products over the pairs that the mask leaves, which are (S + 1)/2 a token.
    h = WIDTH // A
    row = predict.kaplan_flops(CONFIG, sequence=S)["attention: mask"] * S // (L * A)

    def product(*shapes):
        first, second = (torch.zeros(*shape, device="meta") for shape in shapes)
        return measure.flops(lambda: first @ second).total

    counted = {
        "QK alone": product((S, h), (h, S)),
        "both behind the mask": sum(product((1, h), (h, s)) + product((1, s), (s, h)) for s in range(1, S + 1)),
    }
    matching = {name: near(flops, row, relative=1 / S) == row for name, flops in counted.items()}
    return {"QK alone": True, "both behind the mask": False}, matching


@settles("kaplan-project")
def test_project():
    said = L * WIDTH * D
    return [said, 2 * said], [of(weights(CONFIG), "output"), of(per_token(CONFIG), "output")]


@settles("kaplan-ffn")
def test_ffn():
    # Parameters, and how many FLOPs each of them costs.
    parameters = of(weights(CONFIG), "mlp")
    return [2 * L * D * CONFIG.d_ff, 4.0], [parameters, of(per_token(CONFIG), "mlp") / parameters]


@settles("kaplan-deembed")
def test_deembed():
    apart = sum(weights(replace(CONFIG, tied_head=False)).values())
    tied = sum(weights(replace(CONFIG, tied_head=True)).values())
    return [2 * D * V, 0, V * D], [of(per_token(CONFIG), "head"), of(weights(CONFIG), "head"), apart - tied]


@settles("kaplan-total")
def test_total():
    # N by the matrices of real blocks, the FLOPs by the rows of the table.
    N = 2 * D * L * (2 * WIDTH + CONFIG.d_ff)
    rows = predict.kaplan_flops(CONFIG, sequence=S)
    return [N, 2 * N + 2 * L * S * WIDTH], [blocks(CONFIG, S)[0], rows.total - rows["embed"] - rows["de-embed"]]


def six(sequence):
    """FLOPs of the forward and of the backward pass for each token and parameter, with one digit."""
    N, *passes = blocks(USUAL, sequence)
    return [figures(flops / (N * B * sequence), 1) for flops in passes]


@settles("kaplan-6n")
def test_6n():
    return [2.0, 4.0], six(D // 4), six(12 * D)


@settles("chinchilla-6n-close")
def test_6n_close():
    # All products of a forward pass over 2048 tokens, three times, for each token and each parameter, "little" being a tenth.
    def counted(config):
        model, tokens = (
            lm.DecoderOnly(config, device="meta"),
            torch.zeros(1, config.context, dtype=torch.int64, device="meta"),
        )
        forward = measure.flops(lambda: model(tokens)).total
        return 3 * forward / (tokens.numel() * sum(weight.numel() for weight in model.parameters()))

    return 6.0, *(near(counted(config), 6.0, relative=0.1) for config in (LARGE, SMALL))


@settles("tf-flops-attention")
def test_flops_attention():
    attention, x = lm.DecoderOnly(USUAL, device="meta").blocks[0].attention, torch.zeros(B, S, D, device="meta")
    said = 6 * B * S * D**2 + 2 * B * D * S**2 + 2 * B * D * S**2 + 2 * B * S * D**2
    return said, measure.flops(lambda: attention(x)).total


@settles("tf-flops-mlp")
def test_flops_mlp():
    mlp, x = lm.DecoderOnly(USUAL, device="meta").blocks[0].mlp, torch.zeros(B, S, D, device="meta")
    return 4 * E * B * S * D**2, measure.flops(lambda: mlp(x)).total


@settles("tf-flops-3.2")
def test_flops_32():
    _, forward, backward = blocks(USUAL, S)
    return 12 * B * D * L * S * (S + (2 + E) * D), forward + backward


@settles("tf-flops-3.3")
def test_flops_33():
    # What is missing from 6BSN, measured in S/D, is one constant.
    constants = []
    for sequence in (D // 8, D, 8 * D):
        N, forward, backward = blocks(USUAL, sequence)
        missing = (forward + backward) / (6 * B * sequence * N) - 1
        constants.append(figures(missing * D / sequence, 6))
    return [constants[0]] * len(constants), constants


def forward_per_parameter(sequence):
    """FLOPs of a forward pass for each token and parameter of the blocks; 2 where they are "about" that, to a fifth."""
    N, forward, _ = blocks(USUAL, sequence)
    return near(forward / (N * B * sequence), 2.0, relative=0.2)


@settles("tf-flops-2bsn")
def test_flops_2bsn():
    return 2.0, forward_per_parameter(D), forward_per_parameter(4 * D)


@settles("tf-flops-lm-head")
def test_flops_lm_head():
    head, x = lm.DecoderOnly(USUAL, device="meta").head, torch.zeros(B, S, D, device="meta", requires_grad=True)
    return 2 * B * S * D * V, measure.flops(lambda: head(x).sum().backward()).total


@settles("tf-rule-3.4")
def test_rule_34():
    # A step of the whole model. The scores add S/(6D) to the blocks, and positions and norms are no products: with
    # S = D/8 both stay within three hundredths.
    model, sequence = lm.DecoderOnly(USUAL, device="meta"), D // 8
    tokens = torch.zeros(B, sequence, dtype=torch.int64, device="meta")
    counted = measure.flops(lambda: model(tokens).sum().backward()).total
    N = sum(amount for name, amount in weights(USUAL).items() if "positions" not in name)
    said = 6 * N * tokens.numel()
    return said, near(counted, said, relative=0.03)


@settles("tf-generalises-until-s")
def test_generalises_until_s():
    return 2.0, forward_per_parameter(D // 8), forward_per_parameter(8 * D)
