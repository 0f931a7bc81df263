"""Exercises of lesson 14: training memory."""

from cs336kit.teach.exercises.core import exercise


@exercise(
    "14.1",
    cases=[(10, 7, 1), (1000, 64, 2), (3, 500, 0), (124_439_808, 10**9, 2)],
    mistakes={
        "right - 4 * parameters": "the gradients are missing. Each parameter has one, of its own size.",
        "right - 3 * (right // 4 - parameters)": "only the parameters got their 4 bytes. Multiply the whole sum.",
        "4 * (2 * parameters + states + activations)": "`states` is a number of values for each parameter.",
        "right - 4 * activations": "the activations are missing. The forward pass keeps them for backward.",
        "right // 4": "this counts numbers. An fp32 number takes 4 bytes.",
        "right - 3 * activations": "the activations are numbers too. Give them their 4 bytes.",
    },
    hints=(
        "Which four things are alive when the forward pass has ended and the old gradients are still there?",
        "Count numbers first: P parameters, P gradients, `states` numbers for each parameter, the activations.",
        "return 4 * (parameters + ___ + states * ___ + activations)",
    ),
    checked="no, one and two optimizer states per parameter, few and many activations, and the size of GPT-2.",
)
def four_buckets(parameters, activations, states):
    return 4 * (parameters + parameters + states * parameters + activations)


@exercise(
    "14.2",
    cases=[(1, 1, 8, 1), (3, 6, 16, 4), (1, 64, 32, 8), (4, 1024, 768, 12)],
    mistakes={
        "right - 4 * (A - 1) * B * S**2": "the S² term lacks the heads. Every head has its own S × S weights.",
        "34 * B * S * D + 5 * A * B * S**2": "the 2022 paper's formula is for 16-bit elements and dropout. Here: 4 bytes, none.",
        "right - 16 * B * S": "almost. Each norm also keeps a mean and a 1/deviation per token, in 4 bytes each.",
        "right + 8 * B * S * D": "two rows of D too many: what goes into q, k and v is one tensor, and a residual keeps nothing.",
        "right - 8 * B * S * D": "two rows of D too few. Query, key and value are three tensors, and so is their input.",
        "right + 4 * A * B * S**2": "the softmax keeps its output alone, which is also what the product with the values keeps.",
    },
    hints=(
        "Go through the block line by line, and for each line ask what its backward pass needs.",
        "Rows of D: norm input, q/k/v input, q, k, v, output's input; norm input, up's input; then F = 4D twice.",
        "return 4 * (___ * B * S * D + ___ * B * S**2) + 2 * 2 * 4 * B * S",
    ),
    checked="one token, toy sizes, a long sequence with narrow heads, and GPT-2's block at batch 4.",
)
def block_bytes(B, S, D, A):
    return 4 * (16 * B * S * D + A * B * S**2) + 16 * B * S


#: Bytes of weight, gradient, master weight and the two moments.
_POLICIES = {
    "fp32": (4, 4, 0, 8),
    "autocast": (4, 4, 0, 8),
    "mixed": (2, 2, 4, 8),
    "mixed-fp32-gradients": (2, 4, 4, 8),
    "bf16": (2, 2, 0, 4),
}


@exercise(
    "14.3",
    cases=[(policy,) for policy in _POLICIES],
    mistakes={
        "right - 6 * (policy == 'autocast')": "autocast changes no weight, gradient or state; only products run in bf16.",
        "right - _POLICIES[policy][2]": "the fp32 master weights are missing: small updates to bf16 weights would be lost.",
        "right - 8 * policy.startswith('mixed')": "the optimizer is in bf16 there. Master weights and both moments are fp32.",
        "right - 2 * (policy == 'mixed-fp32-gradients')": "the gradients are in fp32 there. That is 2 bytes more.",
        "right - _POLICIES[policy][1]": "the gradients are missing. They live beside parameters and state.",
        "right + 4 * (policy == 'bf16')": "in a bf16 model torch's AdamW keeps its moments in 2 bytes each.",
    },
    hints=(
        "For each policy write down four numbers: bytes of the weight, of its gradient, of a master copy, of the moments.",
        "fp32 is 4 + 4 + 0 + 8. Autocast keeps everything in fp32. A master copy exists only where the model is 16-bit.",
        "'mixed' is 2 + 2 + 4 + 8; with fp32 gradients 2 + ___ + 4 + 8; pure bf16 is 2 + 2 + 0 + ___.",
    ),
    checked="all five policies.",
)
def bytes_per_parameter(policy):
    return sum(_POLICIES[policy])
