"""Steps of blocks like those of real architectures: what torch counted on a CPU, and what is predicted of it.

The numbers are those of `counted` in tests/kit/predict/test_real_blocks.py, which counts a part of them again.
"""

import dataclasses

import pytest

from cs336kit import predict
from cs336kit.predict import TransformerConfig

pytestmark = pytest.mark.torch

BASE = TransformerConfig(
    layers=2, d_model=24, heads=4, kv_heads=2, head_dim=8, d_ff=40, vocab=50, context=16, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
GPT = {"mlp": "gelu", "norm": "layernorm", "norm_bias": True}
LEARNED = {**GPT, "kv_heads": None, "positions": "learned", "bias": "all", "tied_head": True}
MOE = {"experts": 4, "experts_per_token": 2, "d_ff": 12, "dense_d_ff": 30}
LATENT = {"layers": 2, "kv_heads": None, "kv_latent": 12, "rotary_dim": 4, "query_latent": 10, "value_dim": 6}
LIKE = {
    "Qwen3": {"qk_norm": "head"},
    "OLMo 1": {"norm": "layernorm", "norm_scale": False},
    "OLMo 2": {"qk_norm": "width", "norm_placement": "post"},
    "Gemma 2": {
        "norm_placement": "sandwich", "window": 5, "window_layers": (True, False), "attention_softcap": 20.0,
        "logit_softcap": 30.0, "embedding_scale": 5.0, "mlp": "geglu_tanh", "tied_head": True,
    },
    "NeoX": {**GPT, "parallel": True, "rotary_dim": 2, "bias": "all"},
    "GPT-J": {**GPT, "norms_per_block": 1, "rotary_dim": 4, "bias": ("up", "down"), "head_bias": True, "mlp": "gelu_new"},
    "OPT-350m": {
        **GPT, "norm_placement": "residual", "final_norm": False, "positions": "learned", "extra_positions": 2,
        "mlp": "relu", "bias": "all",
    },
    "BLOOM without its positions": {**GPT, "embedding_norm": True, "positions": "none", "bias": "all"},
    "BitNet": {"inner_norms": True, "mlp": "relu2glu"},
    "Nemotron with plain norms": {**GPT, "mlp": "relu2", "rotary_dim": 4},
    "Granite": {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 0.1},
    "SmolLM3": {"rope_layers": (True, True, True, False), "layers": 4},
    "Qwen1.5-MoE": {**MOE, "sparse_layers": (False, True), "shared_d_ff": 20, "shared_gate": True, "bias": "qkv"},
    "dots1": {**MOE, "sparse_layers": (False, True, True, True), "layers": 4, "shared_d_ff": 20, "qk_norm": "head"},
    "GLM-4": {"rotary_dim": 4, "bias": "qkv", "layers": 1},
    "DeepSeek V3 with values as wide as keys": {**LATENT, "bias": "all", "value_dim": None},
    "DeepSeek V2 Lite": {**LATENT, "query_latent": 0},
    "gpt-oss without its sinks": {**MOE, "router_bias": True, "bias": "all", "window": 5, "window_layers": (True, False)},
    "GPT-2": LEARNED,
    "GPT-2 with dropout": {**LEARNED, "dropout": 0.1},
    "Llama with dropout": {"dropout": 0.1},
    "Mixtral": {"experts": 4, "experts_per_token": 2, "d_ff": 12},
    "Mistral": {"window": 5, "kv_heads": 1},
    "Falcon": {**GPT, "norms_per_block": 1, "kv_heads": 1},
    "one head": {"heads": 1, "kv_heads": 1, "layers": 3},
    "ReGLU": {"mlp": "reglu", "rope_layers": (True, False)},
    "SiLU": {"mlp": "silu", "positions": "none", "layers": 1},
    "Persimmon": {
        **GPT, "kv_heads": None, "mlp": "relu2", "rotary_dim": 4, "bias": "all", "qk_norm": "head", "qk_norm_bias": True,
    },
    "Phi with dropout": {**GPT, "norms_per_block": 1, "rotary_dim": 4, "bias": "all", "head_bias": True, "dropout": 0.1},
    "DeepSeek V2 Lite with dropout": {**LATENT, "query_latent": 0, "dropout": 0.1},
}  # fmt: skip

#: Of each step: which block, batch and sequence, how it runs, the tokens of each expert; then what was counted: bytes kept,
#: FLOPs, the peaks of the forward pass, of the backward pass and of the optimizer's step, and what is alive at each border.
COUNTED = [
    ("Qwen3", (2, 7), {"precision": "fp32", "attention": "sdpa", "checkpointing": True}, None, 9580, 1321152, (12992, 64008,
     63204), (1344, 2688, 4032, 9584, 8936, 28584, 48232, 51684, 0)),
    ("Qwen3", (3, 1), {"precision": "autocast", "attention": "sdpa"}, None, 33880, 210912, (34484, 51976, 63204), (288, 15360,
     30432, 33884, 35336, 41256, 47176, 51684, 0)),
    ("OLMo 1", (1, 5), {"precision": "autocast", "attention": "eager"}, None, 34900, 366240, (35904, 51560, 64516), (480, 15848,
     31216, 34904, 36024, 41392, 46760, 51076, 0)),
    ("OLMo 1", (2, 8), {"precision": "fp32", "attention": "sdpa", "checkpointing": True}, None, 9476, 1528320, (14848, 59080,
     64516), (1536, 3072, 4608, 9480, 9416, 28616, 47816, 51076, 0)),
    ("OLMo 2", (3, 1), {"precision": "fp32", "attention": "eager", "checkpointing": True}, None, 2056, 273504, (2660, 52232,
     63460), (288, 576, 864, 2060, 5768, 26600, 47432, 51940, 0)),
    ("OLMo 2", (2, 7), {"precision": "autocast", "attention": "eager"}, None, 73932, 1046976, (76736, 79536, 63460), (1344,
     35344, 68000, 73936, 71560, 60024, 48488, 51940, 0)),
    ("Gemma 2", (2, 8), {"precision": "bf16", "attention": "sdpa"}, None, 57348, 1208832, (60552, 63752, 29332), (768, 25856,
     50176, 57352, 51864, 38104, 24344, 23572, 0)),
    ("Gemma 2", (1, 5), {"precision": "fp32", "attention": "eager", "checkpointing": True}, None, 4424, 476320, (5428, 56744,
     58660), (480, 960, 1440, 4428, 6344, 26984, 47624, 47140, 0)),
    ("NeoX", (1, 5), {"precision": "autocast", "attention": "sdpa", "checkpointing": True}, None, 5124, 383520, (23632, 46056,
     55268), (480, 9712, 18944, 5128, 6440, 23848, 41256, 45572, 0)),
    ("NeoX", (2, 8), {"precision": "bf16", "attention": "sdpa"}, None, 23492, 1040896, (26696, 29896, 27636), (768, 10112,
     19456, 23496, 21960, 21560, 21160, 22788, 0)),
    ("GPT-J", (3, 1), {"precision": "bf16", "attention": "eager"}, None, 3664, 175968, (4268, 22492, 27720), (144, 1524, 2904,
     3668, 5508, 12800, 20092, 22344, 0)),
    ("GPT-J", (2, 7), {"precision": "autocast", "attention": "sdpa", "checkpointing": True}, None, 10020, 1106112, (30076,
     48384, 55436), (1344, 11264, 21184, 10024, 9232, 25232, 41232, 44684, 0)),
    ("OPT-350m", (2, 8), {"precision": "autocast", "attention": "eager", "checkpointing": True}, None, 9444, 1327616, (30152,
     49688, 56804), (1536, 11824, 22112, 9448, 9416, 25768, 42120, 47108, 0)),
    ("OPT-350m", (1, 5), {"precision": "bf16", "attention": "eager"}, None, 6364, 308640, (7368, 23800, 28404), (240, 2800,
     5360, 6368, 7768, 14152, 20536, 23556, 0)),
    ("BLOOM without its positions", (2, 7), {"precision": "fp32", "attention": "sdpa"}, None, 38420, 898240, (41224, 50760,
     55460), (2800, 18480, 34160, 38424, 39160, 41368, 43576, 45764, 0)),
    ("BLOOM without its positions", (3, 1), {"precision": "autocast", "attention": "eager", "checkpointing": True}, None, 4348,
     215904, (22456, 46056, 55460), (600, 9640, 18680, 4352, 6176, 23776, 41376, 45764, 0)),
    ("BitNet", (3, 1), {"precision": "bf16", "attention": "sdpa", "checkpointing": True}, None, 1624, 262368, (2496, 26216,
     31828), (144, 288, 432, 1628, 2888, 13352, 23816, 26068, 0)),
    ("BitNet", (2, 7), {"precision": "fp32", "attention": "sdpa"}, None, 68716, 1059520, (71520, 78736, 63652), (1344, 32256,
     63168, 68720, 68072, 58376, 48680, 52132, 0)),
    ("Nemotron with plain norms", (2, 8), {"precision": "fp32", "attention": "eager"}, None, 45828, 1024512, (49032, 57480,
     55876), (1536, 21248, 40960, 45832, 45960, 43528, 41096, 44356, 0)),
    ("Nemotron with plain norms", (1, 5), {"precision": "bf16", "attention": "sdpa", "checkpointing": True}, None, 1984, 383520,
     (2988, 22424, 27940), (240, 480, 720, 1988, 3224, 11624, 20024, 22180, 0)),
    ("Granite", (2, 7), {"precision": "bf16", "attention": "eager", "checkpointing": True}, None, 7564, 1308608, (10368, 35024,
     31540), (672, 1344, 2016, 7568, 4472, 14264, 24056, 25780, 0)),
    ("Granite", (3, 1), {"precision": "fp32", "attention": "eager"}, None, 11224, 210528, (11828, 51848, 63076), (288, 5160,
     10032, 11228, 14936, 30992, 47048, 51556, 0)),
    ("SmolLM3", (1, 5), {"precision": "autocast", "attention": "sdpa"}, None, 69296, 702880, (70300, 93896, 104932), (480,
     16648, 32816, 48984, 65152, 69300, 70056, 74816, 79576, 84336, 89096, 93412, 0)),
    ("SmolLM3", (2, 8), {"precision": "bf16", "attention": "eager", "checkpointing": True}, None, 10180, 2908672, (13384, 58408,
     52468), (768, 1536, 2304, 3072, 3840, 10184, 6296, 15992, 25688, 35384, 45080, 46708, 0)),
    ("Qwen1.5-MoE", (2, 8), {"precision": "fp32", "attention": "sdpa", "checkpointing": True}, [[2, 13, 3, 14]], 10948, 1526784,
     (14848, 66312, 67428), (1536, 3072, 4608, 10952, 9512, 37704, 54472, 57732, 0)),
    ("Qwen1.5-MoE", (1, 5), {"precision": "autocast", "attention": "sdpa"}, [[1, 4, 1, 4]], 42762, 360080, (44262, 58216,
     67428), (480, 14936, 39114, 43006, 43762, 49440, 53416, 57732, 0)),
    ("dots1", (2, 7), {"precision": "autocast", "attention": "eager"}, [[12, 6, 0, 10], [1, 4, 13, 10], [9, 7, 7, 5]], 174444,
     2029440, (179264, 182064, 125828), (1344, 31664, 77504, 123344, 169184, 176464, 174088, 157688, 141288, 124888, 112680,
     116132, 0)),
    ("dots1", (3, 1), {"precision": "fp32", "attention": "sdpa", "checkpointing": True}, [[2, 2, 1, 1], [1, 2, 1, 2], [1, 2, 2,
     1]], 2632, 523584, (3360, 116424, 125828), (288, 576, 864, 1152, 1440, 2636, 6344, 35496, 64648, 93800, 111624, 116132,
     0)),
    ("GLM-4", (1, 5), {"precision": "fp32", "attention": "eager", "checkpointing": True}, None, 2944, 246560, (3948, 31368,
     42404), (480, 960, 2948, 5864, 26568, 30884, 0)),
    ("GLM-4", (2, 8), {"precision": "autocast", "attention": "eager"}, None, 39204, 662016, (42536, 45608, 42404), (1536, 31360,
     39208, 36136, 27624, 30884, 0)),
    ("DeepSeek V3 with values as wide as keys", (3, 1), {"precision": "bf16", "attention": "sdpa"}, None, 9376, 210336, (9980,
     26568, 31268), (144, 4308, 8328, 9380, 10640, 17404, 24168, 26420, 0)),
    ("DeepSeek V3 with values as wide as keys", (2, 7), {"precision": "fp32", "attention": "eager", "checkpointing": True},
     None, 9580, 1305024, (17920, 66136, 62532), (1344, 2688, 4032, 9584, 8936, 29160, 49384, 52836, 0)),
    ("DeepSeek V2 Lite", (2, 7), {"precision": "autocast", "attention": "sdpa", "checkpointing": True}, None, 11308, 1274560,
     (34464, 62768, 62404), (1344, 12864, 24384, 11312, 8936, 28184, 47432, 50884, 0)),
    ("DeepSeek V2 Lite", (3, 1), {"precision": "bf16", "attention": "sdpa"}, None, 9424, 206784, (10028, 25592, 31204), (144,
     4332, 8376, 9428, 10688, 16940, 23192, 25444, 0)),
    ("gpt-oss without its sinks", (1, 5), {"precision": "bf16", "attention": "eager"}, [[1, 0, 4, 5], [2, 3, 2, 3]], 14344,
     302880, (15828, 30328, 34452), (240, 6780, 13080, 14828, 15296, 21372, 27448, 29604, 0)),
    ("gpt-oss without its sinks", (2, 8), {"precision": "autocast", "attention": "sdpa", "checkpointing": True}, [[3, 8, 8, 13],
     [4, 8, 10, 10]], 12580, 1319424, (40344, 71184, 68900), (1536, 15352, 29168, 12584, 9512, 32728, 55944, 59204, 0)),
    ("GPT-2", (3, 1), {"precision": "autocast", "attention": "eager", "checkpointing": True}, None, 4036, 252768, (25344, 58312,
     58308), (288, 10928, 21568, 4040, 5864, 26664, 47464, 48708, 0)),
    ("GPT-2", (2, 7), {"precision": "bf16", "attention": "eager"}, None, 23020, 1014720, (25824, 29160, 29156), (672, 10080,
     19488, 23024, 21992, 23128, 24264, 24356, 0)),
    ("GPT-2 with dropout", (2, 8), {"precision": "fp32", "attention": "sdpa"}, None, 64260, 1171968, (67464, 70888, 58308),
     (1536, 30464, 59392, 64264, 64392, 56552, 48712, 48708, 0)),
    ("GPT-2 with dropout", (1, 5), {"precision": "autocast", "attention": "eager", "checkpointing": True}, None, 5124, 460960,
     (26832, 58312, 58308), (480, 11312, 22144, 5128, 6440, 27048, 47656, 48708, 0)),
    ("Llama with dropout", (1, 5), {"precision": "bf16", "attention": "sdpa", "checkpointing": True}, None, 2704, 476320, (6220,
     26988, 31540), (240, 480, 720, 2708, 3176, 13400, 23624, 25780, 0)),
    ("Llama with dropout", (2, 8), {"precision": "fp32", "attention": "sdpa"}, None, 81860, 1208832, (85064, 88264, 63076),
     (1536, 38528, 75520, 81864, 80424, 64360, 48296, 51556, 0)),
    ("Mixtral", (3, 1), {"precision": "fp32", "attention": "eager"}, [[1, 2, 1, 2], [2, 2, 1, 1]], 13240, 172512, (14132, 57224,
     66628), (288, 6312, 12336, 13532, 17240, 34832, 52424, 56932, 0)),
    ("Mixtral", (2, 7), {"precision": "bf16", "attention": "sdpa", "checkpointing": True}, [[4, 5, 6, 13], [6, 7, 12, 3]], 7564,
     1138368, (10368, 37152, 33316), (672, 1344, 2016, 7568, 4472, 15608, 26744, 28468, 0)),
    ("Mistral", (2, 8), {"precision": "bf16", "attention": "eager", "checkpointing": True}, None, 8644, 1413632, (11848, 36200,
     30004), (768, 1536, 2304, 8648, 4760, 13688, 22616, 24244, 0)),
    ("Mistral", (1, 5), {"precision": "fp32", "attention": "eager"}, None, 18704, 343200, (19708, 48968, 60004), (480, 8600,
     16720, 18708, 21624, 32896, 44168, 48484, 0)),
    ("Falcon", (2, 7), {"precision": "autocast", "attention": "sdpa"}, None, 40388, 833728, (43192, 47016, 52420), (1344, 17872,
     34400, 40392, 39400, 38424, 37448, 40900, 0)),
    ("Falcon", (3, 1), {"precision": "bf16", "attention": "eager", "checkpointing": True}, None, 1192, 197472, (1796, 20600,
     26212), (144, 288, 432, 1196, 2936, 10568, 18200, 20452, 0)),
    ("one head", (3, 1), {"precision": "fp32", "attention": "sdpa", "checkpointing": True}, None, 2344, 268272, (2948, 54344,
     65572), (288, 576, 864, 1152, 2348, 6056, 20552, 35048, 49544, 54052, 0)),
    ("one head", (2, 7), {"precision": "autocast", "attention": "sdpa"}, None, 73348, 1053024, (76152, 78952, 65572), (1344,
     22920, 44496, 66072, 73352, 70976, 64184, 57392, 50600, 54052, 0)),
    ("ReGLU", (2, 8), {"precision": "autocast", "attention": "eager"}, None, 66340, 1208832, (69544, 72744, 63076), (1536,
     29952, 58368, 66344, 63272, 55784, 48296, 51556, 0)),
    ("ReGLU", (1, 5), {"precision": "fp32", "attention": "sdpa", "checkpointing": True}, None, 3424, 460320, (4428, 52040,
     63076), (480, 960, 1440, 3428, 6344, 26792, 47240, 51556, 0)),
    ("SiLU", (2, 7), {"precision": "fp32", "attention": "eager", "checkpointing": True}, None, 8236, 597184, (12096, 32632,
     38308), (1344, 2688, 8240, 7592, 23336, 26788, 0)),
    ("SiLU", (3, 1), {"precision": "autocast", "attention": "eager"}, None, 15016, 98784, (15620, 27080, 38308), (288, 11568,
     15020, 16472, 22280, 26788, 0)),
    ("OLMo 2", (2, 7), {"precision": "autocast", "attention": "eager", "frozen": ("norms", "mlp down")}, None, 66316, 993216,
     (69120, 71920, 55396), (1344, 31536, 60384, 66320, 63944, 52184, 40424, 43876, 0)),
    ("OLMo 2", (2, 7), {"precision": "fp32", "attention": "sdpa", "checkpointing": True, "frozen": ("norms", "mlp down")}, None,
     9580, 1321152, (12384, 53296, 55396), (1344, 2688, 4032, 9584, 8936, 24680, 40424, 43876, 0)),
    ("Mistral", (2, 7), {"precision": "autocast", "attention": "eager", "foreach": True}, None, 60524, 982464, (63328, 66128,
     96964), (1344, 27296, 53248, 60528, 58152, 51592, 45032, 48484, 0)),
    ("Mistral", (2, 7), {"precision": "fp32", "attention": "sdpa", "checkpointing": True, "foreach": True}, None, 9580, 1235136,
     (12384, 55996, 96964), (1344, 2688, 4032, 9584, 8936, 26984, 45032, 48484, 0)),
    ("Persimmon", (2, 7), {"precision": "autocast", "attention": "eager"}, None, 57092, 1014720, (60632, 62696, 61924),
     (1344, 26592, 51840, 57096, 56104, 52440, 48776, 52228, 0)),
    ("Persimmon", (1, 5), {"precision": "autocast-fp16", "attention": "sdpa", "checkpointing": True}, None, 5124, 444960,
     (26832, 52712, 61924), (480, 11312, 22144, 5128, 6440, 27176, 47912, 52228, 0)),
    ("Phi with dropout", (3, 1), {"precision": "fp32", "attention": "eager", "checkpointing": True}, None, 1780, 227424,
     (2496, 45680, 55084), (288, 576, 864, 1784, 6064, 23472, 40880, 45388, 0)),
    ("Phi with dropout", (2, 8), {"precision": "autocast", "attention": "eager"}, None, 54884, 1024512, (58796, 61288,
     55084), (1536, 25264, 48992, 54888, 53584, 47856, 42128, 45388, 0)),
    ("DeepSeek V2 Lite with dropout", (2, 8), {"precision": "fp32", "attention": "eager", "checkpointing": True}, None,
     10948, 1532416, (20480, 73048, 62404), (1536, 3072, 4608, 10952, 9512, 28568, 47624, 50884, 0)),
    ("Gemma 2", (2, 16), {"precision": "fp32", "attention": "eager", "checkpointing": True}, None, 28292, 3408896, (41984,
     121736, 58660), (3072, 6144, 9216, 28296, 14120, 32168, 50216, 47140, 0)),
    ("Granite", (2, 1), {"precision": "autocast", "attention": "eager", "checkpointing": True}, None, 3676, 174656, (24816,
     51752, 63076), (192, 10752, 21312, 3680, 5480, 26216, 46952, 51556, 0)),
    ("OPT-350m", (3, 16), {"precision": "autocast", "attention": "eager", "checkpointing": True}, None, 23524, 4376064,
     (50632, 88280, 56804), (4608, 17968, 31328, 23528, 18632, 31912, 45192, 47108, 0)),
    ("OPT-350m", (1, 7), {"precision": "fp16", "attention": "eager"}, None, 9132, 442848, (10536, 23896, 28404), (336, 4032,
     7728, 9136, 10136, 15384, 20632, 23556, 0)),
    ("BitNet", (1, 5), {"precision": "fp16", "attention": "sdpa"}, None, 18864, 369440, (19868, 26892, 31828), (240, 8800,
     17120, 18868, 19336, 21624, 23912, 26068, 0)),
    ("Nemotron with plain norms", (2, 7), {"precision": "fp32", "attention": "sdpa", "checkpointing": True}, None, 8292,
     1106112, (12096, 51656, 55876), (1344, 2688, 4032, 8296, 9032, 24968, 40904, 44356, 0)),
]  # fmt: skip


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: case[0])
def test_a_step_is_predicted_as_torch_counted_it(case):
    name, size, options, routing, kept, flops, peaks, borders = case
    config, named = dataclasses.replace(BASE, **LIKE[name]), {"batch": size[0], "sequence": size[1], **options}
    if routing is not None:
        named["expert_tokens"] = routing
    foreach = {"foreach": named.pop("foreach")} if "foreach" in named else {}
    assert predict.saved_activation_bytes(config, **named).total == kept
    assert predict.training_flops(config, **{n: value for n, value in named.items() if n != "precision"}).total == flops
    assert tuple(moment.live_bytes for moment in predict.step_timeline(config, **named)) == borders
    moments = predict.peak_moments(config, **named, **foreach)
    forward, step = moments.pop("forward"), moments.pop("optimizer step")
    assert (forward, max(moments.values()), step) == peaks


