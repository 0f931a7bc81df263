"""Claims about tensor and sequence parallelism: what a rank computes, keeps, and sends."""

import itertools
from collections import Counter
from functools import cache
from unittest import mock

import torch
import torch.nn.functional as F
from claims.settled import figures, native_dropout, near, settles
from claims.workers import together
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from cs336kit import lm, measure, predict
from cs336kit.measure.ranks import fake_ranks
from cs336kit.predict.layouts import local_config

B, S, D, A, E, L, V = 2, 16, 32, 4, 4, 2, 24
T = 2
BSD, PAIRS = B * S * D, B * A * S**2
CONFIG = predict.TransformerConfig(layers=L, d_model=D, heads=A, vocab=V, context=S, dropout=0.1)


def whole_numbers(*shape, seed=0):
    """Numbers whose sums and products are exact in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def part(tensor, rank, axis):
    return tensor.chunk(T, axis)[rank]


# -- the MLP: columns, then rows -----------------------------------------------------------------------------------------

X, UP, DOWN = whole_numbers(B, S, D), whole_numbers(D, E * D, seed=1), whole_numbers(E * D, D, seed=2)


def partial_mlp(rank, x=X):
    return F.relu(x @ part(UP, rank, 1)) @ part(DOWN, rank, 0)


@settles("tp-mlp-identity")
def test_mlp_identity():
    sums = together(T, lambda w: w.all_reduce(partial_mlp(w.rank)).tolist())
    return sums, [(F.relu(X @ UP) @ DOWN).tolist()] * T


class Operator(torch.autograd.Function):
    """Lets a tensor and its gradient through, or sums them over the workers."""

    @staticmethod
    def forward(ctx, x, worker, forward, backward):
        ctx.worker, ctx.backward = worker, backward
        return worker.all_reduce(x) if forward == "all-reduce" else x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return (ctx.worker.all_reduce(gradient) if ctx.backward == "all-reduce" else gradient), None, None, None


def gradients(before, behind, *weights):
    """The output of an MLP, and the gradients of its input and of its weights."""
    x, *weights = (tensor.clone().requires_grad_() for tensor in (X, *weights))
    y = behind(F.relu(before(x) @ weights[0]) @ weights[1])
    y.backward(whole_numbers(B, S, D, seed=3))
    return [y.detach(), *(tensor.grad for tensor in (x, *weights))]


@settles("tp-f-g-operators")
def test_f_g_operators():
    # Which of the 16 choices of (f forward, f backward, g forward, g backward) give what one worker computes.
    choices = list(itertools.product(("identity", "all-reduce"), repeat=4))
    y, dx, dup, ddown = gradients(lambda x: x, lambda y: y, UP, DOWN)

    def right(worker):
        found = []
        for choice in choices:
            f, g = (lambda x, way=way: Operator.apply(x, worker, *way) for way in (choice[:2], choice[2:]))
            mine = gradients(f, g, part(UP, worker.rank, 1), part(DOWN, worker.rank, 0))
            expected = [y, dx, part(dup, worker.rank, 1), part(ddown, worker.rank, 0)]
            if all(map(torch.equal, mine, expected)):
                found.append(choice)
        return found

    return [[("identity", "all-reduce", "all-reduce", "identity")]] * T, together(T, right)


@settles("tp-eh-vs-ed")
def test_eh_vs_ed():
    return (B, S, E * A // T), tuple((X @ part(UP, 0, 1)).shape)


# -- attention by heads --------------------------------------------------------------------------------------------------


@cache
def attention_parts():
    """What the heads give and what the layer returns: of the whole attention layer, and of each rank's part of it."""
    torch.manual_seed(0)
    whole = lm.MultiHeadAttention(D, A, bias="none")
    ranks = [lm.MultiHeadAttention(D, A // T, head_dim=D // A, bias="none") for _ in range(T)]
    for rank, mine in enumerate(ranks):
        for name, weight in mine.named_parameters():
            weight.data = part(whole.get_parameter(name).data, rank, 1 if name.startswith("output") else 0)
    results = []
    for layer in (whole, *ranks):
        heads = []
        layer.output.register_forward_pre_hook(lambda _module, inputs, heads=heads: heads.append(inputs[0].detach()))
        results.append((layer(X / 4).detach(), heads[0]))
    return results[0], results[1:]


def same(a, b):
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-5)


@settles("tp-attention-concat-2.11")
def test_attention_concat():
    # Which way to put the ranks' partial products together gives the layer's output.
    (output, _), ranks = attention_parts()
    products = [product for product, _ in ranks]
    ways = {"concatenation": torch.cat(products, dim=-1), "sum": sum(products)}
    return ["concatenation"], [name for name, result in ways.items() if same(result, output)]


@settles("tp-attention-no-comm")
def test_attention_no_comm():
    # Whether a rank has its part without the others: in front of the output projection, and behind it.
    (output, heads), ranks = attention_parts()
    before = all(same(mine, part(heads, rank, -1)) for rank, (_, mine) in enumerate(ranks))
    behind = any(same(product, output) for product, _ in ranks)
    return [True, False], [before, behind]


@settles("tp-2.12-params")
def test_212_params():
    # To a hundredth: the matrices of a rank, and all that it holds.
    wide = predict.TransformerConfig(layers=L, d_model=64, heads=8, vocab=V, context=S)
    with torch.device("meta"):
        weights = list(lm.DecoderOnly(local_config(wide, 8)).blocks.parameters())
    said = (4 + 2 * E) * L * 64**2 // 8
    counts = (sum(w.numel() for w in held) for held in ([w for w in weights if w.ndim == 2], weights))
    return said, *(near(count, said, relative=0.01) for count in counts)


# -- what a rank keeps ---------------------------------------------------------------------------------------------------


def blocks(p, ranks):
    """The blocks of one of so many ranks of tensor parallelism, with p bytes per element."""
    torch.manual_seed(0)
    model = lm.DecoderOnly(local_config(CONFIG, ranks), attention="eager")
    return model.blocks.to({2: torch.bfloat16, 4: torch.float32}[p])


@cache
def kept(p, ranks=T):
    """The tensors that the blocks of a rank keep."""
    stack, x = blocks(p, ranks), X.to({2: torch.bfloat16, 4: torch.float32}[p])
    with mock.patch.object(F, "dropout", native_dropout):
        tensors = measure.saved_activation_bytes(lambda: nn.Sequential(*stack)(x)).tensors
    return [tensor for tensor in tensors if tensor.role == "activation"]


def kept_bytes(p, where):
    """Bytes that one block keeps in a part of it."""
    return sum(tensor.bytes for tensor in kept(p) if where in tensor.module) // L


def statistics(p):
    """Bytes of mean and 1/deviation of a block's norms, which the formulas leave out."""
    return 4 * p * B * S


@settles("tp-2.13-attention")
def test_213_attention():
    p = 4
    return int((p + 4 * p / T + 1) * BSD + (2 * p + 1) * PAIRS / T), kept_bytes(p, "attention")


@settles("tp-2.13-mlp")
def test_213_mlp():
    p = 4
    return int((2 * E * p / T + p + 1) * BSD), kept_bytes(p, "mlp")


@settles("tp-2.14-total")
def test_214_total():
    p = 4
    said = int(2 * L * BSD * (p * (2 + (E + 2) / T) + 1) + L * PAIRS * (2 * p + 1) / T)
    return said, sum(tensor.bytes for tensor in kept(p)) - L * statistics(p)


@settles("tp-dropout-sharding")
def test_dropout_sharding():
    # Elements of a rank's masks in attention: of the weights of its heads, and of the layer's output.
    masks = [t.bytes for t in kept(4) if t.dtype == torch.bool and "attention" in t.module]
    return {"weights": PAIRS // T, "output": BSD // T}, {"weights": masks[0], "output": masks[1]}


# -- the vocabulary ------------------------------------------------------------------------------------------------------

IDS = torch.randint(V, (B, S), generator=torch.Generator().manual_seed(0))
TABLE = whole_numbers(V, D, seed=4)


@settles("tp-lm-head-scalar-losses")
def test_lm_head_scalar_losses():
    # Each worker's loss of the targets that it has, and the mean of those.
    logits, targets = X.flatten(0, 1) / 4 @ TABLE.T / 4, IDS.flatten()

    def own(worker):
        column = targets - worker.rank * V // T
        mine = (column >= 0) & (column < V // T)
        loss = F.cross_entropy(part(logits, worker.rank, 1)[mine], column[mine], reduction="sum")
        return worker.all_reduce(loss).item() / len(targets)

    return figures(together(T, own)[0], 4), figures(F.cross_entropy(logits, targets).item(), 4)


@settles("tp-vocab-embedding")
def test_vocab_embedding():
    # Whether a worker has the embeddings before the all-reduce, and after it.
    full = F.embedding(IDS, TABLE)

    def lookup(worker):
        row = IDS - worker.rank * V // T
        mine = (row >= 0) & (row < V // T)
        found = F.embedding(row * mine, part(TABLE, worker.rank, 0)) * mine[..., None]
        return torch.equal(found, full), torch.equal(worker.all_reduce(found), full)

    return [(False, True)] * T, together(T, lookup)


# -- norms, and the sequence ---------------------------------------------------------------------------------------------


@settles("tp-layernorm-unsharded")
def test_layernorm_unsharded():
    # Whether a rank that has its part of the features can norm it alone, and with the sums of all.
    full = F.layer_norm(X, (D,))

    def norm(worker):
        mine, expected = part(X, worker.rank, -1), part(full, worker.rank, -1)
        sums = torch.stack([mine.sum(-1), mine.square().sum(-1)])
        mean, square = worker.all_reduce(sums)[..., None] / D
        joined = (mine - mean) / torch.sqrt(square - mean**2 + 1e-5)
        return same(F.layer_norm(mine, (D // T,)), expected), same(joined, expected)

    return [(False, True)] * T, together(T, norm)


@settles("sp-allgather-reducescatter")
def test_allgather_reducescatter():
    # The MLP between an all-gather and a reduce-scatter of the positions, which stand first, and with an all-reduce.
    x = X.transpose(0, 1)

    def both(worker):
        mine = part(x, worker.rank, 0)
        gathered = torch.cat(worker.all_gather(mine))
        y = worker.reduce_scatter(partial_mlp(worker.rank, gathered))
        return y.tolist(), part(worker.all_reduce(partial_mlp(worker.rank, x)), worker.rank, 0).tolist()

    by_two, by_one = zip(*together(T, both), strict=True)
    return by_two, by_one


@settles("sp-layernorm-weights-sharded")
def test_layernorm_weights_sharded():
    # Of a rank that has S/T of the positions: the share of the mask that it draws, and of the scale that it trains.
    norm, mine = nn.LayerNorm(D), part(X, 0, 1)
    y, mask = torch.native_dropout(norm(mine), 0.1, True)
    y.backward(whole_numbers(*mine.shape, seed=5))
    trained = norm.weight.grad.count_nonzero().item() / D
    return {"mask": 1 / T, "scale": 1 / T}, {"mask": mask.numel() / BSD, "scale": trained}


class Gather(torch.autograd.Function):
    """The positions of so many ranks that are all like this one, and of the gradient the part of this rank."""

    @staticmethod
    def forward(ctx, x, ranks):
        ctx.rows = x.shape[1]
        return torch.cat([x] * ranks, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient[:, : ctx.rows].clone(), None


class Scatter(torch.autograd.Function):
    """This rank's positions of the sum of so many ranks."""

    @staticmethod
    def forward(ctx, x, ranks):
        ctx.ranks = ranks
        return x[:, : x.shape[1] // ranks].clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.cat([gradient] * ctx.ranks, dim=1), None


class Sequence(nn.Module):
    """A branch of a block whose positions are gathered in front of it, and scattered behind its last product."""

    def __init__(self, branch, last, ranks, gathered):
        super().__init__()
        self.branch, self.ranks, self.gathered = branch, ranks, gathered
        getattr(branch, last).register_forward_hook(lambda _module, _inputs, y: Scatter.apply(y, ranks))

    def forward(self, x, **options):
        x = Gather.apply(x, self.ranks)
        self.gathered[x.untyped_storage()._cdata] = x.detach()
        return self.branch(x, **options)


@cache
def sequence_parallel(p, ranks, *, shards):
    """What one rank of sequence parallelism keeps of a block: bytes of the gathered inputs, of the rest, and how often
    the backward pass gathers an input again.

    With `shards` a rank saves of a gathered input its own positions only.
    """
    block, gathered, held, again = blocks(p, ranks)[0], {}, {}, {}
    block.attention = Sequence(block.attention, "output", ranks, gathered)
    block.mlp = Sequence(block.mlp, "down", ranks, gathered)
    own = {weight.untyped_storage()._cdata for weight in block.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        name = storage._cdata
        if name in own:
            return tensor
        if name in gathered and shards:
            held[name] = gathered[name][:, : S // ranks].clone().untyped_storage()
            return name, tensor.shape, tensor.stride()
        held[name] = storage
        return tensor

    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        name, *view = packed
        again[name] = gathered[name]
        return again[name].as_strided(*view)

    x = X.to({2: torch.bfloat16, 4: torch.float32}[p])[:, : S // ranks].clone().requires_grad_()
    with mock.patch.object(F, "dropout", native_dropout), torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        block(x).sum().backward()
    sizes = Counter()
    for name, storage in held.items():
        sizes["inputs" if name in gathered else "rest"] += storage.nbytes()
    return sizes["inputs"], sizes["rest"] - statistics(p) // ranks, len(again)


@settles("sp-full-inputs")
def test_full_inputs():
    # The inputs of both branches in bf16 on 2 and on 4 ranks, which are not reduced; all that is kept where shards of them
    # are; and the gathers of the backward pass, one for each branch.
    p, ranks = 2, (2, 4)
    full, parts = ([sequence_parallel(p, n, shards=shards) for n in ranks] for shards in (False, True))
    said = [2 * p * BSD] * 2, [(34 * BSD + 5 * PAIRS) // n for n in ranks], [0, 0, 2, 2]
    so = [inputs for inputs, *_ in full], [sum(sizes) for *sizes, _ in parts], [again for *_, again in (*full, *parts)]
    return said, so


@settles("tp-factor-t-cancels")
def test_factor_t_cancels():
    # The batch from which on 14 bytes a weight instead of 12 pay, on one rank, and on one of 2 and of 4.
    def break_even(ranks):
        weights = sum(w.numel() for w in blocks(4, ranks)[0].parameters() if w.ndim == 2)
        fp32, mixed = (sum(sequence_parallel(p, ranks, shards=True)[:2]) for p in (4, 2))
        return figures((14 - 12) * weights / ((fp32 - mixed) / B), 6)

    return [break_even(1)] * 2, [break_even(2), break_even(4)]


@settles("tp-groups")
def test_groups():
    # Which sequences each of 8 workers gets if a batch is divided over the groups of 2, by torch's own mesh.
    workers = 8
    batch, got = torch.arange(workers // T), []
    for rank in range(workers):
        with fake_ranks(workers, rank=rank):
            mesh = init_device_mesh("cpu", (workers // T, T))
            got += distribute_tensor(batch, mesh, [Shard(0), Replicate()], src_data_rank=None).to_local().tolist()
    return [worker // T for worker in range(workers)], got
