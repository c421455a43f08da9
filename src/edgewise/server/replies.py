"""From events to what OpenAI's clients read: ids, chunks, usage, logprobs, provenance."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from edgewise.edge.base import Tokenizer
from edgewise.events import Candidate, Event, Finished, Token, Usage


def head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """The fields that every reply begins with."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def usage(found: Usage) -> dict[str, Any]:
    """Token counts; what the cloud wrote under `edgewise`."""
    written = found.edge_tokens + found.cloud_tokens
    return {
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": written,
        "total_tokens": found.prompt_tokens + written,
        "prompt_tokens_details": {"cached_tokens": found.cached_tokens},
        "edgewise": {
            "cloud_tokens": found.cloud_tokens,
            "edge_tokens": found.edge_tokens,
            "wasted_tokens": found.wasted_tokens,
            "cloud_share": found.cloud_share,
            "cloud_calls": found.cloud_calls,
            "failed_calls": found.failed_calls,
        },
    }


def text_of(events: Sequence[Event]) -> str:
    """The whole answer."""
    return "".join(event.text for event in events if isinstance(event, Token | Finished))


def finished(events: Sequence[Event]) -> Finished:
    """The last event of a whole answer."""
    return next(event for event in reversed(events) if isinstance(event, Finished))


class Shown:
    """Tokens as clients are shown them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def candidate(self, token: int, logprob: float) -> dict[str, Any]:
        """Text, logprob in nats, bytes."""
        piece = self._tokenizer.piece(token)
        text = piece.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(piece)}

    def candidates(self, found: Sequence[Candidate], most: int | None = None) -> list[Any]:
        """Best first."""
        return [self.candidate(one.id, one.logprob) for one in found[:most]]

    def logprob(self, token: Token, most: int) -> dict[str, Any] | None:
        """A chat answer's token with its writer's `most` likeliest; None where it did not say."""
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
            "text": self._tokenizer.piece(token.id).decode("utf-8", "replace"),
            "source": token.source,
            "reason": token.reason,
            "score": token.score,
            "seconds": token.seconds,
            "wait": token.wait,
            "edge": self.candidates(token.edge),
            "cloud": self.candidates(token.cloud),
        }

    def whole_provenance(self, events: Sequence[Event]) -> dict[str, Any]:
        """Of a whole answer, with its times."""
        tokens = [self.provenance(event) for event in events if isinstance(event, Token)]
        return {"tokens": tokens, "timing": timing(finished(events))}


def timing(event: Finished) -> dict[str, float]:
    """Seconds."""
    return {"ttft": event.timing.ttft, "total": event.timing.total, "wait": event.timing.wait}
