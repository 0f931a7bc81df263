"""Exercises of lesson 15: peak memory."""

from cs336kit.teach.exercises.core import exercise


@exercise(
    "15.1",
    cases=[(2, 8, 6, 2, 8, 2), (1, 3, 2, 2, 4, 4), (1, 128, 8, 1, 16, 2), (2, 5, 6, 3, 10, 4)],
    mistakes={
        "right_if(K=A)": "key and value are as wide as the query here. Grouped heads share them: K heads, not A.",
        "right - 4 * B * A * S + p * A * B * S**2": "there are still S² weights. The fused kernel computes them again.",
        "right - 4 * B * A * S": "the log-sum-exp is missing: one number for each query and head undoes the softmax.",
        "right - (4 - p) * B * A * S": "the log-sum-exp stays in fp32. It takes 4 bytes, whatever p is.",
        "right - p * B * S * h * A": "the output is missing. Its backward pass multiplies the output with the gradient.",
        "right - 4 * B * S * (A - K)": "the log-sum-exp belongs to the queries. There is one for each of the A heads.",
    },
    hints=(
        "Which tensors does the fused kernel need to compute the scores again, and to undo the softmax?",
        "Query and output have A heads, key and value K heads, each S × h. And one fp32 number per query and head.",
        "return p * B * S * h * (2 * ___ + 2 * ___) + 4 * ___",
    ),
    checked="equal, grouped and single key/value heads, with 2 and 4 bytes per element.",
)
def fused_bytes(B, S, A, K, h, p):
    return p * B * S * h * (2 * A + 2 * K) + 4 * B * A * S


_SIZES = (
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


@exercise(
    "15.2",
    cases=[*_SIZES, (3, 3, 2), (20, 3, 2), (8, 12, 1), (50, 1, 2)],
    mistakes={
        "1": "you keep the input of every block. When inputs are dear and blocks cheap, longer segments are better.",
        "layers": "one segment holds all blocks at once when it is computed again: k blocks are alive during it.",
        "max(1, round(layers**0.5))": "√L is right only when a block keeps as much as its input. Weigh both.",
        "min(layers, max(1, round((layers * input_bytes / block_bytes) ** 0.5)))": "segments are whole: try every k from 1 to L.",
        "min(range(1, layers + 1), key=lambda k: layers // k * input_bytes + k * block_bytes)": "a last, shorter "
        "segment has an input too.",
        "min(range(layers, 0, -1), key=lambda k: -(-layers // k) * input_bytes + k * block_bytes)": "of several "
        "that are equal take the smallest.",
    },
    hints=(
        "With a checkpoint every k blocks, what is alive while one segment is computed again?",
        "All segment inputs, ⌈L / k⌉ of them, and everything that k blocks keep. Try every k from 1 to L.",
        "min(range(1, layers + 1), key=lambda k: -(-layers // k) * ___ + k * ___)",
    ),
    checked="blocks much larger than their inputs, as large, and smaller; segments that do not divide the layers; one layer.",
)
def interval(layers, input_bytes, block_bytes):
    return min(range(1, layers + 1), key=lambda k: -(-layers // k) * input_bytes + k * block_bytes)