#: How a step runs, with operations of a repeated block once for all or one by one.
WAYS = [
    {"precision": "fp32", "attention": "eager"},
    {"precision": "autocast", "attention": "sdpa", "checkpointing": True, "allocated": True},
    {"precision": "bf16", "attention": "sdpa"},
    {"precision": "autocast", "attention": "eager", "layout": "fsdp=2", "allocated": True},
    {"precision": "fp32", "attention": "sdpa", "checkpointing": True, "layout": "fsdp=4", "accumulate": 2},
    {"precision": "bf16", "attention": "eager", "accumulate": 3, "allocated": True},
]


@pytest.mark.parametrize("number, name", enumerate(LIKE), ids=list(LIKE))
def test_blocks_that_are_walked_once_for_all_are_walked_one_by_one_alike(number, name):
    config, size = dataclasses.replace(BASE, **LIKE[name] | {"layers": 6}), {"batch": 2, "sequence": 7}
    for how in (WAYS[number % 6], WAYS[(number + 3) % 6]):
        once, each = (predict.peak_moments(config, **size, **how, unrolled=way) for way in (False, True))
        assert once == each
        once, each = (dict(predict.step_peak(config, **size, **how, unrolled=way)) for way in (False, True))
        assert once == each
        options = {n: value for n, value in how.items() if n != "accumulate"}
        once, each = (predict.step_timeline(config, **size, **options, unrolled=way) for way in (False, True))
        assert once == each
