"""Every exercise of the course: the reference passes, each mistake gets its own words, nothing else passes."""

import copy
import gc
import itertools
import math
import operator
import pickle
import statistics
from functools import cache

import checked_here
import pytest
import torch
from few import one_in

from cs336course import exercise as maintain
from cs336kit import lm, measure, predict
from cs336kit.lessons.lesson_04 import exercises as lesson_04
from cs336kit.lessons.lesson_06 import exercises as lesson_06
from cs336kit.lessons.lesson_07 import exercises as lesson_07
from cs336kit.lessons.lesson_08 import exercises as lesson_08
from cs336kit.lessons.lesson_12 import exercises as lesson_12
from cs336kit.lessons.lesson_14 import exercises as lesson_14
from cs336kit.lessons.lesson_16 import exercises as lesson_16
from cs336kit.lessons.lesson_17 import exercises as lesson_17
from cs336kit.lessons.lesson_20 import exercises as lesson_20
from cs336kit.teach import exercises
from cs336kit.teach.exercises import checking

pytestmark = pytest.mark.torch

IDS = exercises.known_ids()
TRIALS = checking.trials

#: Changes to a right answer that change nothing, or nothing that the task asks for.
HARMLESS = {
    "02.3": ["update < 0 → update <= 0"],  # no update, no chance
    "03.5": ["0 → -1", "0 → -1"],  # the only axis
    # nothing is added: the count of the bias is for a mistake alone
    "06.1": ["2 * args[place[operation]].shape[-1] + added → 2 * args[place[operation]].shape[-1] - added"],
    "14.3": ["D // A → D / A"],  # a whole number either way
    "15.3": ["1 → 2"],  # a k above blocks is never better
    # a weight of the grid is as far from both, so rounding returns to it from both or neither
    "16.3": ["w + u → w - u"],
    "17.1": ["D // A → D / A"],  # a whole number either way
    "18.1": ["0 → 1", "0 → -1"],  # the tensors of all ranks are as large
    "19.1": ["1 → 0"],  # the only axis
}


@cache
def expected(id):
    """What the reference and the mistakes return in each case: the same for each of the many answers that are tried here."""
    return [trial[2:] for trial in TRIALS(exercises.load(id), "")]


def with_what_is_expected(found, name):
    """The trials of an answer of this name, each with arguments of its own."""
    calls = found.calls(name)
    return [(label, copy.deepcopy(args), *rest) for (label, args), rest in zip(calls, expected(found.id), strict=True)]


@pytest.fixture
def here(monkeypatch):
    """Known answers, which need no process of their own, are tried in this one."""
    checked_here.use(monkeypatch)
    monkeypatch.setattr(checking, "trials", with_what_is_expected)
    gc.freeze()  # 12.1 looks at all objects, and would take a minute for those of pytest and of earlier tests


def test_unknown_ids_list_the_known_ones():
    for bad in ("99.1", "01", "", None, 7):
        with pytest.raises(ValueError, match="the lessons with exercises are"):
            exercises.load(bad)
    with pytest.raises(ValueError, match=r"has no exercise '00\.99'; it has 00\.1"):
        exercises.load("00.99")


def test_ids_are_numbered_from_one():
    for lesson, group in itertools.groupby(IDS, key=lambda id: id[:2]):
        numbers = [id[3:] for id in group]
        assert numbers == [str(i) for i in range(1, len(numbers) + 1)] and len(numbers) <= 6, lesson


