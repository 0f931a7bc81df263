"""Exercises of lesson 17: parameters and FLOPs from a configuration."""

import statistics

from cs336kit.teach.exercises.core import exercise

_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def _fields(*leave_out, **other):
    return ({name: value for name, value in {**_LLAMA, **other}.items() if name not in leave_out},)


@exercise(
    "17.1",
    cases={
        "Llama 3.1 8B": _fields(),
        "Llama 2 7B, without num_key_value_heads": _fields(
            "num_key_value_heads", "tie_word_embeddings", intermediate_size=11008, vocab_size=32000
        ),
        "a small model with a tied head": _fields(
            hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, tie_word_embeddings=True
        ),
        "a model whose head_dim is not D ÷ A": _fields(
            hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_hidden_layers=28, head_dim=128
        ),
    },
    mistakes={
        "right_if(kv=fields['num_attention_heads'])": "keys and values have fewer heads than queries: K, not A.",
        "right_if(wide=fields['hidden_size'] // fields['num_attention_heads'])": "a head need not be D ÷ A wide: the file "
        "says.",
        "right_if(matrices=2)": "the feed-forward part has three matrices: gate, up and down.",
        "right_if(tables=1)": "the head is a second V × D matrix unless tie_word_embeddings is true.",
        "right_if(tables=2)": "with tie_word_embeddings the head is the table of tokens. Count it once.",
        "right_if(final=0)": "you left out the last norm, the one before the head.",
        "right_if(norms=0)": "you left out the norms in the blocks: each has two.",
        "right_if(norms=0, final=0)": "you left out the norms: two in each block and one before the head.",
    },
    hints=(
        "Go through one block as in section 2. Which of its sizes does the file always give, and which only sometimes?",
        "`fields.get(name, other)` gives `other` where a field is absent. Add the tables and the last norm once.",
    ),
    checked="Llama 3.1 8B, a file without key and value heads, a tied head, and a head_dim of its own.",
)
def count(fields, *, kv=None, wide=None, matrices=3, tables=None, norms=2, final=1):
    D, A = fields["hidden_size"], fields["num_attention_heads"]
    K = kv or fields.get("num_key_value_heads", A)
    h = wide or fields.get("head_dim", D // A)
    block = 2 * D * A * h + 2 * D * K * h + matrices * D * fields["intermediate_size"] + norms * D
    tables = tables or (1 if fields.get("tie_word_embeddings", False) else 2)
    return fields["num_hidden_layers"] * block + tables * fields["vocab_size"] * D + final * D


@exercise(
    "17.2",
    cases={
        "Mixtral 8x7B, one token": (4096, 14336, 8, 2, 1),
        "Mixtral 8x22B, 1,000 tokens": (6144, 16384, 8, 2, 1000),
        "16 experts, one for each of 7 tokens": (64, 96, 16, 1, 7),
        "4 experts, three for each of 5 tokens": (64, 96, 4, 3, 5),
    },
    mistakes={
        "(right[0], 2 * tokens * (experts * 3 * D * d_ff + D * experts))": "you let every expert compute, but a token visits "
        "only per_token of them.",
        "(right[0] - D * experts, right[1] - 2 * tokens * D * experts)": "you left out the router. It has weights, and it "
        "sees every token.",
        "(3 * D * d_ff * per_token + D * experts, right[1])": "all experts are stored: any token may visit any of them.",
        "(right[0] - D * d_ff * experts, right[1] - 2 * tokens * D * d_ff * per_token)": "an expert has three matrices, not two.",
        "(right[0], right[1] // 2)": "these are half of the FLOPs: a multiplication and an addition are two.",
        "(right[0], right[1] - 2 * tokens * D * experts)": "you left out the router's FLOPs: its matrix multiplies every token.",
    },
    hints=(
        "What has to lie in memory, and what does one token multiply?",
        "Write an expert and the router as two numbers of weights. Store all; let a token meet the router and its own experts.",
    ),
    checked="Mixtral 8x7B and 8x22B, 16 experts with one for each token, 4 experts with three.",
)
def mixture(D, d_ff, experts, per_token, tokens):
    expert, router = 3 * D * d_ff, D * experts
    return experts * expert + router, 2 * tokens * (per_token * expert + router)


_S, _WEIGHTS = 32768, 24 * 32 * 4096**2
_DEEP, _WIDE = 4 * 32 * _S * 4096, 4 * 8 * _S * 8192


@exercise(
    "17.3",
    tolerance=0.02,
    mistakes={
        "('B', _WIDE / _DEEP)": "that is attention alone. The products with weights are the same in both models, but they count.",
        "('B', (_WEIGHTS / 2 + _WIDE) / (_WEIGHTS / 2 + _DEEP))": "a weight takes two FLOPs for each token, but you counted one.",
        "('B', (_WEIGHTS + _WIDE / 2) / (_WEIGHTS + _DEEP / 2))": "attention has two products over all pairs: scores and values.",
        "('B', 100 * wide_or_deep()[1])": "B is right, but that is in percent. Give a fraction, such as 0.5.",
        "('B', 1 / wide_or_deep()[1])": "B is right, but you divided A's FLOPs by B's.",
        "('A', ...)": "both have equal products with weights. What is left grows with layers times width, so compare that.",
    },
    hints=(
        "Both have equally many weights. Which part of the list of operations does not follow from that number?",
        "For one token: 2 FLOPs for each of the 12LD² weights, and two products of S × D in each layer.",
    ),
    checked="B, at 71 %: with the same parameters, fewer and wider layers have half the attention.",
)
def wide_or_deep():
    return "B", (_WEIGHTS + _WIDE) / (_WEIGHTS + _DEEP)


_SIZES = {"llama": 8_030_261_248, "qwen3": 8_190_735_360, "mixtral": 46_702_792_704, "gpt-oss": 20_914_757_184}


def _each(name):
    return 18 * _SIZES[name] / 8 / 1e9


@exercise(
    "17.4",
    tolerance=0.01,
    mistakes={
        "('mixtral-8x7b', ...)": "its 12.9 billion active parameters would fit, but all 46.7 billion are stored, with their "
        "gradients and moments.",
        "('gpt-oss-20b', ...)": "its 47.1 GB are below the 48 of the label, but more than nine tenths of it, and what CUDA and "
        "the allocator take is not counted.",
        "('llama-3.1-8b', ...)": "that fits, but so does the other 8B model, which is larger.",
        "('qwen3-8b', 8 * _each('qwen3'))": "that is the sum over all GPUs. Each of the 8 holds an equal share.",
        "('qwen3-8b', 2 * _SIZES['qwen3'] / 8 / 1e9)": "those are the bf16 weights alone. Training takes 18 bytes for each.",
        "('qwen3-8b', 16 * _SIZES['qwen3'] / 8 / 1e9)": "that is 16 bytes for each parameter. With gradients in fp32 it is 18.",
    },
    hints=(
        "How many parameters fit into 8 GPUs if a tenth of each has to stay free?",
        "Which of a mixture's two sizes matters for memory? `predict.parameters(models[name]).total` gives it.",
    ),
    checked="qwen3-8b, with 18.4 of 48 GB on each GPU; gpt-oss-20b would take 47.1, Mixtral 105.",
)
def largest_that_trains():
    return "qwen3-8b", _each("qwen3")


#: Seconds of the steps 1 to 9 in the log of 17.5, and what one GPU of the eight works on in each.
_LOG, _TOKENS = (41.36, 3.72, 3.71, 3.73, 3.72, 15.24, 3.72, 3.71, 3.73), 131_072
_D, _LAYERS, _BLOCK = 2048, 24, 2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 5632
#: FLOPs of a training step for each token: matrices of the blocks, a table, which is also the head's size, and all pairs.
_BLOCKS, _TABLE, _PAIRS = 6 * _LAYERS * _BLOCK, 6 * 64_000 * _D, 3 * 4 * _LAYERS * 4096 * _D
_NEEDED = _BLOCKS + _TABLE + _PAIRS
#: What checkpointing computes again: the forward pass of the blocks, but not the last product of each.
_AGAIN = _BLOCKS / 3 - 2 * _LAYERS * _D * 5632 + _PAIRS / 3


def _mfus(each=_NEEDED, gpus=8, peaks=8, peak=1671e12 / 2, ordinary=None, steps=_LOG[1:]):
    """The MFU of an ordinary step and of these steps, for so many FLOPs a token, GPUs that work, and peaks."""
    rate = each * gpus * _TOKENS / (peaks * peak)
    return rate / (ordinary or statistics.median(_LOG)), rate * len(steps) / sum(steps)


def _parted(low, high):
    """Two answers that are nearer to each other than 17.5 can tell, moved apart until they meet in the middle."""
    middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
    return tuple(each * (1 - _NEAR) for each in middle), tuple(each / (1 - _NEAR) for each in middle)


_NEAR = 0.02
#: With all parameters, and by the dense peak of an H100; with the table looked up, and with 16 heads of keys and values.
_ALL, _H100 = _parted(_mfus(each=_BLOCKS + 2 * _TABLE), _mfus(peak=989.4e12))
_LOOKUP, _HEADS = _parted(_mfus(each=_NEEDED + _TABLE), _mfus(each=_NEEDED + 6 * _LAYERS * 2 * _D * (_D - 512)))


@exercise(
    "17.5",
    tolerance=_NEAR,
    mistakes={
        "_mfus(peak=1671e12)": "you divided by the peak with sparsity. These products are dense: half of it.",
        "_mfus(gpus=1)": "the tokens in the log are those of one GPU, but you divided by the peak of all eight.",
        "_mfus(peaks=1)": "these are the FLOPs of all eight GPUs, but you divided by the peak of one.",
        "_mfus(steps=_LOG)": "the first is right, but your second has step 1 in it, which compiles.",
        "_ALL": "that is 6PN with all parameters. It counts the lookup, and no pairs.",
        "_LOOKUP": "you counted the table that is only looked up as a product.",
        "_HEADS": "you gave keys and values 16 heads, but `num_key_value_heads` says 4.",
        "_mfus(each=_BLOCKS)": "that is 6PN without tables. The head is a product, and so are the pairs.",
        "_mfus(each=_NEEDED - _TABLE)": "you left out the head, which is a product with a whole table.",
        "_mfus(each=_NEEDED - _PAIRS)": "you left out the pairs, the two products of attention without weights.",
        "_mfus(each=_NEEDED - _PAIRS / 2)": "you counted half of the pairs. The task counts all of them.",
        "_H100": "you divided by the peak of an H100. This GPU's datasheet has another one.",
        "_mfus(each=_NEEDED / 3)": "these are the FLOPs of the forward pass alone.",
        "_mfus(each=_NEEDED * 8 / 6)": "that is the HFU: with checkpointing 8 FLOPs run for 6 that the model needs, and an MFU "
        "counts the 6.",
        "_mfus(each=_NEEDED + _AGAIN)": "that is the HFU: it counts what checkpointing computes again, and an MFU does not.",
        "_mfus(ordinary=sum(_LOG[1:]) / 8)": "the second is right. But the stall is in your mean, and makes no ordinary step.",
        "_mfus(ordinary=sum(_LOG) / 9, steps=_LOG)": "step 1, which compiles, is in both of your means.",
        "(right[0], sum(_mfus(ordinary=seconds)[0] for seconds in _LOG[1:]) / 8)": "the first is right, but your second is the "
        "mean of eight MFUs, in which the slow step counts as little as any other. Divide all FLOPs by all seconds.",
        "_mfus()[::-1]": "both are right, but in the other order: first the ordinary step.",
        "tuple(100 * share for share in right)": "both are right, but in percent. Give fractions, such as 0.5.",
    },
    hints=(
        "How many tokens do all GPUs see in a step, and how many FLOPs does the model need for each?",
        "`predict.training_flops(predict.from_hf(fields), batch=1, sequence=4096)` counts a sequence. How many of them are in a "
        "step? And which of the datasheet's two peaks is meant for dense matrices?",
    ),
    checked="0.41 in an ordinary step, and 0.29 with the stall. The step that compiles is in neither.",
)
def mfu_from_a_log():
    return _mfus()
