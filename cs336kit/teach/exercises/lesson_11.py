"""Exercises of lesson 11: memory accounting."""

from cs336kit import predict
from cs336kit.teach.exercises.core import Case, Exercise, Mistake

# --- 11.1: the four buckets ------------------------------------------------------------------------------------------


def four_buckets(parameters, activations, states):
    return 4 * (parameters + parameters + states * parameters + activations)


_BUCKETS = Exercise(
    id="11.1",
    reference=four_buckets,
    cases=lambda: [Case((10, 7, 1)), Case((1000, 64, 2)), Case((3, 500, 0)), Case((124_439_808, 10**9, 2))],
    mistakes=(
        Mistake(
            lambda parameters, activations, states: 4 * (parameters + states * parameters + activations),
            "The gradients are missing: for {case} you returned {given}. Each parameter has one, of its own size.",
        ),
        Mistake(
            lambda parameters, activations, states: 4 * parameters + parameters + states * parameters + activations,
            "Only the parameters got their 4 bytes: for {case} you returned {given}. Multiply the whole sum, so mind "
            "the brackets.",
        ),
        Mistake(
            lambda parameters, activations, states: 4 * (2 * parameters + states + activations),
            "You added `states` once: for {case} you returned {given}. It is a number of values for each parameter.",
        ),
        Mistake(
            lambda parameters, activations, states: 4 * (2 * parameters + states * parameters),
            "The activations are missing: for {case} you returned {given}. The forward pass keeps them for backward.",
        ),
        Mistake(
            lambda parameters, activations, states: 2 * parameters + states * parameters + activations,
            "This counts numbers: for {case} you returned {given}. An fp32 number takes 4 bytes.",
        ),
        Mistake(
            lambda parameters, activations, states: 4 * (2 + states) * parameters + activations,
            "The activations are numbers too: for {case} you returned {given}. Give them their 4 bytes.",
        ),
        Mistake(
            lambda parameters, activations, states: 16 * parameters + 4 * activations,
            "16 bytes per parameter are Adam's: for {case} you returned {given}. Use `states`.",
        ),
    ),
    hints=(
        "Which four things are alive when the forward pass has ended and the old gradients are still there?",
        "Count numbers first: P parameters, P gradients, `states` numbers for each parameter, the activations.",
        "return 4 * (parameters + ___ + states * ___ + activations)",
    ),
    checked="no, one and two optimizer states per parameter, few and many activations, and the size of GPT-2.",
)

# --- 11.2: the paper block in fp32 -----------------------------------------------------------------------------------


def block_bytes(B, S, D, A):
    return 4 * (16 * B * S * D + A * B * S**2) + 16 * B * S


_BLOCK = Exercise(
    id="11.2",
    reference=block_bytes,
    cases=lambda: [Case(sizes) for sizes in ((1, 1, 8, 1), (3, 6, 16, 4), (1, 64, 32, 8), (4, 1024, 768, 12))],
    mistakes=(
        Mistake(
            lambda B, S, D, A: 4 * (16 * B * S * D + B * S**2) + 16 * B * S,
            "The S² term lacks the heads: for {case} you returned {given}. Every head has its own S × S weights.",
        ),
        Mistake(
            lambda B, S, D, A: 4 * (16 * B * S * D + A * B * S) + 16 * B * S,
            "The weights of attention are a square: for {case} you returned {given}. Each position has a weight for "
            "each position, S² for a head.",
        ),
        Mistake(
            lambda B, S, D, A: 34 * B * S * D + 5 * A * B * S**2,
            "This is the formula of the 2022 paper: for {case} you returned {given}. It is for 16-bit elements and "
            "dropout; here are 4 bytes and no dropout.",
        ),
        Mistake(
            lambda B, S, D, A: 4 * (16 * B * S * D + A * B * S**2),
            "Almost: for {case} you returned {given}. Each of the two norms also keeps a mean and a 1/deviation per "
            "token, in 4 bytes each.",
        ),
        Mistake(
            lambda B, S, D, A: 4 * (18 * B * S * D + A * B * S**2) + 16 * B * S,
            "Two rows of D too many: for {case} you returned {given}. A residual addition keeps nothing.",
        ),
        Mistake(
            lambda B, S, D, A: 4 * (14 * B * S * D + A * B * S**2) + 16 * B * S,
            "Two rows of D too few: for {case} you returned {given}. Query, key and value are three tensors, and so is "
            "what goes into them.",
        ),
        Mistake(
            lambda B, S, D, A: 4 * (16 * B * S * D + A * B * S**2) + 8 * B * S,
            "Half of the norms' numbers are missing: for {case} you returned {given}. Two norms keep two numbers per "
            "token each, in 4 bytes.",
        ),
        Mistake(
            lambda B, S, D, A: 4 * (16 * B * S * D + 2 * A * B * S**2) + 16 * B * S,
            "The S² term is counted twice: for {case} you returned {given}. The softmax keeps its output, not the scores "
            "that went in, and the product with the values keeps the same tensor.",
        ),
        Mistake(
            lambda B, S, D, A: 4 * (12 * B * S * D + A * B * S**2) + 16 * B * S,
            "One of the MLP's hidden tensors is missing: for {case} you returned {given}. GELU keeps its input, the down "
            "matrix its own: 4D wide, both.",
        ),
        Mistake(
            lambda B, S, D, A: 2 * (16 * B * S * D + A * B * S**2) + 8 * B * S,
            "These are 2 bytes per number: for {case} you returned {given}. The block is in fp32.",
        ),
    ),
    hints=(
        "Go through the block line by line, and for each line ask what its backward pass needs.",
        "Rows of D: norm input, q/k/v input, q, k, v, output's input; norm input, up's input; then F = 4D twice.",
        "return 4 * (___ * B * S * D + ___ * B * S**2) + 2 * 2 * 4 * B * S",
    ),
    checked="one token, toy sizes, a long sequence with narrow heads, and GPT-2's block at batch 4.",
)

