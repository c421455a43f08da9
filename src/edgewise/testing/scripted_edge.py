"""A scripted edge model: deterministic and instant, for tests or to try a router or a cloud model.

Its ids are the 256 byte values, of which a text's UTF-8 is made, and two end-of-sequence tokens.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgewise.edge.base import EdgeAbilities, EdgeModel, Floats, Needs, Tokenizer
from edgewise.edge.kv import KvSession, Slots
from edgewise.edge.sequence import KvRow, Outputs, SequenceCache

EOS, EOT = 256, 257
"""Ids of the two end-of-sequence tokens."""

# 256 bytes and two end tokens.
SIZE = 258
HIDDEN = 4
"""Sizes of the vocabulary and of a hidden state."""

ABLE = EdgeAbilities(slots=64)
"""Default abilities of a scripted edge model: all of them, and 64 sessions at a time."""

Script = Callable[[Sequence[int]], Floats]
"""Maps all token ids so far, the prompt's included, to the next token's logits (float32[258])."""


def replying(text: str, *, prompt: str, unsure: Sequence[int] = ()) -> Script:
    """Return a script (a function from ids to logits) that answers `prompt` with `text`, then EOS.

    Of `prompt` only the number of UTF-8 bytes counts. The right token's logit is far above all
    others; at the byte offsets of `text` in `unsure` a wrong token's logit is nearly as high.
    """
    reply = [*text.encode(), EOS]
    start = len(prompt.encode())

    def script(ids: Sequence[int]) -> Floats:
        offset = len(ids) - start
        logits = np.zeros(SIZE, np.float32)
        right = reply[min(offset, len(reply) - 1)]
        logits[right] = 5.0 if offset in unsure else 20.0
        logits[(right + 1) % 256] = 4.9 if offset in unsure else 0.0
        return logits

    return script


def noise(seed: int = 0, *, scale: float = 3.0) -> Script:
    """Return a script (a function from ids to logits) of reproducible random logits.

    They depend on `seed` (modulo 256) and all ids so far; `scale` is their standard deviation.
    """

    def script(ids: Sequence[int]) -> Floats:
        digest = hashlib.sha256(bytes([seed % 256]) + np.asarray(ids, np.int32).tobytes())
        rng = np.random.default_rng(int.from_bytes(digest.digest()[:8], "little"))
        return (rng.standard_normal(SIZE) * scale).astype(np.float32)

    return script


class ByteTokenizer:
    """A `Tokenizer` whose ids are the bytes of UTF-8; the ids 256 and 257 end an answer."""

    size = SIZE
    eos_ids = frozenset({EOS, EOT})
    chat_template: str | None = None

    def __init__(self, end: str = "<end>") -> None:
        """`end` is the text of token 256; with another text the vocabulary is another one."""
        self.special = {EOS: end, EOT: "<turn>"}

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the UTF-8 bytes of `text`. `special` is ignored: special tokens are plain text."""
        return list(text.encode())

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        """Return the UTF-8 bytes of `text`, without a BOS token. `special` is ignored."""
        return self.encode(text)

    def piece(self, token: int) -> bytes:
        """Return the token's byte; no bytes for an end token."""
        return bytes([token]) if token < 256 else b""

    def special_text(self, name: str) -> str:
        """Return "" for every `name` of a special token: chat templates get none."""
        return ""


class ScriptedEdge(EdgeModel):
    """An edge model whose logits come from a `Script`, a function of the ids so far.

    `context` is its context length in tokens; `abilities` says what it can do, for example roll
    back. `computed` counts the ids that all its sessions have computed, so that a test can prove
    that none was computed twice.
    """

    def __init__(
        self,
        script: Script,
        *,
        context: int = 4096,
        tokenizer: ByteTokenizer | None = None,
        abilities: EdgeAbilities = ABLE,
    ) -> None:
        self.name = "scripted"
        self.context = context
        self.hidden_size = HIDDEN
        self.script, self.computed = script, 0
        self.tokenizer: Tokenizer = tokenizer or ByteTokenizer()
        self.abilities = abilities
        self._slots = Slots(
            [_ScriptedCache(self) for _ in range(abilities.slots)],
            name=self.name,
            batch=context,
            turn=context,
        )

    @property
    def sessions(self) -> int:
        return self._slots.sessions

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> KvSession:
        return KvSession(self, self._slots, needs, top)

    def fingerprint(self) -> str:
        return "scripted"

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class _ScriptedCache(SequenceCache):
    """The KV cache of one sequence, which here holds nothing but the ids."""

    def __init__(self, model: ScriptedEdge) -> None:
        self._model = model
        super().__init__()

    def _begin(self) -> None:
        self.rewinds = self._model.abilities.rewinds

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        written = [*self.ids, *ids]
        self._model.computed += len(ids)
        end = len(written)
        first = {"none": end + 1, "last": end, "all": end - len(ids) + 1}[outputs]
        assert end - first < 1 or self._model.abilities.batch_logits, "rows of one id at a time"
        return [self._row(written[:position]) for position in range(first, end + 1)]

    def _copy(self) -> None:
        pass

    def _back(self, count: int, state: Any | None) -> bool:
        return True

    def _row(self, ids: Sequence[int]) -> KvRow:
        logits = self._model.script(ids)
        if not self._model.abilities.hidden:
            return KvRow(logits)
        return KvRow(logits, np.array([len(ids), ids[-1], len(ids) % 7, 1], np.float32))
