"""A scripted edge model: deterministic, instant, for tests and for trying a router or backend.

Its vocabulary is the 256 bytes and two end tokens, so any text is its own ids.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgewise.edge.base import EdgeAbilities, EdgeModel, Floats, Needs, Tokenizer
from edgewise.edge.kv import KvSession, Slots
from edgewise.edge.sequence import KvRow, Outputs, SequenceCache

EOS, EOT = 256, 257
SIZE = 258
HIDDEN = 4

ABLE = EdgeAbilities(slots=64)
"""A scripted edge model can do everything, unless its `abilities` say otherwise."""

Script = Callable[[Sequence[int]], Floats]
"""Maps the ids so far to logits float32[258]."""


def replying(text: str, *, prompt: str, unsure: Sequence[int] = ()) -> Script:
    """Writes `text` after `prompt`, then EOS; certain except at the offsets in `unsure`."""
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
    """Random but reproducible logits that depend on every id before."""

    def script(ids: Sequence[int]) -> Floats:
        digest = hashlib.sha256(bytes([seed % 256]) + np.asarray(ids, np.int32).tobytes())
        rng = np.random.default_rng(int.from_bytes(digest.digest()[:8], "little"))
        return (rng.standard_normal(SIZE) * scale).astype(np.float32)

    return script


class ByteTokenizer:
    """Implements `Tokenizer`: an id is a byte, 256 and 257 end an answer."""

    size = SIZE
    eos_ids = frozenset({EOS, EOT})
    chat_template: str | None = None

    def __init__(self, end: str = "<end>") -> None:
        """`end` is how the end token is written: another text makes another vocabulary."""
        self.special = {EOS: end, EOT: "<turn>"}

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """UTF-8 bytes; no special token is read."""
        return list(text.encode())

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        """UTF-8 bytes; there is no BOS."""
        return self.encode(text)

    def piece(self, token: int) -> bytes:
        """The byte, or nothing for an end token."""
        return bytes([token]) if token < 256 else b""

    def special_text(self, name: str) -> str:
        """Templates see none."""
        return ""


class ScriptedEdge(EdgeModel):
    """Implements `EdgeModel` over a `Script`; it lacks what `abilities` do not name.

    `computed` counts the ids run, of all sessions, to prove that none runs twice.
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
        """Nothing to free."""


class _ScriptedCache(SequenceCache):
    """The ids themselves are all there is to keep."""

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
