"""Llama, Mistral, Qwen and Mixtral: one decoder whose four choices differ from GPT-2's."""

from cs336kit.lm.decoder import DecoderOnly
from cs336kit.predict import TransformerConfig

#: What makes a configuration a Llama: field of TransformerConfig → the value that it must have.
LLAMA = {"norm": "rmsnorm", "positions": "rope", "mlp": "swiglu"}


class Llama(DecoderOnly):
    """Token ids (B, S) → logits (B, S, V) with RMSNorm, rotary positions, grouped causal SDPA and SwiGLU.

    No biases, or those of query, key and value (Qwen2); a sliding window (Mistral) and experts (Mixtral) where the
    configuration has them. A configuration with another norm, other positions or another MLP raises ValueError.
    `rope_base` is 10 000 for Llama 1 and 2, 500 000 for Llama 3. Source: Touvron et al. 2023, section 2.2.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        attention: str = "sdpa",
        checkpointing: bool = False,
        norm_eps: float = 1e-5,
        rope_base: float = 10_000.0,
    ):
        for name, value in LLAMA.items():
            if getattr(config, name) != value:
                raise ValueError(
                    f"a Llama has {name}={value!r}, and this configuration {getattr(config, name)!r}: "
                    "change it, or build a DecoderOnly."
                )
        super().__init__(
            config, attention=attention, checkpointing=checkpointing, norm_eps=norm_eps, rope_base=rope_base
        )
