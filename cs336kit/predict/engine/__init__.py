"""One list of operations, and the walk over it. This package knows tensors and the rules of torch's autograd, and no model.

To find your way, follow one number from the model to the peak: what the first norm of a small decoder keeps.

>>> from cs336kit import predict
>>> config = predict.TransformerConfig(layers=2, d_model=64, heads=4, vocab=256, context=128)
>>> program = predict.program(config, batch=4, sequence=128, precision="bf16")

**In the model.** A block of `lm.DecoderOnly` begins with a layer norm of x: 4 · 128 tokens of 64 numbers in bf16, which are
65,536 bytes. Torch's node of this operation keeps x for the backward pass, because the gradients are computed from it.

**Written.** `decoder/model.py` describes the block in the words of this package, and says `Builder.layer_norm` (builder.py) here.
By its rule, `Writer.with_statistics` (writer.py), it appends an `Op` (operations.py), whose `saves` name what the node keeps: the
`Storage` of x, the scale and the shift, and the mean and 1/deviation of each row. The block is listed once, in a `Repeat`.

>>> from cs336kit.predict.engine.operations import blocks
>>> block, count = next(blocks(program.items))
>>> norm = block.items[0]
>>> norm.place, count, norm.saves[0]
('block/attention norm', 2, Storage('attention norm', 65,536 bytes))

**Held.** `Walk.forward` (walk.py) goes through the list, and a `Ledger` (ledger.py) counts who holds which storage. Until then,
the caller's variable alone holds x; `Ledger.keep` adds the norm. When the variable goes (a `Free` in the list), x stays alive,
and its bytes are among the kept ones. Both blocks are alike, so one is walked, and `Ledger.other_runs` adds the other's.

>>> from cs336kit.predict.engine.walk import Walk
>>> walk = Walk(program)
>>> walk.forward(program.items)
>>> walk.ledger.holds[norm.saves[0]], walk.ledger.kept
(1, 3811332)

**Freed.** `Walk.backward` goes through the list from its end. When the gradient of the norm's output is complete, the norm's
backward pass makes the gradients of x, scale and shift; then `Ledger.release` removes the last holder of x, which frees it.

**Seen.** After each operation, `Ledger.see` compares what is alive with the most so far at this moment of the step. The highest
of these peaks is what has to fit. Here it is in the backward pass of the loss, which has freed 4 bytes of what is kept, and
nothing else: x is still there, once for each block.

>>> predict.step_peak(config, batch=4, sequence=128, precision="bf16")["activations"]
3811328

The walk is torch's autograd engine, whose nodes do things in a certain order (nodes.py). What is not the engine's stands beside
it: checkpointed blocks (recomputation.py), parameters that ranks gather (gathering.py, by the rules of gathered.py), and what
becomes of the parameters' gradients (parameter_gradients.py). Collectives are operations in the list (collectives.py). What needs
no walk reads the list itself: products.py the FLOPs, and states.py the bytes of parameters, gradients and optimizer state.
"""
