"""Exercises of lesson 10: how large weights are at initialization, and what follows."""

import math

from cs336kit.teach.exercises.core import exercise


@exercise(
    "10.1",
    cases=[(256, 1.0, 1.0), (16384, 1.0, 1.0), (100, 2.0, 0.1), (3, 0.5, 4.0)],
    mistakes={
        "right * math.sqrt(fan_in)": "variances add up over the fan_in terms, standard deviations do not: a root is missing.",
        "right**2": "that is the variance of an output; its standard deviation is the root.",
        "input_std * weight_std": "that is the size of one product, and each output is a sum of fan_in of them.",
        "right / fan_in": "you divided by √fan_in; a sum is larger than one of its terms. Dividing is the weights' cure.",
        "math.sqrt(fan_in) * (input_std + weight_std)": "independent factors multiply their variances, they do not add them.",
    },
    hints=(
        "An output is a sum of fan_in products. What is the variance of one product?",
        "The products are uncorrelated, so their variances add: fan_in · input_std² · weight_std².",
        "The answer is the square root of that: math.sqrt(fan_in) · ____ · ____.",
    ),
    checked="widths 3 to 16,384, and inputs and weights that are not 1.",
)
def output_std(fan_in, input_std, weight_std):
    return math.sqrt(fan_in) * input_std * weight_std


@exercise(
    "10.2",
    cases={
        "a (100, 400) weight before nothing": ((100, 400), "linear"),
        "a (300, 100) weight before ReLU": ((300, 100), "relu"),
        "a (64, 3, 5, 5) convolution before ReLU": ((64, 3, 5, 5), "relu"),
        "a (7, 7) weight before nothing": ((7, 7), "linear"),
    },
    mistakes={
        "right * math.sqrt(shape[1] / shape[0])": "you used fan_out, the first dimension of torch's layout (fan_out, fan_in).",
        "right**2": "that is the variance; initializers take the standard deviation, its root.",
        "right_if(activation='linear')": "ReLU halves E[x²]: double the variance before a ReLU.",
        "right / 2 if activation == 'relu' else right": "ReLU halves E[x²] by itself: double the variance, do not halve it.",
        "right * (math.sqrt(2) if activation == 'relu' else 1)": "a gain of 2 belongs to the variance; here it is √2.",
        "right_if(shape=shape[:2])": "a convolution's output sums over its kernel too: take all dimensions but the first.",
    },
    hints=(
        "Which number of terms does each output sum, and where does it stand in the shape?",
        "torch's weights are (fan_out, fan_in, *kernel); fan_in is the product of everything after the first.",
        "math.sqrt(g / fan_in), with g = ____ before a ReLU and 1 otherwise.",
    ),
    checked="wide, tall and square matrices and a convolution, with and without ReLU.",
)
def he_std(shape, activation):
    return math.sqrt((2 if activation == "relu" else 1) / math.prod(shape[1:]))


@exercise(
    "10.3",
    cases=[(0.02, 0.06), (0.02, 2.0), (1.0, 2.0), (0.5, 0.25), (3.0, 2.0)],
    mistakes={
        "right_if(std=1)": "the bound of trunc_normal_ is a value, not a number of standard deviations: divide by std.",
        "right / 2": "that is one tail, and both are cut.",
        "1 - right": "that is the part that is kept, not the part that is cut.",
        "right_if(std=std**2)": "you divided the bound by the variance: std is a standard deviation already.",
        "math.erfc(bound / std)": "erf belongs to a normal of variance ½: divide the number of deviations by √2.",
    },
    hints=(
        "How many standard deviations is the bound away?",
        "The part of a normal within ±z standard deviations is erf(z/√2).",
        "math.erfc is 1 − erf: math.erfc(____ / math.sqrt(2)).",
    ),
    checked="bounds of 3, 100, 2, 0.5 and ⅔ standard deviations.",
)
def fraction_outside(std, bound):
    return math.erfc(bound / (std * math.sqrt(2)))


