"""llama.cpp driven bare: what a decoding loop over it is measured against."""

from collections.abc import Iterator, Sequence

from edgewise.edge.binding import llama_cpp
from edgewise.edge.kv import common_prefix
from edgewise.edge.llamacpp_context import LlamaContext
from edgewise.edge.llamacpp_sequence import LlamaSlot, LlamaSlots


def bare_loop(slots: LlamaSlots, prompt: Sequence[int], tokens: int) -> Iterator[int]:
    """`tokens` + 1 ids after `prompt`, a decode and an argmax each.

    The prompt is read as a session reads it, so that the engine is in the same state: all but its
    last id without outputs, in cells that a session would take.
    """
    last, kept = len(prompt) - 1, 0
    slot, context = LlamaSlot(slots), slots.context
    try:
        held = slot.adopt(prompt)
        with slot.lock:
            start = slot.forget(min(common_prefix(held, prompt), last))
            for at in range(start, last, slot.batch):
                slot.run(prompt[at : min(at + slot.batch, last)], at, "none", hidden=False)
            kept = last
        # What was read of a session that is closed is stale from here on.
        context.decodes += 1
        yield from _decoded(context, slot.sequence, prompt[last], last, tokens)
    finally:
        with slot.lock:
            kept = 0 if slot.closed else slot.forget(kept)
        slot.release(prompt[:kept])


def _decoded(
    context: LlamaContext, sequence: int, token: int, start: int, tokens: int
) -> Iterator[int]:
    batch = llama_cpp.llama_batch_init(1, 0, 1)
    try:
        batch.n_tokens = batch.n_seq_id[0] = batch.logits[0] = 1
        batch.seq_id[0][0] = sequence
        llama_cpp.llama_set_embeddings(context.handle, False)
        for position in range(start, start + tokens + 1):
            batch.token[0], batch.pos[0] = token, position
            if llama_cpp.llama_decode(context.handle, batch):
                raise RuntimeError("the bare loop could not decode")
            token = int(context.row(0, hidden=False).logits.argmax())
            yield token
    finally:
        llama_cpp.llama_batch_free(batch)
