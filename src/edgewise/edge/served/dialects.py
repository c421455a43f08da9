"""What servers call the same things: how each is recognised, asked to continue, and read.

By ids: llama-server and vLLM. By text: Ollama, LM Studio and mlx_lm.server, whose pieces are given
ids by the model's tokenizer; that it is theirs is proven by how many tokens they count.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.served.server import Server
from edgewise.edge.vocabulary import bytes_of, ids_spelling
from edgewise.errors import EdgeError, ModelError, UsageError

_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_MOST_SHOWN, _LONGEST_NAME = 8, 100
_CONTEXT = 4096
"""Tokens, where a server does not say how many it holds."""


class Told(NamedTuple):
    """The token that a server wrote, and the likeliest there with their logprobs.

    A server that says nothing of a token is taken to be sure of it: one candidate, at 0.
    """

    token: int
    top: Sequence[tuple[int, float]]


class Described(NamedTuple):
    """A served model.

    `address` is where its tokenizer may be, `context` the most ids of an answer and its prompt;
    `slots` is how many answers it writes at once, and None where the others wait.
    """

    name: str
    address: str
    context: int
    slots: int | None = None
    size: int | None = None
    hidden_size: int = 0
    parameters: int | None = None


class Dialect(ABC):
    """A server's requests and replies. Every method may raise `EdgeError`."""

    program: ClassVar[str]
    top: ClassVar[int]
    """Candidates of a token that it is asked for."""

    most: ClassVar[int]
    """The most that it tells."""

    tokenizer: Tokenizer

    def __init__(self, server: Server, described: Described) -> None:
        self.server, self.described = server, described

    @classmethod
    @abstractmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        """The dialect of `server`, with the `model` it serves; None where it is another program."""

    @abstractmethod
    def prove(self) -> bool:
        """Whether the server and `tokenizer` read the same texts alike."""

    @abstractmethod
    def stream(
        self, ids: Sequence[int], tokens: int, top: int, closing: ExitStack
    ) -> Iterator[Told]:
        """What the server writes greedily behind `ids`, at most so many `tokens`.

        It ends early where the server says nothing of a token. `closing` ends the request.
        """

    def asked(self, ids: Sequence[int], top: int) -> Told:
        """The one token behind `ids`, where a stream did not tell it."""
        with ExitStack() as closing:
            for told in self.stream(ids, 1, top, closing):
                return told
        raise self.server.broken("no candidates of a token")

    @cached_property
    def end(self) -> int:
        """The id that stands for the end of an answer where a server only says that it ended."""
        ends = self.tokenizer.eos_ids
        named = self.tokenizer.special_text("eos")
        return next((i for i in sorted(ends) if self.tokenizer.special.get(i) == named), min(ends))


class _Generation(msgspec.Struct):
    n_ctx: _Count


class _Props(msgspec.Struct):
    model_path: str
    total_slots: _Count
    default_generation_settings: _Generation


class _Meta(msgspec.Struct):
    n_vocab: int | None = None
    n_embd: int = 0
    n_params: int | None = None


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""
    root: str | None = None
    max_model_len: _Count | None = None
    meta: _Meta | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Ids(msgspec.Struct):
    tokens: list[int]


class _Top(msgspec.Struct):
    """JSON has no infinity: an id of no probability has no number."""

    id: int
    logprob: float | None = None


class _Row(msgspec.Struct):
    id: int
    top_logprobs: list[_Top]


class _Event(msgspec.Struct):
    """`tokens_predicted` counts those too of which the server says nothing."""

    tokens: list[int] = []
    tokens_predicted: int = 0
    completion_probabilities: list[_Row] = []


