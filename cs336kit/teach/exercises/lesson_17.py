"""Exercises of lesson 17: parameters and FLOPs from a configuration."""

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
        "(right[0], 2 * tokens * (experts * 3 * D * F + D * experts))": "you let every expert compute, but a token visits "
        "only per_token of them.",
        "(right[0] - D * experts, right[1] - 2 * tokens * D * experts)": "you left out the router. It has weights, and it "
        "sees every token.",
        "(3 * D * F * per_token + D * experts, right[1])": "all experts are stored: any token may visit any of them.",
        "(right[0] - D * F * experts, right[1] - 2 * tokens * D * F * per_token)": "an expert has three matrices, not two.",
        "(right[0], right[1] // 2)": "these are half of the FLOPs: a multiplication and an addition are two.",
        "(right[0], right[1] - 2 * tokens * D * experts)": "you left out the router's FLOPs: its matrix multiplies every token.",
    },
    hints=(
        "What has to lie in memory, and what does one token multiply?",
        "Write an expert and the router as two numbers of weights. Store all; let a token meet the router and its own experts.",
    ),
    checked="Mixtral 8x7B and 8x22B, 16 experts with one for each token, 4 experts with three.",
)
def mixture(D, F, experts, per_token, tokens):
    expert, router = 3 * D * F, D * experts
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
    tolerance=0.02,
    mistakes={
        "('mixtral-8x7b', ...)": "its 12.9 billion active parameters would fit, but all 46.7 billion are stored, with their "
        "gradients and moments.",
        "('qwen3-8b', ...)": "that fits, but so does a larger one: you may use 64 of the 80 GB on each of 8 GPUs.",
        "('llama-3.1-8b', ...)": "that fits, but so does the other 8B model, which is larger, and so do larger ones.",
        "('gpt-oss-20b', 8 * _each('gpt-oss'))": "that is the sum over all GPUs. Each of the 8 holds an equal share.",
        "('gpt-oss-20b', 2 * _SIZES['gpt-oss'] / 8 / 1e9)": "those are the bf16 weights alone. Training takes 18 bytes for each.",
    },
    hints=(
        "How many parameters fit into 8 GPUs if a fifth of each has to stay free?",
        "Which of a mixture's two sizes matters for memory? `predict.parameters(models[name]).total` gives it.",
    ),
    checked="gpt-oss-20b, with 47 of 80 GB on each GPU; Mixtral would take 105.",
)
def largest_that_trains():
    return "gpt-oss-20b", _each("gpt-oss")
