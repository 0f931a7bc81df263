"""The decoder against transformers' own models: the same weights must give the same logits and gradients."""

from dataclasses import replace

import pytest
import torch

from cs336kit import lm, predict

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

GPT2 = predict.TransformerConfig(layers=3, d_model=24, heads=4, vocab=61, context=20)
LLAMA = replace(
    GPT2, kv_heads=2, d_ff=40, mlp="swiglu", norm="rmsnorm", norm_bias=False, positions="rope", bias="none",
    tied_head=False,
)  # fmt: skip
BASE, EPS = 5000.0, 1e-4


def hugging_face(kind, config):
    if kind == "GPT2":
        theirs = transformers.GPT2Config(
            n_layer=config.layers, n_head=config.heads, n_embd=config.d_model, n_inner=config.d_ff,
            vocab_size=config.vocab, n_positions=config.context, tie_word_embeddings=config.tied_head,
            layer_norm_epsilon=EPS, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(theirs)
    else:
        options = {"head_dim": config.head_dim} if kind != "Qwen2" else {}
        if kind == "Mixtral":
            options |= {"num_local_experts": config.experts, "num_experts_per_tok": config.experts_per_token}
        if kind in ("Mistral", "Mixtral"):
            options["sliding_window"] = config.window
        theirs = getattr(transformers, kind + "Config")(
            num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
            hidden_size=config.d_model, intermediate_size=config.d_ff, vocab_size=config.vocab,
            max_position_embeddings=config.context, tie_word_embeddings=config.tied_head, rms_norm_eps=EPS,
            rope_parameters={"rope_type": "default", "rope_theta": BASE}, bos_token_id=0, eos_token_id=0,
            pad_token_id=None, **options,
        )  # fmt: skip
        model = getattr(transformers, kind + "ForCausalLM")(theirs)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def ours(config, **options):
    if config.positions == "learned":
        return lm.DecoderOnly(config, norm_eps=EPS, approximate="tanh", **options).eval()
    return lm.Llama(config, norm_eps=EPS, rope_base=BASE, **options).eval()


CASES = [
    ("GPT2", GPT2),
    ("GPT2", replace(GPT2, d_ff=30, tied_head=False)),
    ("Llama", LLAMA),
    ("Llama", replace(LLAMA, kv_heads=1, head_dim=10, tied_head=True)),
    ("Mistral", replace(LLAMA, window=4)),
    ("Qwen2", replace(LLAMA, bias="qkv", tied_head=True)),
    ("Mixtral", replace(LLAMA, experts=4, experts_per_token=2)),
]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("kind", "config"), CASES)
def test_same_weights_same_logits_and_gradients(kind, config, attention):
    torch.manual_seed(0)
    theirs, model = hugging_face(kind, config), ours(config, attention=attention)
    model.load_state_dict(lm.from_transformers(theirs.state_dict(), config))
    tokens = torch.randint(config.vocab, (2, config.context))
    expected = theirs(tokens).logits
    # Both compute in fp32, in another order.
    torch.testing.assert_close(model(tokens), expected, atol=2e-4, rtol=2e-4)

    model(tokens).square().mean().backward()
    expected.square().mean().backward()
    gradients = lm.to_transformers({n: p.grad for n, p in named(model)}, config)
    for name, parameter in theirs.named_parameters():
        scale = parameter.grad.abs().max().item()
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-3 * scale, rtol=1e-3)


def named(model):
    return model.named_parameters(remove_duplicate=False)


@pytest.mark.parametrize(("kind", "config"), CASES)
def test_there_and_back(kind, config):
    theirs, model = hugging_face(kind, config), ours(config)
    state = theirs.state_dict()
    model.load_state_dict(lm.from_transformers(state, config))
    back = lm.to_transformers(model.state_dict(), config)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    theirs.load_state_dict(back)


def test_a_tied_checkpoint_may_leave_the_head_out():
    state = hugging_face("GPT2", GPT2).state_dict()
    del state["lm_head.weight"]
    ours(GPT2).load_state_dict(lm.from_transformers(state, GPT2))


def test_a_missing_tensor_is_named():
    state = hugging_face("GPT2", GPT2).state_dict()
    del state["transformer.h.1.attn.c_attn.bias"]
    with pytest.raises(KeyError, match=r"transformer\.h\.1\.attn\.c_attn\.bias"):
        lm.from_transformers(state, GPT2)


def test_another_architecture_is_refused():
    config = replace(GPT2, positions="rope")
    with pytest.raises(ValueError, match="only GPT-2's architecture"):
        lm.to_transformers({}, config)
