"""A scripted edge model: deterministic, instant, for tests and for trying a router or backend.

Its vocabulary is the 256 bytes and two end tokens, so any text is its own ids.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from edgewise.edge.base import Floats, Needs
from edgewise.edge.step import LogitsStep
from edgewise.errors import ContextOverflow, UsageError

EOS, EOT = 256, 257
SIZE = 258
HIDDEN = 4

Script = Callable[[Sequence[int]], Floats]
"""From the ids so far to logits float32[258]."""


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

    def __init__(self, name: str = "bytes") -> None:
        self._name = name

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """UTF-8 bytes."""
        return list(text.encode())

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        """UTF-8 bytes; there is no BOS."""
        return self.encode(text)

    def piece(self, token: int) -> bytes:
        """The byte, or nothing for an end token."""
        return bytes([token]) if token < 256 else b""

    def fingerprint(self) -> str:
        """The tokenizer's name."""
        return self._name

    def special_text(self, name: str) -> str:
        """There are none."""
        return ""


class ScriptedEdge:
    """Implements `EdgeModel` over a `Script`."""

    def __init__(
        self, script: Script, *, context: int = 4096, tokenizer: ByteTokenizer | None = None
    ) -> None:
        self.name = "scripted"
        self.tokenizer = tokenizer or ByteTokenizer()
        self.context = context
        self.hidden_size = HIDDEN
        self.script = script
        self.sessions = 0

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> "ScriptedSession":
        """A new session; `sessions` counts the open ones."""
        self.sessions += 1
        return ScriptedSession(self, needs, top)

    def fingerprint(self) -> str:
        """A constant."""
        return "scripted"

    def close(self) -> None:
        """Nothing to free."""


class ScriptedSession:
    """Implements `EdgeSession`. `computed_ids` counts ids run, to prove that none runs twice."""

    def __init__(self, model: ScriptedEdge, needs: Needs, top: int) -> None:
        self._model = model
        self._needs = needs
        self._top = top
        self._ids: list[int] = []
        self._computed = 0
        self._decodes = 0
        self._closed = False
        self.computed_ids = 0

    @property
    def position(self) -> int:
        return len(self._ids)

    def open(self, ids: Sequence[int]) -> int:
        shared = 0
        while shared < min(len(ids), self._computed) and ids[shared] == self._ids[shared]:
            shared += 1
        self.rewind(shared)
        self.extend(ids[shared:])
        return shared

    def extend(self, ids: Sequence[int]) -> None:
        if len(self._ids) + len(ids) > self._model.context:
            raise ContextOverflow(
                f"{len(self._ids) + len(ids)} tokens do not fit in the context of "
                f"{self._model.context}; shorten the prompt."
            )
        self._ids.extend(ids)

    def step(self) -> LogitsStep:
        if not self._ids:
            raise UsageError("A session has no next token before it was opened with ids.")
        self._run()
        return self._step_at(len(self._ids))

    def steps(self, ids: Sequence[int]) -> list[LogitsStep]:
        start = len(self._ids)
        self.extend(ids)
        self._run()
        return [self._step_at(start + row + 1) for row in range(len(ids))]

    def rewind(self, position: int) -> None:
        if not 0 <= position <= len(self._ids):
            raise ValueError(f"cannot rewind to {position}: the session holds {len(self._ids)} ids")
        del self._ids[position:]
        self._computed = min(self._computed, position)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._model.sessions -= 1

    def _run(self) -> None:
        self.computed_ids += len(self._ids) - self._computed
        self._computed = len(self._ids)
        self._decodes += 1

    def _step_at(self, position: int) -> LogitsStep:
        decode = self._decodes
        ids = self._ids[:position]
        return LogitsStep(
            position,
            self._model.script(ids),
            np.array([position, ids[-1], len(ids) % 7, 1], np.float32),
            is_fresh=lambda: self._decodes == decode,
            buffer=np.empty(SIZE, np.float32),
            needs=self._needs,
            top=self._top,
        )