@pytest.mark.parametrize("id", IDS)
def test_the_reference_passes_and_each_mistake_gets_its_own_words(id, here):
    found = exercises.load(id)
    assert not (told := maintain.confused(found)), told
    sentences = {*found.mistakes.values()}
    assert len(found.mistakes) == len(sentences) >= 3, "at least three mistakes, each with a sentence of its own"
    hints = {hint for hint in found.hints if len(hint) > 15}
    assert len(found.hints) == len(hints) in (2, 3), "two or three hints, each a sentence of its own"
    assert len(found.checked) > 10, "checked says what the cases are"
    assert repr(exercises.check(id, found.reference)) == f"{id} passed: {found.checked}"
    for mistake, sentence in found.mistakes.items():
        answer = found.wrong_answers[mistake]
        if found.decision:
            parts = zip(found.reference(), answer(), strict=True) if isinstance(answer(), tuple) else ()
            answer = tuple(
                right if wrong is ... else min(wrong) if isinstance(wrong, set) else wrong for right, wrong in parts
            )
            answer = answer or found.wrong_answers[mistake]()
        message = exercises.check(id, answer).message
        assert message.startswith(("For ", "You answered ")) and message.endswith(f": {sentence}"), (
            sentence,
            message,
        )


@pytest.mark.parametrize("id", one_in(3, IDS))
def test_stubs_wait_and_answers_of_another_kind_get_a_sentence(id, here):
    found = exercises.load(id)
    assert exercises.check(id, lambda *args: ...).state == exercises.check(id, ...).state == "waiting"
    (_, first), *_ = found.calls("")
    values = ["text", object(), itertools.count(), torch.ones(7, 1, 3), [], {}, float("nan"), None]
    answers = [*values, lambda: 0, lambda *args: args[0]]
    # The first case's value for every case; a decision has one case, and is right then.
    answers += [] if found.decision else [lambda *args: found.reference(*first)]
    for answer in answers + [lambda *args, _v=value: _v for value in values]:
        result = exercises.check(id, answer)
        assert result.state == "not yet" and len(result.message) > 15, (answer, result)


#: Those of `make test`: one of every second lesson. `make proof` has all.
FUNCTIONS = [id for id in IDS if not exercises.load(id).decision]
FIRST = [*{id[:2]: id for id in reversed(FUNCTIONS)}.values()][::2]


@pytest.mark.parametrize("id", [pytest.param(id, marks=[pytest.mark.proof] * (id not in FIRST)) for id in FUNCTIONS])
def test_a_changed_reference_does_not_pass(id):
    found = exercises.load(id)
    passing = maintain.unnoticed(found, maintain.changed(found.reference))
    assert passing == HARMLESS.get(id, []), (
        f"{passing}: add a case that refuses it, or if it is right, too, name it in HARMLESS"
    )