class LlamaServer(Dialect):
    """`POST /completion` of llama.cpp's server, by ids."""

    # 100 are 9 KB of JSON, about 5% of a 135M model's time.
    program, top, most = "llama-server", 100, 1 << 20

    _ENOUGH = 1e3

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        props = server.found("/props", _Props)
        if props is None:
            return None
        served = server.found("/v1/models", _Models)
        entries = served.data if served else []
        meta = next((entry.meta for entry in entries if entry.meta), _Meta())
        if model is not None:
            _chosen(server, model, [entry.id for entry in entries])
        described = Described(
            props.model_path.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf"),
            props.model_path,
            # One place is for the token that the server writes.
            _fitting(context, props.default_generation_settings.n_ctx - 1),
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


class _Logprobs(msgspec.Struct):
    """OpenAI's of `/v1/completions`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Choice(msgspec.Struct):
    text: str = ""
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Chunk(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class Vllm(Dialect):
    """`POST /v1/completions` of vLLM, by ids that are written as `token_id:123`."""

    program, top, most = "vLLM", 20, 20

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        served = server.found("/v1/models", _Models)
        if served is None or not any(entry.owned_by == "vllm" for entry in served.data):
            return None
        name = _chosen(server, model, [entry.id for entry in served.data])
        entry = next(entry for entry in served.data if entry.id == name)
        held = None if entry.max_model_len is None else entry.max_model_len - 1
        return cls(server, Described(name, entry.root or name, _fitting(context, held)))

    def prove(self) -> bool:
        return all(self._ids(text) == self.tokenizer.encode(text) for text in PROBES)

    def _ids(self, text: str) -> list[int]:
        body = {"model": self.described.name, "prompt": text, "add_special_tokens": False}
        return self.server.post("/tokenize", body, _Ids).tokens

    def stream(
        self, ids: Sequence[int], tokens: int, top: int, closing: ExitStack
    ) -> Iterator[Told]:
        body = {
            **_asking(self.described.name, list(ids), tokens),
            "logprobs": top,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
        }
        for choice in _choices(self.server, body, closing):
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

    def _id(self, text: str) -> int:
        number = text.removeprefix("token_id:")
        if number == text or not (number.isascii() and number.isdigit()) or len(number) > 9:
            raise self.server.broken(
                f"the token {text[:_LONGEST_NAME]!r} where an id was asked for"
            )
        return int(number)


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


class Ollama(TextDialect):
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
        name = _chosen(server, model, names)
        return cls(server, Described(name, f"ollama:{name}", context or _CONTEXT))

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


class LmStudio(TextDialect):
    """`POST /v1/completions` as OpenAI has it; the GGUF lies on this disk."""

    program, top, most = "LM Studio", 10, 10

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        served = server.found("/v1/models", _Models)
        if served is None or not any(
            entry.owned_by == "organization_owner" for entry in served.data
        ):
            return None
        name = _chosen(server, model, [entry.id for entry in served.data])
        return cls(server, Described(name, f"lmstudio:{name}", context or _CONTEXT))

    def _count(self, text: str) -> int:
        body = {**_asking(self.described.name, text, 1), "stream": False}
        usage = self.server.post("/v1/completions", body, _Chunk).usage
        return usage.prompt_tokens if usage else 0

    def stream(
        self, ids: Sequence[int], tokens: int, top: int, closing: ExitStack
    ) -> Iterator[Told]:
        body = {**_asking(self.described.name, self.text_of(ids), tokens), "logprobs": top}
        for choice in _choices(self.server, body, closing):
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
    top_logprobs: list[_Top] = []


class _MlxLogprobs(msgspec.Struct):
    content: list[_MlxToken] = []


class _MlxChoice(msgspec.Struct):
    text: str = ""
    logprobs: _MlxLogprobs | None = None


class _MlxReply(msgspec.Struct):
    choices: list[_MlxChoice]
    usage: _Usage


class Mlx(TextDialect):
    """`POST /v1/completions` of mlx_lm.server, which tells candidates in whole replies alone.

    So it is asked for a few tokens at a time. It takes text and tells ids.
    """

    program, top, most = "mlx_lm.server", 10, 10

    _CHUNK = 8

    @classmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        served = server.found("/v1/models", _Models)
        if served is None or any(entry.owned_by for entry in served.data):
            return None
        names = [entry.id for entry in served.data]
        name = _chosen(server, model, names)
        return cls(server, Described(name, name, context or _CONTEXT))

    def _count(self, text: str) -> int:
        return self._reply(text, 1, 1).usage.prompt_tokens

    def _reply(self, text: str, tokens: int, top: int) -> _MlxReply:
        body = _asking(self.described.name, text, tokens)
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
        if not ranked:
            raise self.server.broken("no candidates of a token")
        return Told(ranked[0][0], ranked)


DIALECTS: tuple[type[Dialect], ...] = (LlamaServer, Ollama, Vllm, LmStudio, Mlx)


def dialect_of(server: Server, model: str | None, context: int | None) -> Dialect:
    """What `server` is, by trying. Raises `EdgeError`, or `UsageError` for a model it lacks."""
    for kind in DIALECTS:
        if (found := kind.find(server, model, context)) is not None:
            return found
    raise EdgeError(
        f"What runs at {server.url} is none of {', '.join(kind.program for kind in DIALECTS)}",
        hint="give the address of one of them, or name a model's file",
        setting="edge",
    )


def require_proven(dialect: Dialect) -> None:
    """Raises `ModelError` where the server reads texts otherwise than the tokenizer found here."""
    if not dialect.prove():
        raise ModelError(
            f"The edge model's server at {dialect.server.url} has another vocabulary than the "
            f"tokenizer that was found for {dialect.described.name[:_LONGEST_NAME]!r}",
            hint="name its own, or start the server again if the model's file has changed",
            setting="edge_tokenizer",
        )


def _chosen(server: Server, model: str | None, names: Sequence[str]) -> str:
    """The model that is named, or the only one."""
    if model is None and len(names) == 1:
        return names[0]
    if model is not None and model in names:
        return model
    some = ", ".join(repr(name[:_LONGEST_NAME]) for name in names[:_MOST_SHOWN])
    lacks = "serves several models" if model is None else f"serves no model {model!r}"
    raise UsageError(
        f"The edge model's server at {server.url} {lacks if names else 'serves no model'}",
        hint=f"name one: {some}" if names else "load one there",
        setting="edge_model" if names else "edge",
    )


def _fitting(wanted: int | None, held: int | None) -> int:
    if wanted is not None and held is not None and wanted > held:
        raise UsageError(
            f"The edge model's server holds {held} tokens a slot, not {wanted}",
            hint="start it with a larger context, or lower yours",
            setting="ctx",
        )
    return wanted or held or _CONTEXT


def _asking(model: str, prompt: str | list[int], tokens: int) -> dict[str, Any]:
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens}
    return {**asked, "temperature": 0, "stream": True}


def _choices(server: Server, body: Mapping[str, Any], closing: ExitStack) -> Iterator[_Choice]:
    """The choices of OpenAI's events, one each."""
    for line in closing.enter_context(server.lines("/v1/completions", body)):
        if not line.startswith(b"data:"):
            continue
        if (data := line[5:].strip()) == b"[DONE]":
            return
        choices = server.decoded(data, _Chunk).choices
        if len(choices) > 1:
            raise server.broken(f"{len(choices)} choices")
        yield from choices
