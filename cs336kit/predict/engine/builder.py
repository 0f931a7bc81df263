"""The functions of torch that a decoder calls, each as operations: what it saves for backward and what its gradients need."""

from math import prod

from cs336kit.predict.engine.collectives import Ranks
from cs336kit.predict.engine.operations import Gradient, Op, Storage, Tensor
from cs336kit.predict.engine.writer import Writer, wider
from cs336kit.predict.precision import ELEMENT_BYTES

#: Both matrices of an adapter (rank × inputs, outputs × rank), or None.
Adapters = tuple[Tensor, Tensor] | None


class Builder(Writer):
    """Each method is one function of torch, or one module of `lm` written out."""

    @property
    def ranks(self) -> Ranks:
        """Writes the communication between ranks."""
        # Made at every use: stored here, it would be a reference cycle, and every program would wait for the garbage collector.
        return Ranks(self)

    def cast(self, place: str, x: Tensor, dtype: str, *, name: str = "") -> Tensor:
        """x.to(dtype): a copy, or x itself if it has this type."""
        return x if x.dtype == dtype else self.pointwise(place, "cast", x, dtype=dtype, name=name)

    def converted(self, place: str, x: Tensor, dtype: str, *, name: str = "") -> Tensor:
        """The same, and x is freed if there is a copy."""
        y = self.cast(place, x, dtype, name=name)
        if y is not x:
            self.free(x)
        return y

    def in_fp32(self, operation: str, place: str, x: Tensor, *, name: str = "") -> Tensor:
        """The input of this operation: x, or a copy in fp32 if the device's autocast runs the operation in fp32."""
        wide = self.policy.casts and operation in self.device.autocast_fp32
        return self.cast(f"{place}/fp32", x, "fp32", name=name) if wide else x

    def _cast_parameter(self, parameter: Tensor, name: str) -> Tensor:
        """Autocast's copy of a parameter, cached; a frozen parameter, or a view of one, is copied at every use."""
        known = self.cache.get(id(parameter))
        if known is not None:
            return known[0]
        dtype = self.policy.products
        copy = self.cast(f"cast {parameter.storage.name}", parameter, dtype, name=f"{dtype} {name}")
        if self.trained(parameter.storage.name):
            self.cache[id(parameter)] = (copy, self.count)
        return copy

    def linear(
        self,
        place: str,
        x: Tensor,
        outputs: int,
        *,
        component: str,
        bias: bool | Tensor = False,
        weight: Tensor | None = None,
        copies: str = "copies of weights",
        name: str = "",
        cast: str = "",
        adapters: Adapters = None,
    ) -> Tensor:
        """x Wᵀ + b; saves x and W. Under autocast, all three are cast first, parameters once.

        `adapters`: existing ones.
        """
        inputs = x.shape[-1]
        W = self.parameter(component, outputs, inputs) if weight is None else weight
        b = bias if isinstance(bias, Tensor) else self.parameter(component, outputs) if bias else None
        given, source, packed = x, x, None
        if self.packs(component, W.shape):
            packed, W = W, self.made(f"{place}/unpack", "unpack", W.shape, self.policy.products, of=(W,))
        copied: list[Tensor] = []
        if self.policy.casts:
            # In the order in which torch evaluates its arguments: the last one first.
            matrix, bias_parameter = W, b
            b = self._cast_parameter(b, "copies of biases") if b is not None else None
            W = self._cast_parameter(W, copies)
            # A tied head is as trained as its table.
            pairs = ((b, bias_parameter), (W, matrix))
            copied = [
                copy
                for copy, p in pairs
                if copy is not None and p is not None and p is not copy and not self.trained(p.storage.name)
            ]
            source = x = self.cast(f"{place}/cast", x, self.policy.products, name=cast or x.storage.name)
        y = self._linear(place, source, W, b, outputs, component, name)
        if packed is not None:
            self._unpacks_again(W)
        if self.policy.casts:
            self.free(x, unless=given)
            self.free(*copied)
        adapters = adapters or self.adapters(component, inputs, outputs)
        return y if adapters is None else self._adapted(place, given, y, adapters, name)

    def adapters(self, component: str, inputs: int, outputs: int) -> Adapters:
        """New adapters beside a matrix of this component, if it is a target."""
        if not self.lora_rank or component not in self.lora_targets:
            return None
        return self.parameter("adapters", self.lora_rank, inputs), self.parameter("adapters", outputs, self.lora_rank)

    def _unpacks_again(self, copy: Tensor) -> None:
        """The last product saves no copy of a quantized matrix: its backward pass dequantizes it again."""
        product = self.last
        if copy.storage in product.saves:
            product.saves = tuple([storage for storage in product.saves if storage is not copy.storage])
            product.workspace = (copy.bytes,)
        self.free(copy)

    def _adapted(self, place: str, x: Tensor, base: Tensor, adapters: tuple[Tensor, Tensor], name: str) -> Tensor:
        """y = base + (x Aᵀ) Bᵀ. Source: Hu et al. 2021, section 4.1."""
        A, B = adapters
        middle = self.linear(f"{place}/A", x, A.shape[-2], component="adapters", weight=A, name="adapters' middle")
        change = self.linear(f"{place}/B", middle, B.shape[-2], component="adapters", weight=B)
        self.free(middle)
        y = self.add(f"{place}/adapted", base, change, name=name)
        self.free(base, change)
        return y

    def _linear(
        self,
        place: str,
        x: Tensor,
        W: Tensor,
        b: Tensor | None,
        outputs: int,
        component: str,
        name: str,
    ) -> Tensor:
        size, flops = ELEMENT_BYTES[x.dtype], 2 * x.elements * outputs
        gradients = []
        # Torch's addmm takes the bias first, and so its gradient comes first: the incoming one itself, summed over the rows.
        if b is not None and b.needs_gradient:
            gradients.append(Gradient(b, None, (b.elements * size,)))
        if x.needs_gradient:
            gradients.append(Gradient(x, x.elements * size, (), flops))
        if W.needs_gradient:
            gradients.append(Gradient(W, W.elements * size, (), flops))
        saves: tuple[Storage, ...] = (W.storage,) if x.needs_gradient else ()
        if W.needs_gradient:
            saves += (x.storage,)
        inputs = (x, W) if b is None else (x, W, b)
        shape = (*x.shape[:-1], outputs)
        y = self._written(place, "linear", inputs, shape, x.dtype, name, tuple(gradients), saves)
        self.last.flops = ((component, flops),)
        return y

    def layer_norm(self, place: str, x: Tensor, *, component: str, shift: bool, name: str, kept_as: str) -> Tensor:
        """Torch's fused layer norm; saves its input, and mean and 1/deviation of each row. Without a component, it has no scale.

        If the device's autocast runs it in fp32, it saves a copy of x. With a wider scale, the statistics are as wide.
        """
        D, given = x.shape[-1], x
        scale = [self.parameter(component, D) for _ in range(1 + shift if component else 0)]
        x = self.in_fp32("layer_norm", place, x, name=kept_as)
        rows = x.elements // D
        kind = self.device.statistics.get(x.dtype, scale[0].dtype if scale else x.dtype)
        statistics = tuple([Storage(kept_as, ELEMENT_BYTES[kind] * rows) for _ in range(2)])
        y = self.with_statistics(place, "layer_norm", (x, *scale), x.shape, statistics, saves=(x, *scale), name=name)
        self.free(x, unless=given)
        return y

    def rms_norm(
        self, place: str, x: Tensor, *, component: str, name: str, kept_as: str, scale: tuple[int, ...]
    ) -> Tensor:
        """RMSNorm written out in fp32, as in `lm.RMSNorm`: its seven operations, six if `scale` is empty."""
        rows = x.shape[:-1]
        wide = self.cast(f"{place}/fp32", x, "fp32", name=kept_as)
        square = self.power(f"{place}/square", "square", wide, saves="input")
        mean = self.computed(f"{place}/mean", "mean", (square,), (*rows, 1))
        self.free(square)
        shifted = self.passed(f"{place}/add eps", "add", (mean,), mean.shape)
        self.free(mean)
        inverse = self.power(f"{place}/rsqrt", "rsqrt", shifted, saves="output", name=kept_as)
        self.free(shifted)
        normed = self.mul(f"{place}/normalize", wide, inverse, name=kept_as)
        self.free(inverse)
        scaled = normed
        if scale:
            scaled = self.mul(f"{place}/scale", normed, self.parameter(component, *scale), name=name)
        result = self.converted(f"{place}/cast", scaled, x.dtype, name=name)
        if scaled is not normed:
            self.free(normed)
        if wide is not x:
            self.free(wide)
        return result

    def power(self, place: str, kind: str, x: Tensor, *, saves: str, name: str = "") -> Tensor:
        """A power of x, whose backward pass, grad · (exponent · self.pow(exponent − 1)), has two more temporary tensors."""
        y = self.pointwise(place, kind, x, saves=saves, name=name)
        self.last.workspace = (x.bytes, x.bytes)
        return y

    def norm(
        self, place: str, x: Tensor, *, kind: str, component: str, scale: tuple[int, ...], shift: bool, name: str, kept_as: str
    ) -> Tensor:  # fmt: skip
        """A norm over the last axis, "layernorm" or "rmsnorm", with parameters of shape `scale` (empty: none).

        Wherever it is, its operations count as part of the norms.
        """
        with self.within("", part="norms"):
            if kind == "rmsnorm":
                return self.rms_norm(place, x, component=component, scale=scale, name=name, kept_as=kept_as)
            if len(scale) == 1:
                return self.layer_norm(place, x, component=component, shift=shift, name=name, kept_as=kept_as)
            # Torch's layer norm has one scale for all rows; a different scale is a product of its own.
            normed = self.layer_norm(place, x, component="", shift=False, name=name, kept_as=kept_as)
            for parameter in [self.parameter(component, *scale) for _ in range((1 + shift) if scale else 0)]:
                scaled = self.mul(f"{place}/scale", normed, parameter, name=name)
                self.free(normed)
                normed = scaled
            return normed

    def softcap(self, place: str, x: Tensor, *, name: str) -> Tensor:
        """cap · tanh(x / cap), which saves the tanh; x is freed at its end."""
        divided = self.pointwise(f"{place}/div", "div", x)
        tanh = self.pointwise(f"{place}/tanh", "tanh", divided, saves="output", name=name)
        self.free(divided)
        capped = self.pointwise(f"{place}/mul", "mul", tanh)
        self.free(tanh, x)
        return capped

    def rotate(self, straight: Tensor, halves: tuple[Tensor, ...], sine: Tensor, *, name: str) -> Tensor:
        """x · cosine, which is given and freed, + (−second half, first half) · sine."""
        negative = self.pointwise("negate", "neg", halves[1])
        turned = self.cat("exchange", negative, halves[0], straight.shape)
        self.free(negative)
        crossed = self.mul("sine", turned, sine)
        self.free(turned)
        result = self.add("sum", straight, crossed, name=name)
        self.free(straight, crossed)
        return result

    def scaled(self, place: str, x: Tensor, factor: float) -> Tensor:
        """x times a number, which saves nothing; x itself if the number is 1."""
        if factor == 1:
            return x
        y = self.pointwise(place, "mul", x, name=x.storage.name)
        self.free(x)
        return y

    def part_of(self, place: str, x: Tensor, width: int) -> Tensor:
        """A part of the last axis as a view; its gradient is written into zeros of x's size."""
        return self.views(place, "slice", x, (*x.shape[:-1], width))[0]

    def add(self, place: str, x: Tensor, y: Tensor, *, name: str = "", over: bool = False) -> Tensor:
        """x + y, in the wider of both types; both get the same gradient. `over`: torch writes it over x."""
        shape = x.shape if x.elements >= y.elements else y.shape
        total = self.passed(place, "add", (x, y), shape, dtype=wider(x, y), name=name)
        if over:
            self.last.over = x.storage
        return total

    def chunk(self, place: str, x: Tensor) -> tuple[Tensor, ...]:
        """The two halves of the last axis."""
        half = (*x.shape[:-1], x.shape[-1] // 2)
        return self.views(place, "chunk", x, half, half)

    def views(self, place: str, kind: str, x: Tensor, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Parts of x as views; their gradients are joined in one new tensor."""
        parts = tuple([Tensor(shape, x.dtype, x.storage, x.needs_gradient, object()) for shape in shapes])
        gradients = (Gradient(x, x.bytes),) if x.needs_gradient else ()
        self.items.append(Op(self.prefix + place, kind, (x,), parts, (), (), gradients, self.part))
        return parts

    def cat(self, place: str, x: Tensor, y: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Two tensors concatenated, y for all heads if it has one; each gets its part of the gradient as a view, y's summed."""
        summed = (y.bytes,) if x.elements + y.elements != prod(shape) else ()
        gradients = tuple([Gradient(t, None, then) for t, then in ((x, ()), (y, summed)) if t.needs_gradient])
        return self._written(place, "cat", (x, y), shape, x.dtype, "", gradients, ())

    def mul(self, place: str, x: Tensor, y: Tensor, *, name: str = "") -> Tensor:
        """x · y; saves each factor that the other's gradient needs."""
        return self.combined(place, "mul", x, y, saves=_factors(x, y), name=name)

    def dropout(self, place: str, x: Tensor, probability: float, *, mask: str, name: str = "") -> Tensor:
        """F.dropout: a mask as wide as x and then a product, or one kernel that computes both, with the device's mask."""
        if not probability or not self.train:
            return x
        if self.device.dropout_mask:
            kept = Storage(mask, x.elements * ELEMENT_BYTES[self.device.dropout_mask])
            y = self.with_statistics(place, "dropout", (x,), x.shape, (kept,), name=name)
            self.free(x)
            return y
        noise = self.made(f"{place}/mask", "bernoulli", x.shape, x.dtype, name=mask)
        y = self.computed(place, "dropout", (x,), x.shape, saves=(noise,), name=name)
        self.free(x, noise)
        return y

    def softmax(self, place: str, x: Tensor, *, name: str, safe: bool = False) -> Tensor:
        """torch.softmax, which saves its output. If a device's autocast runs it in fp32, a copy of x is made.

        `safe`: rows in which everything is masked become zeros. They are looked for, which autograd does not record.
        """
        dtype, given = x.dtype, x
        if self.policy.casts and "softmax" in self.device.autocast_fp32:
            dtype = "fp32"
            if not (x.dtype == "fp16" and "softmax" in self.device.widening):
                x = self.cast(f"{place}/fp32", x, dtype)
        y = self.softmax_in(dtype, place, x, name=name, safe=safe)
        self.free(x, unless=given)
        return y

    def softmax_in(self, dtype: str, place: str, x: Tensor, *, name: str, safe: bool = False) -> Tensor:
        """The kernel of a softmax whose result has this type. On some devices, its backward pass makes grad · output first."""
        y = self.pointwise(place, "softmax", x, dtype=dtype, saves="output", name=name)
        if self.device.softmax_product:
            self.last.workspace = (y.bytes,)
        if safe:  # whether each score is −inf, whether all of a row are, and a zero
            self.last.forward_workspace = (x.elements, x.elements // x.shape[-1], 4)
        return y

    def merge_heads(self, z: Tensor) -> Tensor:
        """(B, A, S, h) to (B, S, A·h) for the output matrix: z is copied and freed, unless it has one head or position."""
        (B, A, S, h), name = z.shape, "attention output's input"
        if A == 1 or S == 1:
            z.storage.name = name
            return self.view(z, B, S, A * h)
        merged = self.copy("merge heads", z, (B, S, A * h), name=name)
        self.free(z)
        return merged

    def copy(self, place: str, x: Tensor, shape: tuple[int, ...], *, name: str = "") -> Tensor:
        """A reshape that cannot be a view: a copy, whose gradient is passed on as it is."""
        return self.passed(place, "copy", (x,), shape, name=name)

    def matmul(self, place: str, x: Tensor, y: Tensor, shape: tuple[int, ...], flops: int, *, component: str) -> Tensor:
        """A batched product x @ y; saves each factor that the other's gradient needs."""
        return self.product(place, "matmul", (x, y), shape, flops, component=component, saves=_factors(x, y))

    def embedding(self, place: str, table: Tensor, tokens: Tensor, shape: tuple[int, ...], *, name: str = "") -> Tensor:
        """Rows of a table; its gradient is a table of zeros with the rows' gradients added.

        It saves the tokens, which the caller holds anyway.
        """
        y = self.computed(place, "embedding", (table, tokens), shape, name=name)
        if self.device.embedding:
            self.last.workspace = self.device.embedding(tokens.elements, table.shape[0], table.shape[1])
        if self.layout.tp > 1:  # which of the tokens are in this rank's part of the table
            self.last.workspace += (tokens.bytes,)
        return y

    def index(self, place: str, x: Tensor, rows: Tensor, shape: tuple[int, ...], *, name: str) -> Tensor:
        """Chosen rows of x; saves the indices. Its gradient is written into zeros of x's size."""
        y = self.computed(place, "index", (x, rows), shape, saves=(rows,), name=name)
        self.last.dispatch_workspace = x.bytes
        return y

    def index_add(self, place: str, x: Tensor, rows: Tensor, source: Tensor) -> Tensor:
        """x[rows] += source in place; saves indices and source. x's gradient is passed on, source's is taken from its rows."""
        gradients = [Gradient(x, None)] if x.needs_gradient else []
        if source.needs_gradient:
            gradients.append(Gradient(source, source.bytes))
        saves = (rows.storage, source.storage) if gradients else ()
        return self._written(
            place, "index_add", (x, rows, source), x.shape, x.dtype, "", tuple(gradients), saves, over=x
        )


def _factors(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """The factors of a product that the other's gradient needs."""
    if x.needs_gradient:
        return (x, y) if y.needs_gradient else (y,)
    return (x,) if y.needs_gradient else ()