def momentum_as_sum(p, gradients, lr, betas, eps, weight_decay):
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        p *= 1 - lr * weight_decay
        m = betas[0] * m + g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p -= lr * m / (1 - betas[0] ** t) / (math.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p


def corrected_in_place(p, gradients, lr, betas, eps, weight_decay):
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        p *= 1 - lr * weight_decay
        m = (betas[0] * m + (1 - betas[0]) * g) / (1 - betas[0] ** t)
        v = (betas[1] * v + (1 - betas[1]) * g * g) / (1 - betas[1] ** t)
        p -= lr * m / (math.sqrt(v) + eps)
    return p


def tried_up_to_d(ridge, d, p):
    fitting = (t for t in range(1, d + 1) if 2 * t * d * d >= ridge * p * (2 * t * d + d * d))
    return next(fitting, None)


def table_for_each_row(result, grad):
    return torch.stack([(y.diag() - y.outer(y)) @ g for y, g in zip(result, grad, strict=True)])


def read_before_written(keys, values, position, q, k, v):
    seen, slot = min(position, len(keys)), position % len(keys)
    found = (keys[:seen] @ q / math.sqrt(len(q))).softmax(-1) @ values[:seen]
    keys[slot], values[slot] = k, v
    return found


def by_weight(shapes):
    names = [name for name in shapes if name.endswith("weight")]
    return {"decay": names, "no decay": [name for name in shapes if name not in names]}


def rounded_root(blocks, input_bytes, block_bytes):
    return max(1, min(blocks, round(math.sqrt(blocks * input_bytes / block_bytes))))


def judged(p, q, token, draw, *, chance=lambda p, q, token: p[token] / q[token]):
    """The judge of 19.5 in fp32, with another chance to keep the token."""
    if draw < chance(p, q, token):
        return None
    rest = (torch.tensor(p) - torch.tensor(q)).clamp(min=0)
    return (rest / rest.sum()).tolist()


def without_max(p, q, token, draw):
    total = sum(a - b for a, b in zip(p, q, strict=True))
    return None if draw < p[token] / q[token] else [(a - b) / total for a, b in zip(p, q, strict=True)]


def never_kept(p, q, token, draw):
    rest = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return [each / sum(rest) for each in rest] if sum(rest) else None


def with_a_gradient_of_the_input(net, x):
    x = x.clone().requires_grad_()
    forward = measure.flops(lambda: net(x)).total
    return 2.0, (measure.flops(lambda: net(x).sum().backward()).total - forward) / forward


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        (
            "00.3",
            lambda g, d, peak, mfu, m, r: int(min(g * peak * mfu * d * 86400 / 6 / r, g * m / 16)),
            "you forgot the time, or a square root",
        ),
        ("00.2", lambda n, gb, whole, split: gb * 1e9 // (whole + split / n), "a float; an int is expected"),
        ("02.1", lambda step, bits: 2.0 ** math.ceil(math.log2(step) + bits), "more than half a gap"),
        ("02.2", lambda account, owed, cent: (account + (cent + owed), 0 * owed), "is always 0"),
        ("02.2", lambda account, owed, cent: (account.float() + cent + owed, owed), "without float"),
        ("03.1", lambda strip, *where: torch.tensor(strip).as_strided(*where).tolist(), "without as_strided and torch"),
        ("03.2", lambda x: torch.diagonal(x), "without diagonal"),
        ("03.2", lambda x: torch.einsum("ii->i", x), "without einsum"),
        (
            "03.4",
            lambda shape, strides: torch.empty(shape).as_strided(shape, strides).view(-1).stride(0),
            "without as_",
        ),
        ("03.4", lambda shape, strides: None, "you returned None, but 1 is right"),
        ("03.5", lambda x, size, step: x.unfold(0, size, step), "without unfold"),
        ("07.1", tried_up_to_d, "do not give up at some number"),
        ("07.3", lambda steps, c, b, fused: max(max(f / c, (r + w) / b) for f, r, w in steps), "the longest step"),
        ("08.2", table_for_each_row, "you built a table"),
        ("10.1", lambda s, a: math.sqrt((0.5 if a == "relu" else 1) / math.prod(s[1:])), "Do not halve it"),
        ("10.1", lambda s, a: (2 if a == "relu" else 1) / math.sqrt(math.prod(s[1:])), "it is √2"),
        ("10.1", lambda s, a: math.sqrt((2 if a == "relu" else 1) / s[0]), "fan-out"),
        ("10.4", lambda shapes, layers: dict.fromkeys(shapes, 0.02), "0.02 is for the embedding"),
        ("11.2", momentum_as_sum, "your m is a fading sum"),
        ("11.2", corrected_in_place, "kept the corrected m and v"),
        ("11.3", by_weight, "a norm has a weight, too"),
        (
            "14.3",
            lambda B, S, D, A, K, d_ff: lesson_14.block_bytes(B, S, D, A, K, d_ff) + 4 * B * S * D,
            "What goes into q, k and v is one tensor",
        ),
        ("15.3", rounded_root, "segments are whole"),
        ("16.3", lambda ws, us, bits: sum(abs(u) < 2.0**-bits / 2 for u in us), "you took the gap at 1"),
        (
            "16.3",
            lambda ws, us, bits: sum(
                abs(u) < 2.0 ** (math.frexp(w)[1] - 1 - bits) / 2 for w, u in zip(ws, us, strict=True)
            ),
            "below a power of two the gap is half as wide",
        ),
        ("19.1", read_before_written, "the new token itself is missing"),
    ],
)
def test_mistakes_that_were_misnamed_once(id, answer, words, here):
    """Wrong answers that got a false diagnosis or none; where none is known, the right value is shown."""
    result = exercises.check(id, answer)
    assert result.state == "not yet" and words in result.message


