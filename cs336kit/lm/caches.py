"""KV caches for generation, in five kinds.

All give attention the keys and values of the same tokens. They differ in what they store, copy, and reserve.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cs336kit.lm._shapes import Float, Shaped
from cs336kit.predict import TransformerConfig
from cs336kit.predict.checks import known, positive_int


def _copy(x: Tensor) -> Tensor:
    # Not x.contiguous(), which is x itself where batch and heads are 1.
    return x.clone(memory_format=torch.contiguous_format)


def _refuse_gradients(keys: Tensor, values: Tensor) -> None:
    """A write into existing tensors, or rounding, would silently drop the gradient."""
    if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
        raise ValueError(
            "keys and values have no gradient in a cache that writes them into its own tensors or rounds them: use "
            "torch.no_grad(), or a cache of kind='growing'."
        )


class LayerCache:
    """The keys and values of one layer for the tokens seen so far, (B, K, T, h) each: T grows with every call.

    Each call makes new tensors for all tokens; with a sliding window only the last `window` positions are kept. Latent
    attention stores its latents (B, T, latent) as keys and the rotated part of its keys (B, 1, T, rotary) as values.
    """

    def __init__(self, *, window: int | None = None):
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.window = window

    def extend(
        self, keys: Shaped[Tensor, "... new h"], values: Shaped[Tensor, "... new w"]
    ) -> tuple[Shaped[Tensor, "... T h"], Shaped[Tensor, "... T w"]]:
        """Append the new positions (of any dtype, also codes); return every position that their queries may attend to."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys, keys], dim=-2)
            values = torch.cat([self.values, values], dim=-2)
        dropped = 0 if self.window is None else max(0, keys.shape[-2] - self.window)
        # Where positions are dropped, copy the rest: a view would keep the storage of all of them alive.
        self.keys, self.values = (_copy(t[..., dropped:, :]) if dropped else t for t in (keys, values))
        return keys, values

    def tensors(self) -> list[Tensor]:
        """The tensors that hold the cache; none before the first tokens."""
        return [tensor for tensor in (self.keys, self.values) if tensor is not None]

    def shorten(self, tokens: int) -> None:
        """Keep the first `tokens` positions only."""
        if self.keys is not None and self.values is not None:
            # Copies, as in extend: a view would keep the whole storage alive.
            self.keys, self.values = (_copy(t[..., :tokens, :]) for t in (self.keys, self.values))


class ContiguousCache(LayerCache):
    """A cache whose tensors are allocated once, for `room` tokens: each call writes only the new positions.

    With a sliding window it is a ring buffer as long as the window, in which a new token overwrites the oldest. A single
    query attends to all of them, so their order in the ring does not matter. With less room than the window it is not a
    ring: tokens beyond the room raise ValueError, as without a window. Gradients do not flow through it.
    """

    def __init__(self, *, room: int, window: int | None = None):
        super().__init__(window=window)
        self.room = room if window is None else min(window, room)
        self.seen = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        _refuse_gradients(keys, values)
        if self.keys is None or self.values is None:
            self.keys, self.values = (x.new_empty(*x.shape[:-2], self.room, x.shape[-1]) for x in (keys, values))
        new, seen = keys.shape[-2], self.seen
        if seen + new > self.room and (self.window is None or self.room < self.window):
            raise ValueError(
                f"the cache has room for {self.room} tokens and holds {seen}: {new} more do not fit; make it with "
                f"tokens={seen + new}."
            )
        self.seen += new
        pairs = (self.keys, keys), (self.values, values)
        if seen + new <= self.room or new == 1:
            first, second = (self._written(held, x, seen) for held, x in pairs)
            return first, second
        # Several tokens that do not fit beside the past: return the ring in order, then the new ones; store the last.
        past = torch.arange(max(0, seen - self.room), seen, device=keys.device) % self.room
        first, second = (torch.cat([held[..., past, :], x], dim=-2) if seen else x for held, x in pairs)
        last = torch.arange(self.seen - min(new, self.room), self.seen, device=keys.device) % self.room
        for held, x in pairs:
            held[..., last, :] = x[..., -len(last) :, :].detach()
        return first, second

    def _written(self, held: Tensor, x: Tensor, seen: int) -> Tensor:
        start = seen % self.room
        held[..., start : start + x.shape[-2], :] = x.detach()
        return held[..., : min(self.seen, self.room), :]

    def shorten(self, tokens: int) -> None:
        self.seen = min(self.seen, tokens)


