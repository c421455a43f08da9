"""Servers with OpenAI's `POST /v1/completions`."""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, ClassVar

import msgspec

from edgewise.edge.served.dialect import (
    LONGEST_NAME,
    Amount,
    ById,
    Dialect,
    Ids,
    ListedModels,
    NextToken,
    ServedModel,
    TextDialect,
    candidates,
    chosen,
    fitting,
)
from edgewise.edge.served.server import Server
from edgewise.edge.vocabulary import bytes_of

_Top = Mapping[str, float | None]
"""Logprobs of candidates by their text."""


class _Content(msgspec.Struct):
    top_logprobs: list[ById] = []


class _Logprobs(msgspec.Struct):
    """Lists by token; `content` is what mlx_lm.server has instead."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[_Content] = []

    def by_token(self) -> Iterator[tuple[str, float | None, _Top]]:
        logprobs = chain(self.token_logprobs, repeat(None))
        tops = chain(self.top_logprobs or (), repeat(None))
        for token, logprob, top in zip(self.tokens, logprobs, tops, strict=False):
            yield token, logprob, top or {}


class _Choice(msgspec.Struct):
    text: str = ""
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Amount
    prompt_tokens_details: dict[str, Amount | None] | None = None


class _Reply(msgspec.Struct):
    """A whole reply, or an event of a stream."""

    choices: list[_Choice]
    usage: _Usage | None = None


class LmStudioEdge(TextDialect):
    """Uses text prompts; the GGUF is on this disk. Similar servers are subclasses."""

    program, top, most = "LM Studio", 10, 10
    owner: ClassVar[str] = "organization_owner"
    """Its models' `owned_by`."""

    place: ClassVar[str] = "lmstudio:"
    """Prefix that makes a model's name an address on this disk."""

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        listed = server.get("/v1/models", ListedModels)
        if listed is None or cls.owner not in ({one.owned_by for one in listed.data} or {""}):
            return None
        name = chosen(server, model, [entry.id for entry in listed.data])
        entry = next(entry for entry in listed.data if entry.id == name)
        # One place is for the token that the server writes.
        held = entry.max_model_len and entry.max_model_len - 1
        address = f"{cls.place}{entry.root or name}"
        return cls(server, ServedModel(name, address, fitting(context, held)))

    def count(self, text: str) -> int:
        usage = self._usage(text)
        return usage.prompt_tokens if usage else 0

    def computed(self, ids: Sequence[int]) -> int | None:
        usage = self._usage(self.prompt(ids))
        if usage is None or usage.prompt_tokens_details is None:
            return None
        cached = usage.prompt_tokens_details.get("cached_tokens")
        return None if cached is None else usage.prompt_tokens - cached

    def _usage(self, prompt: list[int] | str) -> _Usage | None:
        return self._reply(self._body(prompt, 1)).usage

    def _reply(self, body: Mapping[str, Any]) -> _Reply:
        return self.server.post("/v1/completions", {**body, "stream": False}, _Reply)

    def _body(self, prompt: list[int] | str, tokens: int) -> dict[str, Any]:
        named = {"model": self.described.name, "prompt": prompt, "max_tokens": tokens}
        return {**named, "temperature": 0, "stream": True}

    def stream(self, ids: Sequence[int], tokens: int, top: int, seed: int) -> Generator[NextToken]:
        body = {**self._body(self.prompt(ids), tokens), "logprobs": top}
        last = None
        with self.server.lines("/v1/completions", body) as lines:
            for choice in self._choices(lines):
                rows = choice.logprobs
                if choice.text and (rows is None or not rows.tokens):
                    raise self.server.broken(f"{self.program} reports no logprobs of this text")
                for row in rows.by_token() if rows else ():
                    token = self._token(*row)
                    if token is None:
                        return
                    yield token
                    lines.token()
                    last = token.token
                if choice.finish_reason == "stop" and last not in self.tokenizer.eos_ids:
                    yield self.end

    def _choices(self, lines: Iterable[bytes]) -> Iterator[_Choice]:
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            if (data := line[5:].strip()) == b"[DONE]":
                return
            yield from self._only(self.server.decoded(data, _Reply))

    def _only(self, reply: _Reply) -> list[_Choice]:
        if len(reply.choices) > 1:
            raise self.server.broken(f"{len(reply.choices)} choices")
        return reply.choices

    def _token(self, text: str, logprob: float | None, top: _Top) -> NextToken | None:
        """A token; None where no id has its text."""
        return self.token_of(text.encode(), logprob, [(t.encode(), p) for t, p in top.items()])


class VllmEdge(LmStudioEdge):
    """Uses ids, which vLLM writes as `token_id:123`."""

    program, top, most = "vLLM", 20, 20
    owner, place, takes_text = "vllm", "", False

    def reads_alike(self, text: str) -> bool:
        body = {"model": self.described.name, "prompt": text, "add_special_tokens": False}
        return self.server.post("/tokenize", body, Ids).tokens == self.tokenizer.encode(text)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        return list(ids)

    def _body(self, prompt: list[int] | str, tokens: int) -> dict[str, Any]:
        ids = {"return_tokens_as_token_ids": True, "skip_special_tokens": False}
        # Else that of the model's generation_config.json, such as 1.1.
        return {**super()._body(prompt, tokens), **ids, "repetition_penalty": 1.0}

    def _token(self, text: str, logprob: float | None, top: _Top) -> NextToken:
        return NextToken(self._id(text), [(self._id(one), p) for one, p in top.items()])

    def _id(self, text: str) -> int:
        number = re.fullmatch("token_id:([0-9]{1,9})", text)
        if number is None:
            raise self.server.broken(f"the token {text[:LONGEST_NAME]!r} where an id was asked for")
        return int(number[1])


class MlxEdge(LmStudioEdge):
    """Reports ids, but candidates only in whole replies: asks for a few tokens at a time."""

    program = "mlx_lm.server"
    owner, place = "", ""

    _CHUNK = 8

    def stream(self, ids: Sequence[int], tokens: int, top: int, seed: int) -> Generator[NextToken]:
        written, end = list(ids), len(ids) + tokens
        while len(written) < end:
            body = self._body(self.prompt(written), min(end - len(written), self._CHUNK))
            reply = self._reply({**body, "logprobs": True, "top_logprobs": top})
            for token in self._tokens(self._only(reply)):
                written.append(token.token)
                yield token
                if token.token in self.tokenizer.eos_ids:
                    return

    def _tokens(self, choices: Sequence[_Choice]) -> list[NextToken]:
        rows = choices[0].logprobs if choices else None
        tokens = [self._likeliest(row.top_logprobs) for row in rows.content] if rows else []
        if not tokens:
            raise self.server.broken("no candidates of a token")
        ends = self.tokenizer.eos_ids
        data = bytes_of(self.tokenizer, [one.token for one in tokens if one.token not in ends])
        # At a tie the server may have written another than the first of the likeliest.
        same = data.decode("utf-8", "replace").lstrip() == choices[0].text.lstrip()
        return tokens if same else tokens[:1]

    def _likeliest(self, top: Sequence[ById]) -> NextToken:
        known = [one for one in top if one.logprob is not None]
        best = max(known, key=lambda one: one.logprob or 0.0, default=None)
        if best is None or not 0 <= best.id < self.tokenizer.size:
            raise self.server.broken("no candidates of a token")
        return NextToken(best.id, candidates(top))