def last_of_equal(events):
    return lesson_04._reserved(events, choose=lambda blocks, key: min(reversed(blocks), key=key))


def from_zero(query, blocks, first=0.0, dtype=torch.float32):
    largest, total, mixed = torch.tensor(first), 0.0, 0.0
    for keys, values in blocks:
        scores = (keys @ query / math.sqrt(len(query))).to(dtype)
        before, largest = largest, torch.maximum(largest, scores.max())
        weights = torch.exp(scores - largest)
        total = total * torch.exp(before - largest) + weights.sum()
        mixed = mixed * torch.exp(before - largest) + weights @ values.to(dtype)
    return mixed / total


def with_first_sizes(events):
    sizes, alive, now, peak, names = {}, {}, 0, 0, []
    for name, size in events:
        if size is None:
            now -= sizes[name]
            del alive[name]
        else:
            sizes.setdefault(name, size)
            alive[name] = size
            now += size
        if now > peak:
            peak, names = now, sorted(alive, key=lambda name: -alive[name])
    return peak, names


def side_by_side(logits, targets):
    return -torch.column_stack(logits).log_softmax(1)[range(len(targets)), targets].mean()


def best_of(timer, shapes):
    return max(math.prod(shape) / timer(*shape) for shape in shapes)


def train_with(model, optimizer, batches, held_out, *, number, noted):
    """The loop of 08.3, with what becomes of a loss that is added up, and of one that is appended."""
    total, checks = 0.0, []
    for x, y in batches:
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += number(loss)
        x, y = held_out
        check = ((model(x) - y) ** 2).mean()
        checks.append(noted(check))
    return total / len(batches), checks


def only_the_sum(*args):
    return train_with(*args, number=torch.Tensor.detach, noted=lambda check: check)


def numbers_in_the_end(*args):
    mean, checks = train_with(*args, number=lambda loss: loss, noted=lambda check: check)
    return mean.item(), [check.item() for check in checks]


def weighed_by_rows(model, optimizer, batches, held_out):
    losses = [lesson_08.train(model, optimizer, [batch], held_out) for batch in batches]
    rows = [len(x) for x, _ in batches]
    mean = sum(loss * n for (loss, _), n in zip(losses, rows, strict=True)) / sum(rows)
    return mean, [check for _, (check,) in losses]


def copies_of_all(query, pieces):
    keys, values = zip(*[(k.clone(), v.clone()) for k, v in pieces], strict=True)
    return (torch.cat(keys) @ query / math.sqrt(len(query))).softmax(0) @ torch.cat(values)


def lists_of_all(query, pieces):
    keys, values = zip(*[(k.tolist(), v.tolist()) for k, v in pieces], strict=True)
    keys, values = (torch.tensor([*itertools.chain(*lists)]) for lists in (keys, values))
    return (keys @ query / math.sqrt(len(query))).softmax(0) @ values


def one_sum_for_each_piece(query, pieces):
    found = []
    for keys, values in pieces:
        scores = keys @ query / math.sqrt(len(query))
        weights = (scores - scores.max()).exp()
        found.append((scores.max(), weights.sum(), weights @ values))
    largest = max(most for most, _, _ in found)
    total = sum((most - largest).exp() * total for most, total, _ in found)
    return sum((most - largest).exp() * mixed for most, _, mixed in found) / total


def autocast_around_everything(model, optimizer, x, targets):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(x), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss


def in_bf16_for_a_moment(model, optimizer, x, targets):
    model.to(torch.bfloat16)
    loss = lesson_16.step(model, optimizer, x, targets)
    model.float()
    return loss


def with_logits_in_fp32(model, optimizer, x, targets):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
    loss = torch.nn.functional.cross_entropy(logits.float(), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss


def cleared(when, model, optimizer, x, targets):
    """The step of 16.1, with the gradients set back before the forward, the backward, or the optimizer's step."""
    if when == "forward":
        optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(x), targets)
    if when == "backward":
        optimizer.zero_grad()
    loss.backward()
    if when == "step":
        optimizer.zero_grad()
    optimizer.step()
    return loss


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask, p):
        ctx.mask, ctx.p = mask, p
        return x * mask / (1 - p)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask / (1 - ctx.p), None, None


