"""Exercises of lesson 08: how large weights are at initialization, and what follows."""

import math

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def output_std(fan_in, input_std, weight_std):
    return math.sqrt(fan_in) * input_std * weight_std


def he_std(shape, activation):
    fan_in = math.prod(shape[1:])
    return math.sqrt((2 if activation == "relu" else 1) / fan_in)


def fraction_outside(std, bound):
    return math.erfc(bound / (std * math.sqrt(2)))


def first_overflow(width, largest, relu):
    factor = math.sqrt(width / 2 if relu else width)
    layer, rms = 0, 1.0
    while rms <= largest:
        layer, rms = layer + 1, rms * factor
    return layer


def _one_layer_late(width, largest, relu):
    return first_overflow(width, largest, relu) + 1


def decoder_stds(shapes, layers):
    stds = {}
    for name, (_, fan_in) in shapes.items():
        if name == "embedding":
            stds[name] = 0.02
        elif name in ("attention out", "mlp down"):
            stds[name] = 1 / math.sqrt(fan_in) / math.sqrt(2 * layers)
        else:
            stds[name] = 1 / math.sqrt(fan_in)
    return stds


def _decoder(scale, fan=1, all_scaled=False, embedding=0.02):
    """A wrong `decoder_stds`: another factor for the residual matrices, another fan, or another embedding."""

    def stds(shapes, layers):
        factors = {name: all_scaled or name in ("attention out", "mlp down") for name in shapes}
        wrong = {n: (scale(layers) if factors[n] else 1) / math.sqrt(shapes[n][fan]) for n in shapes}
        return wrong | {"embedding": wrong["embedding"] if embedding is None else embedding}

    return stds


def _gpt2(shapes, layers):
    residual = {name: 0.02 / math.sqrt(2 * layers) for name in ("attention out", "mlp down")}
    return decoder_stds(shapes, layers) | residual


def _decoder_cases():
    for layers, d in ((12, 768), (2, 64), (96, 12288)):
        shapes = {
            "embedding": (1000, d),
            "query": (d, d),
            "attention out": (d, d),
            "mlp up": (4 * d, d),
            "mlp down": (d, 4 * d),
        }
        yield Case(args=(shapes, layers), label=f"{layers} layers of width {d}")
    shapes = {"mlp down": (64, 172), "mlp up": (172, 64), "attention out": (64, 32), "query": (32, 64)}
    shapes["embedding"] = (1000, 64)
    yield Case(args=(shapes, 3), label="3 layers of width 64, d_ff 172, query width 32, in another order")


