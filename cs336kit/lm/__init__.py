"""What is accounted for: models, optimizers, data, training, checkpoints, in plain PyTorch to be read."""

from cs336kit import _needs_torch as _needs_torch

# ruff: noqa: I001
# fmt: off
from cs336kit.lm.attention import (
    MultiHeadAttention as MultiHeadAttention, attention as attention, causal_mask as causal_mask, softmax as softmax,
)
from cs336kit.lm.autograd import Scalar as Scalar
from cs336kit.lm.blocks import Block as Block
from cs336kit.lm.caches import KVCache as KVCache
from cs336kit.lm.checkpoint import (
    CheckpointError as CheckpointError, checkpoint_bytes as checkpoint_bytes, load_checkpoint as load_checkpoint,
    save_checkpoint as save_checkpoint,
)
from cs336kit.lm.convert import from_transformers as from_transformers, to_transformers as to_transformers
from cs336kit.lm.data import (
    Batches as Batches, course_text as course_text, decode as decode, encode as encode, get_batch as get_batch,
    prefetch as prefetch,
)
from cs336kit.lm.float8 import (
    E4M3 as E4M3, E5M2 as E5M2, Float8Linear as Float8Linear, quantize as quantize, scaled_matmul as scaled_matmul,
)
from cs336kit.lm.generation import (
    generate as generate, probabilities as probabilities, sample as sample,
)
from cs336kit.lm.initializers import (
    fans as fans, gain as gain, kaiming_normal_ as kaiming_normal_, kaiming_uniform_ as kaiming_uniform_,
    lecun_normal_ as lecun_normal_, normal_ as normal_, residual_normal_ as residual_normal_,
    trunc_normal_ as trunc_normal_, uniform_ as uniform_, xavier_normal_ as xavier_normal_,
    xavier_uniform_ as xavier_uniform_,
)
from cs336kit.lm.latent import LatentAttention as LatentAttention
from cs336kit.lm.laws import LossLaw as LossLaw, PowerLaw as PowerLaw, fit_power as fit_power
from cs336kit.lm.layers import (
    GELUMLP as GELUMLP, Embedding as Embedding, LayerNorm as LayerNorm, Linear as Linear,
    MixtureOfExperts as MixtureOfExperts, RMSNorm as RMSNorm, SwiGLU as SwiGLU, gelu as gelu,
    layer_norm as layer_norm, reorder_pairs as reorder_pairs, rope as rope, rope_tables as rope_tables, silu as silu,
)
from cs336kit.lm.models import Cruncher as Cruncher, DecoderOnly as DecoderOnly, Llama as Llama
from cs336kit.lm.optimizers import (
    SGD as SGD, AdaGrad as AdaGrad, Adam as Adam, AdamW as AdamW, Momentum as Momentum, Optimizer as Optimizer,
    RMSProp as RMSProp,
)
from cs336kit.lm.precision import (
    POLICIES as POLICIES, LossScaler as LossScaler, Policy as Policy, precision as precision,
)
from cs336kit.lm.pretrain import pretrain as pretrain
from cs336kit.lm.run_parts import Pretraining as Pretraining
from cs336kit.lm.runs import ProgressBar as ProgressBar, seed_everything as seed_everything
from cs336kit.lm.scaling import envelope as envelope, fit_loss as fit_loss, isoflop as isoflop, valley as valley
from cs336kit.lm.sweep import (
    inner_parameters as inner_parameters, recorded_sweep as recorded_sweep, run_sweep as run_sweep,
    train_one as train_one,
)
from cs336kit.lm.speculation import Speculated as Speculated, accept as accept, speculative as speculative
from cs336kit.lm.tokens import TokenFile as TokenFile, TokenFileError as TokenFileError, token_dtype as token_dtype
from cs336kit.lm.training import (
    History as History, clip_gradients as clip_gradients, cosine_schedule as cosine_schedule,
    cross_entropy as cross_entropy, mean_loss as mean_loss, train as train,
)


# torch's distributed parts take a second to import, so only those who divide a model wait for them.
_LATER = ("Parallel", "parallelize")


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"cs336kit.lm has no {name!r}")
    from cs336kit.lm import parallel

    return getattr(parallel, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