@exercise(
    "10.4",
    cases={
        "width 256, fp32, linear": (256, 3.4e38, False),
        "width 256, fp16, linear": (256, 65504.0, False),
        "width 512, fp16, ReLU": (512, 65504.0, True),
        "width 128, fp32, ReLU": (128, 3.4e38, True),
        "width 4096, E4M3, ReLU": (4096, 448.0, True),
        "width 4 and a limit of exactly 16, linear": (4, 16.0, False),
        "width 16 and a limit below 1, linear": (16, 0.5, False),
    },
    mistakes={
        "first_overflow(width, largest, relu, root=False)": "you let the size grow by the factor of the variance, not its root.",
        "right_if(relu=False)": "ReLU halves E[x²] in every layer: each grows by √(width/2) only.",
        "right_if(width=width / 2)": "you halve twice, or E[x²] where no ReLU is: linear layers grow by √width.",
        "right and right - 1": "that layer still fits; the question is for the one after it.",
        "right + 1": "one too many: the layer before is already over the limit. Count the input as 0.",
        "right_if(largest=largest * (1 - 1e-12))": "it reaches the limit exactly and is not above it; the next one is.",
    },
    hints=(
        "By what factor does a typical value grow in one layer of N(0, 1) weights?",
        "E[x²] grows by width (by width/2 before a ReLU), the root mean square by its root. Multiply until too large.",
        "Start with rms = 1.0 at layer 0; while rms <= largest: count a layer and multiply by ____.",
    ),
    checked="fp32, fp16 and E4M3, linear and ReLU nets of width 128 to 4,096, and a limit that is met exactly.",
)
def first_overflow(width, largest, relu, *, root=True):
    factor = width / 2 if relu else width
    layer, rms = 0, 1.0
    while rms <= largest:
        layer, rms = layer + 1, rms * (math.sqrt(factor) if root else factor)
    return layer


def _tensors(d, d_ff, inner, vocab=1000):
    return {
        "mlp down": (d, d_ff),
        "mlp up": (d_ff, d),
        "attention out": (d, inner),
        "query": (inner, d),
        "embedding": (vocab, d),
    }


@exercise(
    "10.5",
    cases={
        "12 layers of width 768": (_tensors(768, 3072, 768), 12),
        "2 layers of width 64": (_tensors(64, 256, 64), 2),
        "96 layers of width 12288": (_tensors(12288, 49152, 12288), 96),
        "3 layers of width 64, d_ff 172, query width 32": (dict(reversed(_tensors(64, 172, 32).items())), 3),
    },
    mistakes={
        "decoder_stds(shapes, layers, writers=1)": "each block writes twice into the residual stream: √(2·layers), not √layers.",
        "decoder_stds(shapes, layers, writers=4 * layers)": "the variance is what adds up: divide the standard "
        "deviation by the root of 2·layers.",
        "decoder_stds(shapes, layers, writers=0)": "the two matrices that write into the residual stream need 1/√(2·layers).",
        "dict.fromkeys(shapes, 0.02)": "0.02 is the embedding's; a matrix has 1/√fan_in.",
        "right_if(shapes={name: shape[::-1] for name, shape in shapes.items()})": "you used fan_out; an output sums over fan_in.",
        "right | {'embedding': 1 / math.sqrt(shapes['embedding'][1])}": "an embedding is looked up, not multiplied: 0.02.",
    },
    hints=(
        "Which two of the matrices write into the residual stream, and how often in the whole model?",
        "1/√fan_in for all matrices; the two writers divide by √(2·layers) as well; the embedding gets 0.02.",
        "Loop over shapes.items(); shape[1] is fan_in; name in ('attention out', 'mlp down') gets the factor ____.",
    ),
    checked="2, 3, 12 and 96 layers; all five tensors of each, in two orders.",
)
def decoder_stds(shapes, layers, *, writers=2):
    stds = {name: 1 / math.sqrt(fan_in) for name, (_, fan_in) in shapes.items()}
    scaled = {name: stds[name] / math.sqrt(writers * layers) for name in _WRITERS if writers}
    return {**stds, **scaled, "embedding": 0.02}


_WRITERS = ("attention out", "mlp down")
