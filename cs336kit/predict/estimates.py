"""Published estimates of a Transformer's FLOPs and bytes, kept as they are so that their errors can be seen."""

from cs336kit.predict.accounting import parameters, without_embeddings
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import boolean, positive_int
from cs336kit.predict.decoder.step import check_sizes
from cs336kit.predict.napkin import six_nd
from cs336kit.predict.transformer import TransformerConfig, check_config


def kaplan_parameters(config: TransformerConfig) -> Breakdown:
    """Parameters by row of Kaplan's table: weights of GPT-2-like blocks, without biases, norms and grouped heads.

    Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", arXiv:2001.08361, table 1.
    """
    check_config(config)
    c = config
    rows = {
        "embed": (c.vocab + c.context) * c.d_model,
        "attention: QKV": c.layers * c.d_model * 3 * c.query_width,
        "attention: mask": 0,
        "attention: project": c.layers * c.query_width * c.d_model,
        "feedforward": c.layers * 2 * c.d_model * c.d_ff,
        "de-embed": 0,
    }
    return Breakdown(rows, unit="parameters")


def kaplan_flops(config: TransformerConfig, *, sequence: int) -> Breakdown:
    """Forward FLOPs of one token by row of Kaplan's table, at context `sequence`.

    The mask row is 2·L·S·A·h: scores and values over half of the pairs. The paper's own total, 2N + 2·L·S·A·h, leaves
    out the rows embed and de-embed. Norms, GELU and softmax are missing; keys and values count as one per query head.
    Source: Kaplan et al. 2020, arXiv:2001.08361, table 1 and section 2.1.
    """
    _, sequence = check_sizes(config, batch=1, sequence=sequence)
    c = config
    rows = {
        "embed": 4 * c.d_model,
        "attention: QKV": 2 * c.layers * c.d_model * 3 * c.query_width,
        "attention: mask": 2 * c.layers * sequence * c.query_width,
        "attention: project": 2 * c.layers * c.query_width * c.d_model,
        "feedforward": 2 * c.layers * 2 * c.d_model * c.d_ff,
        "de-embed": 2 * c.d_model * c.vocab,
    }
    return Breakdown(rows, unit="FLOPs")


def six_nd_estimate(config: TransformerConfig, *, batch: int, sequence: int, embeddings: bool = True) -> int:
    """Training FLOPs as 6·N·P with P all parameters, or without the two embedding tables (`embeddings=False`).

    Left out: the S² part of attention, and, without embeddings, the head. Source: Kaplan et al. 2020, section 2.1.
    """
    batch, sequence = check_sizes(config, batch=batch, sequence=sequence)
    counted = parameters(config).total if boolean("embeddings", embeddings) else without_embeddings(config)
    return six_nd(counted, tokens=batch * sequence)


def paper_block_bytes(config: TransformerConfig, *, batch: int, sequence: int, bytes_per_element: int = 2) -> Breakdown:
    """Bytes that one GPT block saves according to the paper of 2022, term by term: 34·BSD + 5·ABS² at 2 bytes, F = 4D.

    With p bytes per element: 2BSD(p(E + 4) + 1) + ABS²(2p + 1), E = F/D, dropout everywhere, one byte per mask element.
    Left out there: mean and 1/deviation of the norms. The two norms save their inputs, and so do the linear layers.
    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equation 2.
    """
    check_config(config)
    batch, sequence = positive_int("batch", batch), positive_int("sequence", sequence)
    p = positive_int("bytes_per_element", bytes_per_element)
    row = batch * sequence * config.d_model
    pairs = config.heads * batch * sequence**2
    hidden = batch * sequence * config.d_ff
    parts = {
        "layer norm inputs": 2 * p * row,
        "query, key, value input": p * row,
        "query and key": 2 * p * row,
        "value": p * row,
        "attention output's input": p * row,
        "mlp up's input": p * row,
        "gelu input": p * hidden,
        "mlp down's input": p * hidden,
        "softmax output": p * pairs,
        "weights' dropout mask": pairs,
        "dropped weights": p * pairs,
        "attention dropout mask": row,
        "mlp dropout mask": row,
    }
    return Breakdown(parts, unit="bytes")