def by_a_function_of_ones_own(x, noise, p):
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            mask = noise > p
            ctx.save_for_backward(mask)
            return x * mask / (1 - p)

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0] / (1 - p)

    return Dropped.apply(x)


def predicted_by_hooks(N, D, H):
    x, up, down = (torch.ones(shape, requires_grad=True) for shape in ((N, D), (D, H), (H, D)))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda kept: kept):
        (x @ up).sigmoid() @ down
    return (lambda x, up, down: (x @ up).sigmoid() @ down), 4 * N * (D + H)


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        ("02.4", lambda values: 2.0 ** math.ceil(math.log2(max(map(abs, values)) / 7)), "Did you count with 7?"),
        (
            "02.4",
            lambda values: next(2.0**e for e in range(-20, 20) if max(map(abs, values)) < 6 * 2.0**e),
            "exactly 6 fits",
        ),
        ("04.1", lambda latency, b, share: latency * b * share // (1 - share), "you returned 6666.0, but"),
        ("04.3", last_of_equal, "The task asks for the first"),
        ("04.4", ("C", 34.0, 0.994), "this is C's time ÷ A's"),
        ("06.1", lambda function: lesson_06.count_products(function, bias=1), "you counted the addition of the bias"),
        ("07.4", lambda *args: lesson_07.timed(*args, middle=statistics.median_low), "You took the smaller"),
        ("07.4", lambda *args: lesson_07.timed(*args, middle=statistics.median_high), "You took the larger"),
        (
            "07.5",
            lambda timer, shape, tried: min(timer(*one) for one in [shape, *tried]) / timer(*shape),
            "compare speeds",
        ),
        (
            "07.5",
            lambda timer, shape, tried: best_of(timer, [shape]) / best_of(timer, tried or [shape]),
            "itself is among",
        ),
        ("08.2", lambda y, g: y * ((y * g).sum(-1, keepdim=True) - g), "all signs are turned around"),
        ("08.2", lambda y, g: y * (1 - y) * g - y * (y * g).sum(-1, keepdim=True), "itself twice"),
        ("08.3", lambda *args: lesson_08.train(*args, summed=True, noted=True), "that is still the program as it was"),
        ("08.3", only_the_sum, "no backward pass ever frees it"),
        ("08.3", lambda *args: lesson_08.train(*args, summed=True), "Backward has freed what the nodes kept"),
        ("08.3", numbers_in_the_end, "only when the loop is over"),
        ("08.3", lambda *args: lesson_08.train(*args, last=True), "kept the last batch's loss"),
        ("08.3", lambda *args: lesson_08.train(*args, divide=False), "the sum of the losses instead of their mean"),
        ("08.3", lambda *args: lesson_08.train(*args, before=True), "before the step"),
        ("08.3", lambda *args: lesson_08.train(*args, clear=False), "nothing sets them back"),
        ("08.3", lambda *args: lesson_08.train(*args, move=False), "the optimizer makes no step"),
        ("08.3", weighed_by_rows, "you weighed each loss by the rows of its batch"),
        ("09.2", ("B", 48 / 96), "the lowest trained layer hands no gradient down"),
        ("11.5", ("A", 80.3), "more than 80"),
        ("12.1", from_zero, "Begin at -∞"),
        ("12.1", copies_of_all, "you still hold all of them, or copies"),
        ("12.1", lists_of_all, "you still hold all of them, or copies"),
        ("12.1", lambda *args: lesson_12.attend_in_pieces(*args, running=False), "take the largest so far"),
        ("12.1", lambda *args: lesson_12.attend_in_pieces(*args, maximum=False), "Subtract a maximum first"),
        ("12.2", lambda documents, window: lesson_12.may_look(documents, None), "the same with one"),
        ("14.3", lambda B, S, D, A, K, d_ff: 20 * B * S * D, "you returned 160, but"),
        (
            "14.3",
            lambda *sizes: lesson_14.block_bytes(*sizes) - 12 * sizes[0] * sizes[1] * sizes[2],
            "as layer_norm does",
        ),
        ("14.5", ("B", 39), "All four buckets have to fit"),
        ("14.1", predicted_by_hooks, "without saved_tensors_hooks"),
        (
            "14.2",
            lambda B, *sizes: lesson_14.fused_bytes(B, *sizes) - 4 * (B - 1) * sizes[0] * sizes[1],
            "of one sequence",
        ),
        ("14.3", lambda *sizes: lesson_14.block_bytes(*sizes) + 2 * math.prod(sizes[:3]), "the last product returns"),
        ("14.4", lambda x, noise, p: _Dropped.apply(x, (noise > p).float(), p), "the graph keeps too much"),
        ("15.1", with_first_sizes, "You subtracted the size that it had first"),
        ("15.2", ("b", 15.907), "15.9 is the peak in MB"),
        (
            "16.4",
            lambda m, window, margin: sum(m[i] >= margin * max(m[max(0, i - window) : i]) for i in range(1, len(m))),
            "does not lie beyond it",
        ),
        ("06.2", lambda s, width, w: 4 * width * sum(min(i, w - 1) for i in range(s)), "you left out the token itself"),
        ("16.1", lambda *args: lesson_16.step(*args, whole=True, outside=True), "that is still the program as it was"),
        ("16.1", autocast_around_everything, "the backward pass runs under autocast, too"),
        ("16.1", in_bf16_for_a_moment, "they went through bf16"),
        ("16.1", lambda *args: lesson_16.step(*args, outside=True), "autocast ends before the loss"),
        ("16.1", lambda *args: lesson_16.step(*args, cast=False), "without autocast no product runs in bf16"),
        ("16.1", lambda *args: lesson_16.step(*args, clear=False), "the next backward pass would add to them"),
        ("16.1", lambda *args: lesson_16.step(*args, rounded=True), "you rounded the gradients"),
        ("16.1", lambda *args: cleared("step", *args), "when the gradients are empty"),
        ("16.2", lambda *args: lesson_16.scales(*args, beyond=operator.ge), "the largest number itself still fits"),
        ("17.1", lambda fields: lesson_17.count(fields, final=0), "you left out the last norm"),
        ("17.3", ("B", 71.4), "in percent"),
        ("17.4", ("gpt-oss-20b", 47.06), "more than nine tenths"),
        ("17.4", ("qwen3-8b", 147.4), "Each of the 8 holds an equal share"),
        # The MFU of a log: by the sparse peak, one GPU's tokens, with step 1, by 6PN with and without tables, and two HFUs.
        ("17.5", (0.204, 0.147), "the peak with sparsity"),
        ("17.5", (0.0511, 0.0368), "those of one GPU"),
        ("17.5", (3.271, 2.358), "the peak of one"),
        ("17.5", (0.409, 0.166), "has step 1 in it"),
        ("17.5", (0.340, 0.245), "6PN with all parameters"),
        ("17.5", (0.274, 0.197), "6PN without tables"),
        ("17.5", (0.358, 0.258), "half of the pairs"),
        ("17.5", (0.545, 0.393), "8 FLOPs run for 6"),
        ("17.5", (0.511, 0.368), "it counts what checkpointing computes again"),
        ("17.5", (0.295, 0.295), "the stall is in your mean"),
        ("17.5", (0.295, 0.409), "in the other order"),
        ("17.5", (40.9, 29.5), "in percent"),
        ("17.5", (0.442, 0.319), "only looked up"),
        ("17.5", (0.447, 0.322), "`num_key_value_heads` says 4"),
        ("17.5", (0.3453, 0.2489), "the peak of an H100"),
        ("17.5", (0.409, 0.370), "the mean of eight MFUs"),
        ("18.3", side_by_side, "without column_stack"),
        ("19.5", never_kept, "this draw is low enough to keep the token"),
        (
            "19.5",
            lambda *args: judged(*args, chance=lambda p, q, token: 1 - abs(p[token] - q[token])),
            "by a difference",
        ),
        ("19.5", lambda *args: judged(*args, chance=lambda p, q, token: sum(map(min, p, q))), "on average over all"),
        (
            "19.5",
            lambda *args: judged(*args, chance=lambda p, q, token: q[token] / p[token] if p[token] else 1),
            "upside down",
        ),
        ("19.5", without_max, "count it as 0"),
        ("20.4", ("C", 1 - lesson_20.train_and_serve()[1]), "what it saves"),
        ("20.4", ("B", 0.692), "that is right for FLOPs"),
        ("20.4", ("B", 0.548), "not the least"),
        ("20.4", ("C", 0.780), "you added FLOPs"),
        ("20.4", ("C", 2.094), "its training alone"),
        ("20.4", ("C", 0.376), "with the same FLOPs"),
        ("20.4", ("C", 0.372), "6 are for training"),
        ("20.4", ("C", 1.44), "multiplied by the shares"),
        ("21.1", with_a_gradient_of_the_input, "you made the input ask for a gradient"),
        ("21.4", (1, 2, 9.3), "part 1 of your answer, 1, is not the right choice."),
        ("21.4", (5, 3, 9.3), "Give the smaller number first"),
    ],
)
def test_wrong_answers_of_readers_that_passed_or_had_no_name(id, answer, words, here):
    result = exercises.check(id, answer)
    assert result.state == "not yet" and words in result.message, result


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("04.1", lambda latency, bandwidth, share: math.ceil(latency * bandwidth * share / (1 - share))),
        ("04.4", ("C", 34.0, 1.0)),
        ("07.1", lambda ridge, d, p: (lesson_07.smallest_batch(ridge, d, p) or 0) + (ridge == 32 - 2**-9) or None),
        ("09.5", lambda weights, layers, heads, h, causal: -(-weights // ((2 - causal) * layers * heads * h))),
        ("12.1", lambda query, blocks: from_zero(query, blocks, -math.inf, torch.float64)),
        ("12.1", one_sum_for_each_piece),
        ("13.1", lambda counts: torch.tensor(counts) / max(1, sum(counts))),
        ("14.4", by_a_function_of_ones_own),
        ("14.4", lambda x, noise, p: _Dropped.apply(x, noise > p, p)),
        ("16.1", with_logits_in_fp32),
        ("16.1", lambda *args: cleared("forward", *args)),
        ("16.1", lambda *args: cleared("backward", *args)),
        ("17.5", (0.41, 0.295)),
        ("17.5", (0.41, 0.29)),
        ("19.5", judged),
        ("08.3", lambda *args: train_with(*args, number=torch.Tensor.detach, noted=torch.Tensor.detach)),
    ],
)
def test_right_answers_of_readers_that_were_refused(id, answer, here):
    assert exercises.check(id, answer)