# --- 11.3: fused attention -------------------------------------------------------------------------------------------


def fused_bytes(B, S, A, K, h, p):
    return p * B * S * h * (2 * A + 2 * K) + 4 * B * A * S


_FUSED = Exercise(
    id="11.3",
    reference=fused_bytes,
    cases=lambda: [
        Case(sizes) for sizes in ((2, 8, 6, 2, 8, 2), (1, 3, 2, 2, 4, 4), (1, 128, 8, 1, 16, 2), (2, 5, 6, 3, 10, 4))
    ],
    mistakes=(
        Mistake(
            lambda B, S, A, K, h, p: p * B * S * h * 4 * A + 4 * B * A * S,
            "Key and value are as wide as the query here: for {case} you returned {given}. Grouped heads share them: "
            "K heads, not A.",
        ),
        Mistake(
            lambda B, S, A, K, h, p: p * (B * S * h * (2 * A + 2 * K) + A * B * S**2),
            "There are still S² weights: for {case} you returned {given}. The fused kernel computes them again in its "
            "backward pass.",
        ),
        Mistake(
            lambda B, S, A, K, h, p: p * B * S * h * (2 * A + 2 * K),
            "The log-sum-exp is missing: for {case} you returned {given}. One number for each query and head tells the "
            "backward pass how the softmax was normalised.",
        ),
        Mistake(
            lambda B, S, A, K, h, p: p * (B * S * h * (2 * A + 2 * K) + B * A * S),
            "The log-sum-exp stays in fp32: for {case} you returned {given}. It takes 4 bytes, whatever p is.",
        ),
        Mistake(
            lambda B, S, A, K, h, p: p * B * S * h * (A + 2 * K) + 4 * B * A * S,
            "The output is missing: for {case} you returned {given}. Its backward pass multiplies the output with the "
            "gradient, so the kernel keeps it.",
        ),
        Mistake(
            lambda B, S, A, K, h, p: p * B * S * h * (2 * A + K) + 4 * B * A * S,
            "Key or value is missing: for {case} you returned {given}. The backward pass needs both.",
        ),
        Mistake(
            lambda B, S, A, K, h, p: p * B * S * h * (2 * A + 2 * K) + 4 * B * K * S,
            "The log-sum-exp belongs to the queries: for {case} you returned {given}. There is one for each of the A "
            "query heads.",
        ),
        Mistake(
            lambda B, S, A, K, h, p: 4 * B * S * h * (2 * A + 2 * K) + 4 * B * A * S,
            "All tensors have 4 bytes here: for {case} you returned {given}. Only the log-sum-exp is always fp32.",
        ),
    ),
    hints=(
        "Which tensors does the fused kernel need to compute the scores again, and to undo the softmax?",
        "Query and output have A heads, key and value K heads, each S × h. And one fp32 number per query and head.",
        "return p * B * S * h * (2 * ___ + 2 * ___) + 4 * ___",
    ),
    checked="equal, grouped and single key/value heads, with 2 and 4 bytes per element.",
)

# --- 11.4: bytes per parameter ---------------------------------------------------------------------------------------

_POLICIES = ("fp32", "autocast", "mixed", "mixed, fp32 gradients", "bf16")


def bytes_per_parameter(policy):
    return predict.bytes_per_parameter("adamw", precision=policy).total


def _from_table(table):
    return lambda policy: table[policy]


