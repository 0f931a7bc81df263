"""Models, optimizers, data, training and checkpoints, which `predict` describes, in plain PyTorch that is easy to read."""

from typing import TYPE_CHECKING

from cs336kit import _needs_torch as _needs_torch
from cs336kit.lm.attention import MultiHeadAttention, attention, causal_mask, softmax
from cs336kit.lm.autograd import Scalar
from cs336kit.lm.blocks import Block
from cs336kit.lm.caches import KVCache
from cs336kit.lm.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from cs336kit.lm.convert import from_transformers, to_transformers
from cs336kit.lm.data import Batches, course_text, decode, encode, get_batch, prefetch
from cs336kit.lm.float8 import E4M3, E5M2, Float8Linear, quantize, scaled_matmul
from cs336kit.lm.generation import generate, probabilities, sample
from cs336kit.lm.initializers import (
    fans,
    gain,
    kaiming_normal_,
    kaiming_uniform_,
    lecun_normal_,
    normal_,
    residual_normal_,
    trunc_normal_,
    uniform_,
    xavier_normal_,
    xavier_uniform_,
)
from cs336kit.lm.latent import LatentAttention
from cs336kit.lm.laws import LossLaw, PowerLaw, fit_power
from cs336kit.lm.layers import Embedding, LayerNorm, Linear, RMSNorm, layer_norm, reorder_pairs, rope, rope_tables
from cs336kit.lm.mlp import GELUMLP, MixtureOfExperts, SwiGLU, gelu, silu
from cs336kit.lm.models import Cruncher, DecoderOnly, Llama
from cs336kit.lm.optimizers import SGD, AdaGrad, Adam, AdamW, Momentum, Optimizer, RMSProp
from cs336kit.lm.precision import POLICIES, LossScaler, Policy, precision
from cs336kit.lm.pretrain import Pretraining, pretrain
from cs336kit.lm.runs import ProgressBar, seed_everything
from cs336kit.lm.scaling import envelope, fit_loss, isoflop, valley
from cs336kit.lm.speculation import Speculated, accept, speculative
from cs336kit.lm.sweep import recorded_sweep, run_sweep, train_one
from cs336kit.lm.tokens import TokenFile, TokenFileError, token_dtype
from cs336kit.lm.training import History, clip_gradients, cosine_schedule, cross_entropy, mean_loss, train

__all__ = [
    "E4M3", "E5M2", "GELUMLP", "POLICIES", "SGD", "AdaGrad", "Adam", "AdamW", "Batches", "Block", "CheckpointError",
    "Cruncher", "DecoderOnly", "Embedding", "Float8Linear", "History", "KVCache", "LatentAttention", "LayerNorm",
    "Linear", "Llama", "LossLaw", "LossScaler", "MixtureOfExperts", "Momentum", "MultiHeadAttention", "Optimizer",
    "Parallel", "Policy", "PowerLaw", "Pretraining", "ProgressBar", "RMSNorm", "RMSProp", "Scalar", "Speculated",
    "SwiGLU", "TokenFile", "TokenFileError", "accept", "attention", "causal_mask",
    "clip_gradients", "cosine_schedule", "course_text", "cross_entropy", "decode", "encode", "envelope", "fans",
    "fit_loss", "fit_power", "from_transformers", "gain", "gelu", "generate", "get_batch", "isoflop",
    "kaiming_normal_", "kaiming_uniform_", "layer_norm", "lecun_normal_", "load_checkpoint", "mean_loss",
    "normal_", "parallelize", "precision", "prefetch", "pretrain", "probabilities", "quantize", "recorded_sweep",
    "reorder_pairs", "residual_normal_", "rope", "rope_tables", "run_sweep", "sample", "save_checkpoint",
    "scaled_matmul", "seed_everything", "silu", "softmax", "speculative", "to_transformers", "token_dtype", "train",
    "train_one", "trunc_normal_", "uniform_", "valley", "xavier_normal_", "xavier_uniform_",
]  # fmt: skip

if TYPE_CHECKING:
    from cs336kit.lm.parallel import Parallel, parallelize


# torch.distributed takes a second to import, so it is imported only by callers that divide a model.
def __getattr__(name: str) -> object:
    if name not in ("Parallel", "parallelize"):
        raise AttributeError(f"cs336kit.lm has no {name!r}")
    from cs336kit.lm import parallel

    return getattr(parallel, name)


def __dir__() -> list[str]:
    return list(__all__)
