"""Ollama: `POST /api/generate` with `raw`, by text."""

from collections.abc import Generator, Sequence
from typing import Annotated, Any

import msgspec

from edgewise.edge.served.dialect import (
    CONTEXT,
    Dialect,
    NextToken,
    ServedModel,
    TextDialect,
    chosen,
)
from edgewise.edge.served.server import Server
from edgewise.edge.vocabulary import bytes_of, ids_of_text


class _Tag(msgspec.Struct):
    name: str


class _Tags(msgspec.Struct):
    models: list[_Tag]


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
        names = [tag.name for tag in tags.models]
        if model is not None and model not in names and f"{model}:latest" in names:
            model = f"{model}:latest"
        name = chosen(server, model, names)
        return cls(server, ServedModel(name, f"ollama:{name}", context or CONTEXT))

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
            "num_ctx": self.described.context + 1,
            "temperature": 0,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": [],
        }
        return {
            "model": self.described.name,
            "prompt": prompt,
            "raw": True,
            "options": options,
            "think": False,
            "truncate": False,
            "shift": False,
            "stream": True,
            **({"logprobs": True, "top_logprobs": top} if top else {}),
        }
