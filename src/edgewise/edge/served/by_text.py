"""Servers that take a text and tell texts: Ollama, LM Studio and mlx_lm.server.

Their pieces are given ids by the model's tokenizer; that it is theirs is proven by how many tokens
they count.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Annotated, Any

import msgspec

from edgewise.edge.base import PROBES
from edgewise.edge.served.dialect import (
    CONTEXT,
    Billed,
    ById,
    ChoiceEvent,
    Dialect,
    ListedModels,
    ServedModel,
    Told,
    asking,
    choices,
    chosen,
)
from edgewise.edge.served.server import Server
from edgewise.edge.vocabulary import bytes_of, ids_spelling
from edgewise.errors import EdgeError


class TextDialect(Dialect):
    """A server that takes a text, and tells texts."""

    def prove(self) -> bool:
        return all(self._count(text) == len(self._read(text)) for text in PROBES)

    def _read(self, text: str) -> list[int]:
        return self.tokenizer.encode_prompt(text)

    @abstractmethod
    def _count(self, text: str) -> int:
        """How many tokens the prompt `text` is to the server."""

    def text_of(self, ids: Sequence[int]) -> str:
        """The prompt that the server reads as `ids`, or as close to them as a text can be.

        It puts a BOS, and a SentencePiece vocabulary a blank, before the text by itself. Raises
        `EdgeError` for ids that end inside a character.
        """
        special, start = self.tokenizer.special, self.tokenizer.encode_prompt("")
        kept = ids[len(start) :] if start and list(ids[: len(start)]) == start else ids
        data = b"".join(
            special[one].encode() if one in special else self.tokenizer.piece(one) for one in kept
        )
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise EdgeError(
                f"The edge model's server at {self.server.url} takes text, and the answer stands "
                "inside a character",
                hint="name the model's file as the edge model",
                setting="edge",
            ) from error
        if text.startswith(" ") and self._read(text) != list(ids) == self._read(text[1:]):
            return text[1:]
        return text

    @cached_property
    def _by_bytes(self) -> Mapping[bytes, int]:
        """The id of each text. Of two of the same text it is the one that tokenizing gives."""
        tokenizer = self.tokenizer
        known = {text.encode(): token for token, text in tokenizer.special.items() if text}
        for token in range(tokenizer.size):
            piece = tokenizer.piece(token)
            if piece and (
                piece not in known or tokenizer.encode(piece.decode("utf-8", "replace")) == [token]
            ):
                known[piece] = token
        return known

    def told(
        self, text: bytes, logprob: float | None, top: Sequence[tuple[bytes, float | None]]
    ) -> Told | None:
        """A token by its bytes; None where no id has them. Candidates without an id are dropped."""
        token = self._by_bytes.get(text)
        if token is None:
            return None
        known = {self._by_bytes.get(one): p for one, p in top if p is not None}
        known.pop(None, None)
        if token not in known and logprob is not None:
            known[token] = logprob
        ranked = sorted(known.items(), key=lambda one: -one[1])
        return Told(token, [(one, p) for one, p in ranked if one is not None])

    def spelled(self, ids: Sequence[int], text: bytes) -> list[Told]:
        """The tokens of a text of which the server told no candidates."""
        found = ids_spelling(self.tokenizer, ids, text.decode("utf-8", "replace"))
        return [Told(token, [(token, 0.0)]) for token in found or ()]


class _Tag(msgspec.Struct):
    name: str


class _Tags(msgspec.Struct):
    models: list[_Tag]


class _Version(msgspec.Struct):
    version: str


class _Piece(msgspec.Struct, rename={"letters": "bytes"}):
    token: str
    logprob: float | None = None
    letters: list[Annotated[int, msgspec.Meta(ge=0, le=255)]] | None = None

    @property
    def data(self) -> bytes:
        return self.token.encode() if self.letters is None else bytes(self.letters)


class _Written(_Piece, rename={"letters": "bytes"}):
    top_logprobs: list[_Piece] = []


class _Generated(msgspec.Struct):
    """A line of `/api/generate`; `done` with the last."""

    response: str = ""
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    logprobs: list[_Written] | None = None
    error: str | None = None


class OllamaEdge(TextDialect):
    """`POST /api/generate` with `raw`; its GGUF, and so its tokenizer, lies on this disk."""

    program, top, most = "Ollama", 20, 20

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        if server.found("/api/version", _Version) is None:
            return None
        tags = server.found("/api/tags", _Tags)
        if tags is None:
            return None
        names = [tag.name for tag in tags.models]
        if model is not None and model not in names and f"{model}:latest" in names:
            model = f"{model}:latest"
        name = chosen(server, model, names)
        return cls(server, ServedModel(name, f"ollama:{name}", context or CONTEXT))

    def _count(self, text: str) -> int:
        body = {**self._body(text, 1, 0), "stream": False}
        return self.server.post("/api/generate", body, _Generated).prompt_eval_count or 0

    def stream(
        self, ids: Sequence[int], tokens: int, top: int, closing: ExitStack
    ) -> Iterator[Told]:
        written = list(ids)
        body = self._body(self.text_of(ids), tokens, top)
        for line in closing.enter_context(self.server.lines("/api/generate", body)):
            event = self.server.decoded(line, _Generated)
            if event.error is not None:
                raise self.server.broken(event.error[:200])
            for told in self._told(written, event):
                written.append(told.token)
                yield told
            if event.done:
                if event.done_reason == "stop":
                    yield Told(self.end, [(self.end, 0.0)])
                return

    def _told(self, written: Sequence[int], event: _Generated) -> list[Told]:
        """A character of several tokens comes with the candidates of its last one alone."""
        rows, text = event.logprobs or [], event.response.encode()
        if text and not rows:
            raise EdgeError(
                f"Ollama at {self.server.url} tells no logprobs",
                hint="it does since 0.12.11: update it, or name the model's file by ollama:NAME",
                setting="edge",
            )
        found = [
            self.told(row.data, row.logprob, [(one.data, one.logprob) for one in row.top_logprobs])
            for row in rows
        ]
        told = [one for one in found if one is not None]
        if len(told) == len(rows) and bytes_of(self.tokenizer, [one.token for one in told]) == text:
            return told
        return self.spelled(written, text)

    def _body(self, text: str, tokens: int, top: int) -> dict[str, Any]:
        options = {
            "num_predict": tokens,
            "num_ctx": self.described.context + 1,
            "temperature": 0,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": [],
        }
        return {
            "model": self.described.name,
            "prompt": text,
            "raw": True,
            "options": options,
            "think": False,
            "truncate": False,
            "shift": False,
            "stream": True,
            **({"logprobs": True, "top_logprobs": top} if top else {}),
        }


class LmStudioEdge(TextDialect):
    """`POST /v1/completions` as OpenAI has it; the GGUF lies on this disk."""

    program, top, most = "LM Studio", 10, 10

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        served = server.found("/v1/models", ListedModels)
        if served is None or not any(
            entry.owned_by == "organization_owner" for entry in served.data
        ):
            return None
        name = chosen(server, model, [entry.id for entry in served.data])
        return cls(server, ServedModel(name, f"lmstudio:{name}", context or CONTEXT))

    def _count(self, text: str) -> int:
        body = {**asking(self.described.name, text, 1), "stream": False}
        usage = self.server.post("/v1/completions", body, ChoiceEvent).usage
        return usage.prompt_tokens if usage else 0

    def stream(
        self, ids: Sequence[int], tokens: int, top: int, closing: ExitStack
    ) -> Iterator[Told]:
        body = {**asking(self.described.name, self.text_of(ids), tokens), "logprobs": top}
        for choice in choices(self.server, body, closing):
            if choice.text and choice.logprobs is None:
                raise EdgeError(
                    f"{self.program} at {self.server.url} tells no logprobs of a text that it "
                    "continues",
                    hint="name the model's file by lmstudio:NAME",
                    setting="edge",
                )
            rows = choice.logprobs
            for at, text in enumerate(rows.tokens if rows else ()):
                assert rows is not None
                tops = ((rows.top_logprobs or [])[at : at + 1] or [None])[0] or {}
                logprob = (rows.token_logprobs[at : at + 1] or [None])[0]
                told = self.told(text.encode(), logprob, [(t.encode(), p) for t, p in tops.items()])
                if told is None:
                    return
                yield told
            if choice.finish_reason == "stop":
                yield Told(self.end, [(self.end, 0.0)])


class _MlxToken(msgspec.Struct):
    top_logprobs: list[ById] = []


class _MlxLogprobs(msgspec.Struct):
    content: list[_MlxToken] = []


class _MlxChoice(msgspec.Struct):
    text: str = ""
    logprobs: _MlxLogprobs | None = None


class _MlxReply(msgspec.Struct):
    choices: list[_MlxChoice]
    usage: Billed


class MlxEdge(TextDialect):
    """`POST /v1/completions` of mlx_lm.server, which tells candidates in whole replies alone.

    So it is asked for a few tokens at a time. It takes text and tells ids.
    """

    program, top, most = "mlx_lm.server", 10, 10

    _CHUNK = 8

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        served = server.found("/v1/models", ListedModels)
        if served is None or any(entry.owned_by for entry in served.data):
            return None
        names = [entry.id for entry in served.data]
        name = chosen(server, model, names)
        return cls(server, ServedModel(name, name, context or CONTEXT))

    def _count(self, text: str) -> int:
        return self._reply(text, 1, 1).usage.prompt_tokens

    def computed(self, ids: Sequence[int]) -> int | None:
        return self._reply(self.text_of(ids), 1, 1).usage.computed

    def _reply(self, text: str, tokens: int, top: int) -> _MlxReply:
        body = asking(self.described.name, text, tokens)
        more = {"logprobs": True, "top_logprobs": top, "stream": False}
        return self.server.post("/v1/completions", {**body, **more}, _MlxReply)

    def stream(
        self, ids: Sequence[int], tokens: int, top: int, closing: ExitStack
    ) -> Iterator[Told]:
        written = list(ids)
        while len(written) - len(ids) < tokens:
            left = tokens - (len(written) - len(ids))
            reply = self._reply(self.text_of(written), min(left, self._CHUNK), top)
            if len(reply.choices) != 1:
                raise self.server.broken(f"{len(reply.choices)} choices")
            rows = reply.choices[0].logprobs
            told = [self._told(row) for row in rows.content] if rows else []
            if not told:
                raise self.server.broken("no candidates of a token")
            made = [one.token for one in told if one.token not in self.tokenizer.eos_ids]
            text = bytes_of(self.tokenizer, made).decode("utf-8", "replace")
            # At a tie the server may have written another than the first of the likeliest.
            same = text.lstrip() == reply.choices[0].text.lstrip()
            for one in told if same else told[:1]:
                written.append(one.token)
                yield one
                if one.token in self.tokenizer.eos_ids:
                    return

    def _told(self, row: _MlxToken) -> Told:
        known = [(one.id, one.logprob) for one in row.top_logprobs if one.logprob is not None]
        ranked = sorted(known, key=lambda one: -one[1])
        if not ranked or not 0 <= ranked[0][0] < self.tokenizer.size:
            raise self.server.broken("no candidates of a token")
        return Told(ranked[0][0], ranked)
