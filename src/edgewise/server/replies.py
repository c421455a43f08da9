"""From events to OpenAI's replies: ids, chunks, usage, logprobs, provenance."""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.events import (
    Candidate,
    Event,
    Finished,
    FinishReason,
    Pending,
    RolledBack,
    Token,
    Usage,
)
from edgewise.prompts import Prompt
from edgewise.server.answering import Ticket
from edgewise.server.errors import ApiError
from edgewise.server.requests import ChatRequest, CompletionRequest, ignored


class Framing:
    """Makes server-sent events of a stream's chunks."""

    end: ClassVar[str | None] = "[DONE]"
    """The last event's data, if there is one."""

    named: ClassVar[bool] = False
    """Whether an event has its `type` as its name."""

    def frame(self, chunk: dict[str, Any]) -> dict[str, str]:
        """An event's fields."""
        data = msgspec.json.encode(chunk).decode()
        return {"event": chunk["type"], "data": data} if self.named else {"data": data}

    def failed(self, error: ApiError) -> dict[str, Any]:
        """The chunk for an error after the answer has begun."""
        return error.body()


class Writer(Framing, ABC):
    """The reply to one request."""

    ignored: Sequence[str] = ()
    """Ignored fields of the request."""

    async def read(self, prompt: Prompt, ticket: Ticket) -> None:
        """Called with the prompt before any event, for replies that tell more of it."""

    @abstractmethod
    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """The reply in one piece."""

    @abstractmethod
    def chunks(self, events: AsyncGenerator[Event]) -> AsyncGenerator[dict[str, Any]]:
        """The reply as it comes; closes `events`."""


def usage(found: Usage) -> dict[str, Any]:
    """OpenAI's token counts, and Edgewise's own under `edgewise`."""
    written = found.edge_tokens + found.cloud_tokens
    own = msgspec.to_builtins(found)
    prompt, cached = own.pop("prompt_tokens"), own.pop("cached_tokens")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
        "edgewise": own,
    }


class Shown:
    """Tokens in the form of the APIs."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def text(self, token: int) -> str:
        """One token's text; parts of characters become U+FFFD."""
        return self._tokenizer.piece(token).decode("utf-8", "replace")

    def candidate(self, token: int, logprob: float) -> dict[str, Any]:
        """Text, logprob in nats, bytes."""
        piece = list(self._tokenizer.piece(token))
        return {"token": self.text(token), "logprob": logprob, "bytes": piece}

    def candidates(self, found: Sequence[Candidate], most: int | None = None) -> list[Any]:
        """Best first."""
        return [self.candidate(one.id, one.logprob) for one in found[:most]]

    def logprob(self, token: Token, most: int) -> dict[str, Any] | None:
        """A token with its writer's `most` likeliest; None if its logprob is not known."""
        if token.logprob is None:
            return None
        known = token.cloud if token.source == "cloud" else token.edge
        shown = self.candidate(token.id, token.logprob)
        return {**shown, "top_logprobs": self.candidates(known, most)}

    def provenance(self, token: Token) -> dict[str, Any]:
        """Who wrote a token, and why."""
        return {
            "index": token.index,
            "id": token.id,
            "text": self.text(token.id),
            "source": token.source,
            "reason": token.reason,
            "score": token.score,
            "threshold": token.threshold,
            "seconds": token.seconds,
            "wait": token.wait,
            "edge": self.candidates(token.edge),
            "cloud": self.candidates(token.cloud),
        }


def timing(event: Finished) -> dict[str, float]:
    """Seconds."""
    return {"ttft": event.timing.ttft, "total": event.timing.total, "wait": event.timing.wait}


class ReplyWriter(Writer):
    """Replies of `/chat/completions` and `/completions`, which differ in their choices only."""

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(
        self,
        request: ChatRequest | CompletionRequest,
        tokenizer: Tokenizer,
    ) -> None:
        self.shown = Shown(tokenizer)
        self._request = request
        self.prompt_ids: Sequence[int] = ()
        """The prompt's ids, once it was read."""
        self.ignored = list(ignored(request))
        options = request.stream_options
        self._with_usage = options is not None and options.include_usage
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._head: dict[str, Any] = {
            "id": self.id,
            "created": int(time.time()),
            "model": request.model,
        }

    async def read(self, prompt: Prompt, ticket: Ticket) -> None:
        self.prompt_ids = prompt.ids

    @abstractmethod
    def piece(self, text: str, token: Token | None = None) -> dict[str, Any]:
        """A choice's fields for more text, with the logprobs of `token`."""

    @abstractmethod
    def body(self, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        """A choice's fields for a whole answer."""

    def pieces(self, text: str, token: Token | None = None, *, end: bool) -> list[dict[str, Any]]:
        """As `piece`, in one or more choices; at the `end` with what was held back."""
        return [self.piece(text, token)]

    def finish_reason(self, reason: FinishReason) -> str:
        """Why the answer ended, in the API's words."""
        return reason

    def opening(self) -> dict[str, Any] | None:
        """A choice's fields before there is any text."""
        return None

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """The reply in one piece."""
        end = next(event for event in reversed(events) if isinstance(event, Finished))
        tokens = [event for event in events if isinstance(event, Token)]
        text = "".join(token.text for token in tokens) + end.text
        body = self.body(text, tokens)
        choice = {"index": 0, **body, **self._ended(end)}
        reply = {
            **self._head,
            "object": self.kind,
            "choices": [choice],
            "usage": usage(end.usage),
        }
        if self._request.edgewise.provenance:
            shown = [self.shown.provenance(token) for token in tokens]
            reply["edgewise"] = {**self._prompt(), "tokens": shown, "timing": timing(end)}
        return reply

    async def chunks(self, events: AsyncGenerator[Event]) -> AsyncGenerator[dict[str, Any]]:
        """The reply as it comes; closes `events`."""
        request = self._request
        told = request.edgewise.provenance
        opening = self.opening()
        if told:
            yield self._chunk(opening or self.piece(""), self._prompt())
        elif opening is not None:
            yield self._chunk(opening)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Token):
                    own = {"token": self.shown.provenance(event)} if told else None
                    if event.text or own or request.logprobs not in (None, False):
                        *first, last = self.pieces(event.text, event, end=False)
                        for piece in first:
                            yield self._chunk(piece)
                        yield self._chunk(last, own)
                elif isinstance(event, Pending):
                    guess = {"index": event.index, "text": event.text}
                    yield self._chunk(self.piece(""), {"pending": guess})
                elif isinstance(event, RolledBack):
                    yield self._chunk(self.piece(""), {"rolled_back": {"index": event.index}})
                elif isinstance(event, Finished):
                    own = {"timing": timing(event)} if told else None
                    *first, last = self.pieces(event.text, end=True)
                    for piece in first:
                        yield self._chunk(piece)
                    yield self._chunk({**last, **self._ended(event)}, own)
                    if self._with_usage:
                        yield {
                            **self._chunk({}),
                            "choices": [],
                            "usage": usage(event.usage),
                        }

    def _prompt(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self.prompt_ids)} if self.prompt_ids else {}

    def _ended(self, end: Finished) -> dict[str, Any]:
        reason = self.finish_reason(end.finish_reason)
        return {"finish_reason": reason, "stop_reason": end.stop}

    def _chunk(self, choice: dict[str, Any], own: dict[str, Any] | None = None) -> dict[str, Any]:
        made: dict[str, Any] = {**self._head, "object": self.chunk_kind}
        if self._with_usage:
            made["usage"] = None
        made["choices"] = [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]
        return made if own is None else {**made, "edgewise": own}