_PER_PARAMETER = Exercise(
    id="11.4",
    reference=bytes_per_parameter,
    cases=lambda: [Case((policy,)) for policy in _POLICIES],
    mistakes=(
        Mistake(
            _from_table(dict(zip(_POLICIES, (16, 10, 16, 18, 8), strict=True))),
            "Autocast changes no weight: for {case} you returned {given}. Parameters, gradients and state stay fp32; "
            "only the products run in bf16.",
        ),
        Mistake(
            _from_table(dict(zip(_POLICIES, (16, 16, 12, 14, 8), strict=True))),
            "The fp32 master weights are missing: for {case} you returned {given}. The optimizer updates a copy in 4 "
            "bytes, or small updates are lost.",
        ),
        Mistake(
            _from_table(
                dict(zip(_POLICIES, (16, 16, 12, 14, 8), strict=True)) | {"mixed": 8, "mixed, fp32 gradients": 10}
            ),
            "You counted the optimizer in bf16: for {case} you returned {given}. Master weights and both moments are "
            "fp32, 12 bytes together.",
        ),
        Mistake(
            _from_table(dict(zip(_POLICIES, (16, 16, 16, 16, 8), strict=True))),
            "The gradients are in fp32 there: for {case} you returned {given}. That is 2 bytes more.",
        ),
        Mistake(
            _from_table(dict(zip(_POLICIES, (12, 12, 14, 14, 6), strict=True))),
            "The gradients are missing: for {case} you returned {given}. They live beside parameters and state.",
        ),
        Mistake(
            _from_table(dict(zip(_POLICIES, (16, 16, 16, 18, 12), strict=True))),
            "The moments follow the dtype of the parameter: for {case} you returned {given}. In a bf16 model torch's "
            "AdamW keeps them in 2 bytes each.",
        ),
        Mistake(
            _from_table(dict(zip(_POLICIES, (16, 18, 16, 18, 8), strict=True))),
            "Autocast's bf16 copies of the weights count as activations: for {case} you returned {given}. They live from "
            "the forward pass to the backward pass only.",
        ),
    ),
    hints=(
        "For each policy write down four numbers: bytes of the weight, of its gradient, of a master copy, of the moments.",
        "fp32 is 4 + 4 + 0 + 8. Autocast keeps everything in fp32. A master copy exists only where the model is 16-bit.",
        "'mixed' is 2 + 2 + 4 + 8; with fp32 gradients 2 + ___ + 4 + 8; pure bf16 is 2 + 2 + 0 + ___.",
    ),
    checked="all five policies.",
)

# --- 11.5: how far apart to checkpoint -------------------------------------------------------------------------------


def interval(layers, input_bytes, block_bytes):
    return min(range(1, layers + 1), key=lambda k: -(-layers // k) * input_bytes + k * block_bytes)


_INTERVAL = Exercise(
    id="11.5",
    reference=interval,
    cases=lambda: [
        Case(sizes)
        for sizes in (
            (12, 1, 16),
            (96, 1, 1),
            (100, 1, 4),
            (10, 10, 1),
            (32, 1, 34),
            (80, 50, 3),
            (1, 5, 5),
            (7, 20, 1),
            (7, 20, 10),
        )
    ],
    mistakes=(
        Mistake(
            lambda layers, input_bytes, block_bytes: 1,
            "You keep the input of every block: for {case} you returned {given}. When inputs are dear and blocks cheap, "
            "longer segments are better.",
        ),
        Mistake(
            lambda layers, input_bytes, block_bytes: layers,
            "One segment holds all blocks at once when it is computed again: for {case} you returned {given}. You "
            "forgot the k blocks that are alive during the recomputation.",
        ),
        Mistake(
            lambda layers, input_bytes, block_bytes: max(1, round(layers**0.5)),
            "√L is right only when a block keeps as much as its input: for {case} you returned {given}. Weigh both.",
        ),
        Mistake(
            lambda layers, input_bytes, block_bytes: min(
                range(1, layers + 1), key=lambda k: layers // k * input_bytes + k * block_bytes
            ),
            "The last, shorter segment has an input too: for {case} you returned {given}. Round L / k up.",
        ),
        Mistake(
            lambda layers, input_bytes, block_bytes: min(
                (k for k in range(1, layers + 1) if layers % k == 0),
                key=lambda k: layers // k * input_bytes + k * block_bytes,
            ),
            "You tried divisors of L only: for {case} you returned {given}. A last, shorter segment is allowed.",
        ),
        Mistake(
            lambda layers, input_bytes, block_bytes: min(
                range(layers, 0, -1), key=lambda k: -(-layers // k) * input_bytes + k * block_bytes
            ),
            "Of several that are equal you took the largest: for {case} you returned {given}. Take the smallest.",
        ),
    ),
    hints=(
        "With a checkpoint every k blocks, what is alive while one segment is computed again?",
        "All segment inputs, ⌈L / k⌉ of them, and everything that k blocks keep. Try every k from 1 to L.",
        "min(range(1, layers + 1), key=lambda k: -(-layers // k) * ___ + k * ___)",
    ),
    checked="blocks much larger than their inputs, as large, and smaller; segments that do not divide the layers; one layer.",
)

EXERCISES = (_BUCKETS, _BLOCK, _FUSED, _PER_PARAMETER, _INTERVAL)