def test_the_right_formula_in_fp32_is_right_too():
    def keeps(shape, activation):
        return torch.tensor((2.0 if activation == "relu" else 1.0) / math.prod(shape[1:])).sqrt().item()

    assert exercises.check("10.1", keeps).state == "passed"


def test_a_save_may_write_another_file_before_the_names_are_flushed(here):
    def and_a_note(disk, name, data):
        disk.write(name + ".new", data)
        disk.flush(name + ".new")
        disk.rename(name + ".new", name)
        disk.write(name + ".new", "a note under the name that is free again")
        disk.flush_names()

    assert exercises.check("13.3", and_a_note)


def test_who_returns_nothing_is_told_what_was_left_behind(here):
    def unflushed(disk, name, data):
        disk.write(name + ".new", data)
        disk.rename(name + ".new", name)

    named = exercises.check("13.3", unflushed).message
    assert named.startswith("For an old checkpoint: you never flushed the data")
    unknown = exercises.check("13.3", lambda disk, name, data: disk.rename(name, name + ".old")).message
    assert unknown == ("for an old checkpoint, 'after a kill' is not right: you have 'missing', but 'whole' is right.")


def test_torch_s_own_adamw_is_no_answer_where_the_task_asks_for_math_alone():
    def ends(p, gradients, lr, betas, eps, weight_decay):
        weight = torch.nn.Parameter(torch.tensor(p, dtype=torch.float64))
        optimizer = torch.optim.AdamW([weight], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        for weight.grad in torch.tensor(gradients, dtype=torch.float64):
            optimizer.step()
        return weight.item()

    found = exercises.load("11.2")
    _, args = found.calls("")[0]
    assert ends(*args) == pytest.approx(found.right(args), rel=1e-12)
    assert "an answer of your own, without AdamW and torch" in exercises.check("11.2", ends).message


def test_no_two_counts_of_the_counter_s_cases_are_equal():
    counts = [right for _, _, right, _ in checking.trials(exercises.load("06.1"), "")]
    assert len({*counts}) == len(counts) > 5


def test_of_what_an_exercise_compares_nothing_is_sent_to_another_process():
    """Its arguments may share storage, which would not come along: the process makes them for itself."""
    for id in ("03.1", "07.1"):
        sent = pickle.dumps(exercises.load(id))
        assert len(sent) < 200 and pickle.loads(sent) is exercises.load(id)


def test_a_net_of_ones_own_is_measured_and_told_how_far_off_its_prediction_is(here):
    def predicted(net, numbers):
        return exercises.check("14.1", lambda N, D, H: (net, 4 * numbers(N, D, H)))

    def gelu(x, up, down):
        return torch.nn.functional.gelu(x @ up) @ down

    assert predicted(gelu, lambda N, D, H: N * (D + 2 * H))
    assert "N · H numbers too few" in predicted(gelu, lambda N, D, H: N * (D + H)).message
    assert "84 predicted, 168 counted" in predicted(gelu, lambda N, D, H: 21).message
    assert not predicted(lambda x, up, down: x @ up @ down, lambda N, D, H: N * (D + H)), "it has products alone"
    added = predicted(lambda x, up, down: (x @ up + 1) @ down, lambda N, D, H: N * (D + H))
    assert "at least one operation besides the products whose gradient needs a tensor" in added.message
    assert "raises RuntimeError: mat1 and mat2" in predicted(lambda x, up, down: x @ down, lambda N, D, H: 0).message
    assert exercises.check("14.1", lambda N, D, H: [gelu, 4 * N * (D + 2 * H)]), "a list is as good as a tuple"
    assert not predicted(lambda x, up, down: x.sigmoid(), lambda N, D, H: N * D), "it does not use the weights"


def test_the_block_of_a_llama_is_what_the_kit_predicts_and_torch_counts():
    config = predict.TransformerConfig(
        layers=1, d_model=64, heads=8, kv_heads=2, d_ff=224, vocab=256, context=64, tied_head=False,
        norm="rmsnorm", positions="rope", mlp="swiglu", bias="none",
    )  # fmt: skip
    block = lm.Llama(config, dtype=torch.bfloat16).blocks[0]
    x = torch.randn(4, 64, 64, dtype=torch.bfloat16, requires_grad=True)
    counted = measure.saved_activation_bytes(lambda: block(x)).total
    how = {"batch": 4, "sequence": 64, "precision": "bf16", "attention": "sdpa"}
    assert lesson_14.block_bytes(4, 64, 64, 8, 2, 224) == counted == predict.saved_block_bytes(config, **how).total
    large = predict.saved_block_bytes(predict.MODELS["llama-3-70b"], **{**how, "batch": 1, "sequence": 8192})
    assert lesson_14.block_bytes(1, 8192, 8192, 64, 8, 28672) == large.total


def test_a_decision_that_has_itself_inside_gets_a_sentence():
    circle, deep = [], ()
    circle.append(circle)
    for _ in range(100_000):
        deep = (deep,)
    for answer in (circle, (circle, 1), deep):
        result = exercises.check("02.5", answer)
        assert result.state == "not yet" and "has itself inside, or is nested too deeply" in result.message
