"""llama.cpp's server: `POST /completion`, by ids."""

import time
from collections.abc import Generator, Sequence
from typing import Any

import msgspec

from edgewise.edge.served.dialect import (
    Amount,
    ById,
    Count,
    Dialect,
    Ids,
    ListedModels,
    ModelMeta,
    NextToken,
    ServedModel,
    candidates,
    chosen,
    fitting,
)
from edgewise.edge.served.server import Server


class _Generation(msgspec.Struct):
    n_ctx: Count


class _Props(msgspec.Struct):
    model_path: str
    total_slots: Count
    default_generation_settings: _Generation


class _Row(msgspec.Struct):
    id: int
    top_logprobs: list[ById]


class _Timings(msgspec.Struct):
    prompt_n: Amount


class _Metered(msgspec.Struct):
    timings: _Timings


class _Written(msgspec.Struct):
    n_decoded: Amount = 0


class _Slot(msgspec.Struct):
    is_processing: bool
    params: dict[str, Any] = {}
    next_token: list[_Written] = []


class _Event(msgspec.Struct):
    """`tokens_predicted` counts those too of which the server says nothing."""

    tokens: list[int] = []
    tokens_predicted: int = 0
    completion_probabilities: list[_Row] = []


LINGER = 5.0
"""Most seconds that a request waits for the slot of the stream that was closed before it."""

_LOOK_SECONDS = 0.002


class LlamaServerEdge(Dialect):
    """`POST /completion` of llama.cpp's server, by ids."""

    # 100 are 9 KB of JSON, about 5% of a 135M model's time.
    program, top, most = "llama-server", 100, 1 << 20

    _ENOUGH = 1e3

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        props = server.get("/props", _Props)
        if props is None:
            return None
        served = server.get("/v1/models", ListedModels)
        entries = served.data if served else []
        meta = next((entry.meta for entry in entries if entry.meta), ModelMeta())
        if model is not None:
            chosen(server, model, [entry.id for entry in entries])
        described = ServedModel(
            props.model_path.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf"),
            props.model_path,
            # One place is for the token that the server writes.
            fitting(context, props.default_generation_settings.n_ctx - 1),
            props.total_slots,
            meta.n_vocab,
            meta.n_embd,
            meta.n_params,
        )
        return cls(server, described)

    def vocabulary_matches(self) -> bool:
        return self.described.size in (None, self.tokenizer.size) and super().vocabulary_matches()

    def reads_alike(self, text: str) -> bool:
        body = {"content": text, "add_special": False, "parse_special": False}
        return self.server.post("/tokenize", body, Ids).tokens == self.tokenizer.encode(text)

    def stream(self, ids: Sequence[int], tokens: int, top: int, seed: int) -> Generator[NextToken]:
        if self.described.slots != 1:
            self.overrun(seed)
        body = {**self._body(ids, tokens, top), "seed": seed, "stream": True}
        written = 0
        with self.server.lines("/completion", body) as lines:
            for line in lines:
                if not line.startswith(b"data: "):
                    continue
                event = self.server.decoded(line[6:], _Event)
                rows, written = event.completion_probabilities, written + 1
                known = len(rows) == 1 and event.tokens == [rows[0].id]
                if event.tokens_predicted != written or not known:
                    return
                yield NextToken(rows[0].id, candidates(rows[0].top_logprobs))
                lines.token()

    def overrun(self, seed: int) -> int | None:
        """Waits until the closed stream has left its slot, which has the session's prefix.

        The server notices at its next token that a stream is closed. Until then it would give the
        session's next request another slot, which would read the prompt again. Its slots say by
        the seed whose request they run.
        """
        written, end = None, time.monotonic() + LINGER
        while time.monotonic() < end:
            slots = self.server.get("/slots", list[_Slot]) or []
            own = [s for s in slots if s.is_processing and s.params.get("seed") == seed]
            if not own:
                break
            counts = (one.n_decoded for slot in own for one in slot.next_token)
            written = next(counts, None)
            time.sleep(_LOOK_SECONDS)
        return written

    def single(self, ids: Sequence[int], top: int, seed: int) -> NextToken:
        """Asks with a request of its own.

        Inside a character the server keeps its candidates back until the character is whole. An
        end token is a whole text, so the server is made to write one; the candidates come
        without that bias.
        """
        if self.described.slots != 1:
            self.overrun(seed)
        bias = [[self.end.token, self._ENOUGH]]
        body = {**self._body(ids, 1, top), "seed": seed, "logit_bias": bias}
        rows = self.server.post("/completion", body, _Event).completion_probabilities
        if len(rows) != 1:
            raise self.server.broken("no candidates of a token")
        return NextToken(rows[0].id, candidates(rows[0].top_logprobs))

    def computed(self, ids: Sequence[int]) -> int | None:
        return self.server.post("/completion", self._body(ids, 1, 0), _Metered).timings.prompt_n

    def _body(self, ids: Sequence[int], tokens: int, top: int) -> dict[str, Any]:
        return {
            "prompt": list(ids),
            "n_predict": tokens,
            "n_probs": top,
            "samplers": ["temperature"],
            "temperature": 0,
            "cache_prompt": True,
            "return_tokens": True,
        }