class PagedCache(LayerCache):
    """A cache in pages of `page` tokens, which a sequence takes one by one: `table[sequence]` lists the numbers of its pages.

    Only the last page of a sequence has unused room. Attention here reads a gathered copy of the pages; a server uses a
    kernel that follows the table. Gradients do not flow through it. Source: Kwon et al. 2023, section 4.
    """

    def __init__(self, *, page: int, window: int | None = None):
        if window is not None:
            raise ValueError(
                f"a paged cache with a sliding window of {window} tokens is not supported: use kind='contiguous', a ring."
            )
        super().__init__()
        self.page = positive_int("page", page)
        #: keys and values of each page, in the order in which pages were taken
        self.pages: list[tuple[Tensor, Tensor]] = []
        self.table: list[list[int]] = []
        self.seen = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        _refuse_gradients(keys, values)
        if not self.table:
            self.table = [[] for _ in range(keys.shape[0])]
        start, self.seen = self.seen, self.seen + keys.shape[-2]
        for sequence, numbers in enumerate(self.table):
            position = start
            while position < self.seen:
                block, place = divmod(position, self.page)
                if block == len(numbers):
                    numbers.append(self._taken(keys[sequence], values[sequence]))
                count, first = min(self.page - place, self.seen - position), position - start
                for held, x in zip(self.pages[numbers[block]], (keys, values), strict=True):
                    held[..., place : place + count, :] = x[sequence, ..., first : first + count, :].detach()
                position += count
        return self._gathered(0), self._gathered(1)

    def _taken(self, *like: Tensor) -> int:
        first, second = (x.new_zeros(*x.shape[:-2], self.page, x.shape[-1]) for x in like)
        self.pages.append((first, second))
        return len(self.pages) - 1

    def _gathered(self, part: int) -> Tensor:
        rows = [torch.cat([self.pages[n][part] for n in numbers], dim=-2) for numbers in self.table]
        return torch.stack(rows)[..., : self.seen, :]

    def tensors(self) -> list[Tensor]:
        return [tensor for pair in self.pages for tensor in pair]

    def shorten(self, tokens: int) -> None:
        self.seen = min(self.seen, tokens)
        kept = -(-self.seen // self.page)
        numbers = sorted(n for row in self.table for n in row[:kept])
        moved = {old: new for new, old in enumerate(numbers)}
        self.pages = [self.pages[n] for n in numbers]
        self.table = [[moved[n] for n in row[:kept]] for row in self.table]


def to_codes(x: Float[Tensor, "... h"], *, bits: int) -> tuple[Tensor, Float[Tensor, "... 1"]]:
    """Quantize each row to integers of 8 or 4 bits and one scale, so that codes · scale ≈ x.

    The scale maps a row's largest magnitude to 127 or 7. Codes of 4 bits are packed, two in a byte.
    """
    largest = 2 ** (bits - 1) - 1
    scale = (x.abs().amax(dim=-1, keepdim=True) / largest).clamp(min=torch.finfo(x.dtype).tiny)
    codes = (x / scale).round().clamp(-largest, largest).to(torch.int8)
    if bits == 8:
        return codes, scale
    if codes.shape[-1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    low, high = (codes + 8).to(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
    return low | (high << 4), scale


def from_codes(codes: Tensor, scale: Tensor, *, bits: int, width: int) -> Tensor:
    """Undo `to_codes` up to rounding: rows of `width` numbers in the dtype of the scales."""
    if bits == 4:
        pairs = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)[..., :width]
        codes = pairs.to(torch.int8) - 8
    return codes.to(scale.dtype) * scale


class QuantizedCache(LayerCache):
    """A cache of `bits`-bit codes with a scale for each head and token; attention reads the dequantized values.

    The new positions are quantized too, so one forward pass over a text with such a cache gives the loss with quantized
    keys and values. It grows like LayerCache. Scales have the dtype of the keys. Gradients do not flow through it.
    """

    def __init__(self, *, bits: int, window: int | None = None):
        super().__init__(window=window)
        self.bits = bits
        #: the codes of keys and their scales, and those of values
        self.parts = LayerCache(window=window), LayerCache(window=window)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        _refuse_gradients(keys, values)
        first, second = (
            from_codes(*part.extend(*to_codes(x, bits=self.bits)), bits=self.bits, width=x.shape[-1])
            for part, x in zip(self.parts, (keys, values), strict=True)
        )
        return first, second

    def tensors(self) -> list[Tensor]:
        return [tensor for part in self.parts for tensor in part.tensors()]

    def shorten(self, tokens: int) -> None:
        for part in self.parts:
            part.shorten(tokens)


#: Kind of cache → the function that makes the cache of a layer from (window, room, page).
KINDS: dict[str, Callable[[int | None, int, int], LayerCache]] = {
    "growing": lambda window, room, page: LayerCache(window=window),
    "contiguous": lambda window, room, page: ContiguousCache(room=room, window=window),
    "paged": lambda window, room, page: PagedCache(page=page, window=window),
    "int8": lambda window, room, page: QuantizedCache(bits=8, window=window),
    "int4": lambda window, room, page: QuantizedCache(bits=4, window=window),
}


class KVCache:
    """Keys and values of every layer for the tokens seen so far: 2·L·B·K·T·h elements, T tokens long.

    `kind`: "growing" makes longer tensors with every call, "contiguous" writes into tensors for `tokens` tokens (None: the
    model's context), "paged" takes pages of `page` tokens, "int8" and "int4" store codes with a scale per head and token.
    Their bytes: `predict.kv_cache_bytes`. Latent attention stores (kv_latent + rotary_dim) elements per token and layer.
    """

    def __init__(
        self, config: TransformerConfig, *, kind: str = "growing", tokens: int | None = None, page: int = 16
    ):  # fmt: skip
        make = known("kind of cache", kind, KINDS)
        room = config.context if tokens is None else positive_int("tokens", tokens)
        self.kind = kind
        self.layers = [
            make(config.window_of(layer), room, positive_int("page", page)) for layer in range(config.layers)
        ]
        #: how many tokens the model has seen, which is the position of the next one
        self.tokens = 0
        #: whether a forward pass was interrupted, so that only some layers have seen its tokens
        self.broken = False

    def tensors(self) -> list[Tensor]:
        """The cached tensors, keys and values of each layer in turn; empty before the first tokens."""
        return [tensor for layer in self.layers for tensor in layer.tensors()]

    @property
    def bytes(self) -> int:
        """Bytes allocated for the tokens so far, including unused room and the unused part of pages."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def shorten(self, tokens: int) -> None:
        """Forget all but the first `tokens` tokens; ValueError if a sliding window has dropped some of them."""
        positive_int("tokens", tokens)
        windows = [layer.window for layer in self.layers if layer.window is not None]
        if windows and self.tokens > min(windows):
            raise ValueError(
                f"after {self.tokens} tokens a sliding window of {min(windows)} has dropped the first: it cannot be shortened."
            )
        for layer in self.layers:
            layer.shorten(tokens)
        self.tokens = min(self.tokens, tokens)