EXERCISES = (
    Exercise(
        id="08.1",
        reference=output_std,
        cases=lambda: [
            Case(args=(256, 1.0, 1.0)),
            Case(args=(16384, 1.0, 1.0)),
            Case(args=(100, 2.0, 0.1)),
            Case(args=(3, 0.5, 4.0)),
        ],
        mistakes=(
            Mistake(
                lambda n, x, w: n * x * w,
                "Variances add up over the fan_in terms, standard deviations do not: {given} lacks a root.",
            ),
            Mistake(
                lambda n, x, w: n * x**2 * w**2,
                "That is the variance of an output; its standard deviation is the root of {given}.",
            ),
            Mistake(
                lambda n, x, w: x * w,
                "You returned the size of one product, and each output is a sum of fan_in of them: {given} is too small.",
            ),
            Mistake(
                lambda n, x, w: x * w / math.sqrt(n),
                "You divided by √fan_in; a sum of fan_in terms is larger than one of them. Dividing is the weights' cure.",
            ),
            Mistake(
                lambda n, x, w: math.sqrt(n) * (x + w),
                "Factors that are independent multiply their variances, they do not add them: look at {case} again.",
            ),
        ),
        hints=(
            "An output is a sum of fan_in products. What is the variance of one product?",
            "The products are uncorrelated, so their variances add: fan_in · input_std² · weight_std².",
            "The answer is the square root of that: math.sqrt(fan_in) · ____ · ____.",
        ),
        checked="widths 3 to 16,384, and inputs and weights that are not 1.",
    ),
    Exercise(
        id="08.2",
        reference=he_std,
        cases=lambda: [
            Case(args=((100, 400), "linear"), label="a (100, 400) weight before nothing"),
            Case(args=((400, 100), "relu"), label="a (400, 100) weight before ReLU"),
            Case(args=((64, 3, 5, 5), "relu"), label="a (64, 3, 5, 5) convolution before ReLU"),
            Case(args=((7, 7), "linear")),
        ],
        mistakes=(
            Mistake(
                lambda s, a: math.sqrt((2 if a == "relu" else 1) / (s[0] * math.prod(s[2:]))),
                "You used fan_out, the first dimension of torch's layout (fan_out, fan_in): it keeps the gradient's size, "
                "not the activation's. For {case} {expected} is right.",
            ),
            Mistake(
                lambda s, a: (2 if a == "relu" else 1) / math.prod(s[1:]),
                "That is the variance; initializers take the standard deviation, its root: {expected} for {case}.",
            ),
            Mistake(
                lambda s, a: math.sqrt(1 / math.prod(s[1:])),
                "ReLU sets half of the values to 0 and with them half of E[x²]: double the variance before a ReLU.",
            ),
            Mistake(
                lambda s, a: math.sqrt(2 / (math.prod(s[1:]) + s[0] * math.prod(s[2:]))),
                "That is Xavier's 2/(fan_in + fan_out), equal to 1/fan_in only for square matrices.",
            ),
            Mistake(
                lambda s, a: math.sqrt(2 / math.prod(s[1:])),
                "You doubled the variance without a ReLU behind it; {case} needs the plain {expected}.",
            ),
            Mistake(
                lambda s, a: math.sqrt(2 if a == "relu" else 1) / math.prod(s[1:]),
                "The root belongs to fan_in as well as to the 2: {expected} for {case}.",
            ),
            Mistake(
                lambda s, a: math.sqrt((2 if a == "relu" else 1) / s[-1]),
                "The last dimension is fan_in only for a matrix. A convolution's output sums over its kernel and its "
                "input channels: take the product of all but the first dimension.",
            ),
            Mistake(
                lambda s, a: math.sqrt((2 if a == "relu" else 1) / s[1]),
                "A convolution's output sums over its kernel too: fan_in of {case} is the product of all but the first.",
            ),
        ),
        hints=(
            "Which number of terms does each output sum, and where does it stand in the shape?",
            "torch's weights are (fan_out, fan_in, *kernel); fan_in is the product of everything after the first.",
            "math.sqrt(g / fan_in), with g = ____ before a ReLU and 1 otherwise.",
        ),
        checked="wide, tall and square matrices and a convolution, with and without ReLU.",
    ),
    Exercise(
        id="08.3",
        reference=fraction_outside,
        cases=lambda: [
            Case(args=(0.02, 0.06)),
            Case(args=(0.02, 2.0)),
            Case(args=(1.0, 2.0)),
            Case(args=(0.5, 0.25)),
            Case(args=(3.0, 2.0)),
        ],
        mistakes=(
            Mistake(
                lambda s, b: math.erfc(b / math.sqrt(2)),
                "You read the bound as a number of standard deviations. trunc_normal_ takes values: divide by std first.",
            ),
            Mistake(
                lambda s, b: math.erfc(b / (s * math.sqrt(2))) / 2,
                "That is one tail, and both are cut: {given} has to be doubled.",
            ),
            Mistake(
                lambda s, b: math.erf(b / (s * math.sqrt(2))),
                "That is the part that is kept; the part that is cut is 1 minus {given}.",
            ),
            Mistake(
                lambda s, b: math.erfc(b / (s**2 * math.sqrt(2))),
                "You divided the bound by the variance: std is a standard deviation already, do not square it.",
            ),
            Mistake(
                lambda s, b: math.erfc(b / s),
                "erf belongs to a normal of variance ½: its argument is the number of standard deviations over √2.",
            ),
        ),
        hints=(
            "How many standard deviations is the bound away?",
            "The part of a normal within ±z standard deviations is erf(z/√2).",
            "math.erfc is 1 − erf: math.erfc(____ / math.sqrt(2)).",
        ),
        checked="bounds of 3, 100, 2, 0.5 and ⅔ standard deviations.",
    ),
    Exercise(
        id="08.4",
        reference=first_overflow,
        cases=lambda: [
            Case(args=(256, 3.4e38, False), label="width 256, fp32, linear"),
            Case(args=(256, 65504.0, False), label="width 256, fp16, linear"),
            Case(args=(512, 65504.0, True), label="width 512, fp16, ReLU"),
            Case(args=(128, 3.4e38, True), label="width 128, fp32, ReLU"),
            Case(args=(4096, 448.0, True), label="width 4096, E4M3, ReLU"),
            Case(args=(4, 16.0, False), label="width 4 and a limit of exactly 16, linear"),
        ],
        mistakes=(
            Mistake(
                lambda w, m, r: first_overflow(w * w // 2 if r else w * w, m, r),
                "You let the size grow by the whole factor of the variance; a typical value grows by its root. "
                "For {case} it takes {expected} layers, not {given}.",
            ),
            Mistake(
                lambda w, m, r: first_overflow(w, m, False),
                "You forgot that ReLU halves E[x²] in every layer: each grows by √(width/2) only. Look at {case}.",
            ),
            Mistake(
                lambda w, m, r: first_overflow(w, m, r) - 1,
                "Layer {given} is the last one that still fits; the question is for the one after it.",
            ),
            Mistake(
                lambda w, m, r: math.log(m) / math.log(math.sqrt(w / 2 if r else w)),
                "A layer has a whole number: the first layer above the limit is {expected}, just after {given}.",
            ),
            Mistake(
                lambda w, m, r: math.ceil(round(math.log(m) / math.log(math.sqrt(w / 2 if r else w)), 9)),
                "{case}: layer {given} reaches the limit exactly and is not above it; the next one is.",
            ),
            Mistake(_one_layer_late, "One too many: layer {expected} is already over the limit. Count the input as 0."),
        ),
        hints=(
            "By what factor does a typical value grow in one layer of N(0, 1) weights?",
            "E[x²] grows by width (by width/2 before a ReLU), the root mean square by its root. Multiply until too large.",
            "Start with rms = 1.0 at layer 0; while rms <= largest: count a layer and multiply by ____.",
        ),
        checked="fp32, fp16 and E4M3, linear and ReLU nets of width 128 to 4,096, and a limit that is met exactly.",
    ),
    Exercise(
        id="08.5",
        reference=decoder_stds,
        cases=_decoder_cases,
        mistakes=(
            Mistake(
                _gpt2,
                "You took GPT-2's own 0.02/√(2·layers); only its factor is asked for, on top of each 1/√fan_in.",
            ),
            Mistake(
                _decoder(lambda layers: 1 / math.sqrt(layers)),
                "Each block writes into the residual stream twice, after attention and after the MLP: √(2·layers).",
            ),
            Mistake(
                _decoder(lambda layers: 1 / (2 * layers)),
                "You divided the standard deviation by 2·layers; the variance is what adds up, so divide by its root.",
            ),
            Mistake(
                _decoder(lambda layers: 1),
                "The two matrices that write into the residual stream need their 1/√(2·layers), or it grows with depth.",
            ),
            Mistake(
                _decoder(lambda layers: 1 / math.sqrt(2 * layers), all_scaled=True),
                "You scaled every matrix; query and MLP up read the stream through a norm and need their full 1/√fan_in.",
            ),
            Mistake(
                _decoder(lambda layers: 1 / math.sqrt(2 * layers), fan=0),
                "You used the first dimension, fan_out; each output sums over fan_in, the second.",
            ),
            Mistake(
                _decoder(lambda layers: 1 / math.sqrt(2 * layers), embedding=None),
                "An embedding is looked up, not multiplied: it has no fan_in, and 0.02 is asked for.",
            ),
        ),
        hints=(
            "Which two of the matrices write into the residual stream, and how often in the whole model?",
            "1/√fan_in for all matrices; the two writers divide by √(2·layers) as well; the embedding gets 0.02.",
            "Loop over shapes.items(); shape[1] is fan_in; name in ('attention out', 'mlp down') gets the factor ____.",
        ),
        checked="2, 3, 12 and 96 layers; all five tensors of each, in two orders.",
    ),
)
