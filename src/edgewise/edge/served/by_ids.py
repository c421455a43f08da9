"""Servers that take and tell token ids: llama-server and vLLM."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from edgewise.edge.base import PROBES
from edgewise.edge.served.dialect import (
    LONGEST_NAME,
    ById,
    ChoiceEvent,
    Count,
    Dialect,
    ListedModels,
    ModelMeta,
    ServedModel,
    Told,
    asking,
    choices,
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


class _Ids(msgspec.Struct):
    tokens: list[int]


class _Row(msgspec.Struct):
    id: int
    top_logprobs: list[ById]


class _Timings(msgspec.Struct):
    prompt_n: int


class _Metered(msgspec.Struct):
    timings: _Timings


class _Event(msgspec.Struct):
    """`tokens_predicted` counts those too of which the server says nothing."""

    tokens: list[int] = []
    tokens_predicted: int = 0
    completion_probabilities: list[_Row] = []


class LlamaServerEdge(Dialect):
    """`POST /completion` of llama.cpp's server, by ids."""

    # 100 are 9 KB of JSON, about 5% of a 135M model's time.
    program, top, most = "llama-server", 100, 1 << 20

    _ENOUGH = 1e3

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        props = server.found("/props", _Props)
        if props is None:
            return None
        served = server.found("/v1/models", ListedModels)
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

    def prove(self) -> bool:
        if self.described.size not in (None, self.tokenizer.size):
            return False
        return all(self._ids(text) == self.tokenizer.encode(text) for text in PROBES)

    def _ids(self, text: str) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": False}
        return self.server.post("/tokenize", body, _Ids).tokens

    def stream(
        self, ids: Sequence[int], tokens: int, top: int, closing: ExitStack
    ) -> Iterator[Told]:
        body = {**self._body(ids, tokens, top), "stream": True}
        written = 0
        for line in closing.enter_context(self.server.lines("/completion", body)):
            if not line.startswith(b"data: "):
                continue
            event = self.server.decoded(line[6:], _Event)
            rows, written = event.completion_probabilities, written + 1
            known = len(rows) == 1 and event.tokens == [rows[0].id]
            if event.tokens_predicted != written or not known:
                return
            yield self._told(rows[0])

    def asked(self, ids: Sequence[int], top: int) -> Told:
        """By a request of its own.

        Inside a character the server keeps its candidates back until the character is whole. An
        end token is a whole text, so the server is made to write one; the candidates are told
        without that bias.
        """
        bias = [[self.end, self._ENOUGH]]
        body = {**self._body(ids, 1, top), "logit_bias": bias}
        rows = self.server.post("/completion", body, _Event).completion_probabilities
        if len(rows) != 1:
            raise self.server.broken("no candidates of a token")
        return self._told(rows[0])

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

    def _told(self, row: _Row) -> Told:
        return Told(row.id, [(o.id, o.logprob) for o in row.top_logprobs if o.logprob is not None])


class VllmEdge(Dialect):
    """`POST /v1/completions` of vLLM, by ids that are written as `token_id:123`."""

    program, top, most = "vLLM", 20, 20

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        served = server.found("/v1/models", ListedModels)
        if served is None or not any(entry.owned_by == "vllm" for entry in served.data):
            return None
        name = chosen(server, model, [entry.id for entry in served.data])
        entry = next(entry for entry in served.data if entry.id == name)
        held = None if entry.max_model_len is None else entry.max_model_len - 1
        return cls(server, ServedModel(name, entry.root or name, fitting(context, held)))

    def prove(self) -> bool:
        return all(self._ids(text) == self.tokenizer.encode(text) for text in PROBES)

    def _ids(self, text: str) -> list[int]:
        body = {"model": self.described.name, "prompt": text, "add_special_tokens": False}
        return self.server.post("/tokenize", body, _Ids).tokens

    def stream(
        self, ids: Sequence[int], tokens: int, top: int, closing: ExitStack
    ) -> Iterator[Told]:
        body = {
            **asking(self.described.name, list(ids), tokens),
            "logprobs": top,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
        }
        for choice in choices(self.server, body, closing):
            last, rows = None, choice.logprobs
            for at, text in enumerate(rows.tokens if rows else ()):
                assert rows is not None
                last = self._id(text)
                told = (rows.top_logprobs or [])[at : at + 1] or [None]
                yield Told(
                    last, [(self._id(t), p) for t, p in (told[0] or {}).items() if p is not None]
                )
            if choice.finish_reason == "stop" and last not in self.tokenizer.eos_ids:
                yield Told(self.end, [(self.end, 0.0)])

    def computed(self, ids: Sequence[int]) -> int | None:
        body = {**asking(self.described.name, list(ids), 1), "stream": False}
        usage = self.server.post("/v1/completions", body, ChoiceEvent).usage
        return usage.computed if usage else None

    def _id(self, text: str) -> int:
        number = text.removeprefix("token_id:")
        if number == text or not (number.isascii() and number.isdigit()) or len(number) > 9:
            raise self.server.broken(f"the token {text[:LONGEST_NAME]!r} where an id was asked for")
        return int(number)
