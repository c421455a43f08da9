"""Ollama: `POST /api/generate` with `raw`, by text."""

import logging
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any

import msgspec

from edgewise.edge.served.dialect import (
    CONTEXT,
    LONGEST_NAME,
    Count,
    Dialect,
    NextToken,
    ServedModel,
    TextDialect,
    chosen,
    fitting,
)
from edgewise.edge.served.server import Server
from edgewise.edge.vocabulary import bytes_of, ids_of_text
from edgewise.errors import EdgeError, UsageError

_log = logging.getLogger(__name__)


class _Details(msgspec.Struct):
    context_length: Count | None = None


class _Tag(msgspec.Struct):
    """`remote_host` is where a model runs of which Ollama has nothing but the name."""

    name: str
    remote_host: str = ""
    context_length: Count | None = None
    details: _Details = msgspec.field(default_factory=_Details)


class _Tags(msgspec.Struct):
    models: list[_Tag]


class _Shown(msgspec.Struct):
    """What a Modelfile adds to the weights; the context of a `parameters` holds."""

    template: str = ""
    system: str = ""
    parameters: str = ""


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
        tags = server.get("/api/tags", _Tags)
        if tags is None:
            return None
        known = {tag.name: tag for tag in tags.models}
        near = [name for name in known if not known[name].remote_host]
        name = chosen(server, model, list(known) if model is not None else near)
        if name not in near:
            raise UsageError(
                f"Ollama sends what {name[:LONGEST_NAME]!r} is asked to "
                f"{known[name].remote_host[:LONGEST_NAME]!r}, so it is no edge model",
                hint="name it as the cloud, or as the edge one that was pulled",
                setting="edge_model",
            )
        own = known[name].details.context_length
        # Without one, Ollama's own holds, which other programs use too: none loads it anew.
        context = context and fitting(context, own and own - 1)
        return cls(server, ServedModel(name, f"ollama:{name}", context or 0))

    def context(self) -> int:
        name, wanted = self.described.name, self.described.context or None
        running = self.server.get("/api/ps", _Tags) or _Tags([])
        held = {tag.name: tag.context_length for tag in running.models}.get(name)
        with suppress(EdgeError):  # nothing depends on it
            shown = self.server.post("/api/show", {"model": name}, _Shown)
            own = [key.upper() for key, value in msgspec.structs.asdict(shown).items() if value]
            _warn(self.server.url, name, ", ".join(own))
        # One place is for the token that the server writes.
        return fitting(wanted, held - 1) if held else wanted or CONTEXT - 1

    def count(self, text: str) -> int:
        body = {**self._body(text, 1, 0), "stream": False}
        return self.server.post("/api/generate", body, _Generated).prompt_eval_count or 0

    def stream(self, ids: Sequence[int], tokens: int, top: int, seed: int) -> Generator[NextToken]:
        written = list(ids)
        body = self._body(self.prompt(ids), tokens, top)
        with self.server.lines("/api/generate", body) as lines:
            for line in lines:
                event = self.server.decoded(line, _Generated)
                if event.error is not None:
                    raise self.server.broken(event.error[:200])
                for token in self._tokens_of(event, written):
                    written.append(token.token)
                    yield token
                    lines.token()
                if event.done:
                    if event.done_reason == "stop":
                        yield self.end
                    return

    def _tokens_of(self, event: _Generated, before: Sequence[int]) -> list[NextToken]:
        """A character of several tokens comes with the candidates of its last one alone."""
        rows, text = event.logprobs or [], event.response
        if text and not rows:
            raise self.server.broken("no logprobs, which Ollama has since 0.12.11")
        read = [
            self.token_of(
                row.data, row.logprob, [(one.data, one.logprob) for one in row.top_logprobs]
            )
            for row in rows
        ]
        tokens = [one for one in read if one is not None]
        spelled = bytes_of(self.tokenizer, [one.token for one in tokens])
        if len(tokens) == len(rows) and spelled == text.encode():
            return tokens
        ids = ids_of_text(self.tokenizer, before, text) or ()
        return [NextToken(token, [(token, 0.0)]) for token in ids]

    def _body(self, prompt: list[int] | str, tokens: int, top: int) -> dict[str, Any]:
        options = {
            "num_predict": tokens,
            "temperature": 0,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": [],
        }
        if context := self.described.context:
            options["num_ctx"] = context + 1
        return {
            "model": self.described.name,
            "prompt": prompt,
            "raw": True,
            "options": options,
            "think": False,
            "truncate": False,
            "stream": True,
            **({"logprobs": True, "top_logprobs": top} if top else {}),
        }


@cache
def _warn(url: str, name: str, own: str) -> None:
    """Once for each model of a process."""
    if own:
        _log.warning(
            "the %s that Ollama has for %r are not used, but for num_ctx and num_thread: the chat "
            "template is that of the model's file",
            own,
            name[:LONGEST_NAME],
        )
