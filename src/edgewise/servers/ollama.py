"""Ollama, by text: an edge model by raw `POST /api/generate`, a cloud model by `/api/chat`."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from edgewise.errors import UsageError
from edgewise.servers.base import (
    CONTEXT,
    GREEDY,
    LONGEST_NAME,
    Count,
    EdgeServer,
    Event,
    Fault,
    NextToken,
    Request,
    ServedModel,
    TextContinuation,
    TextServer,
    WantedStream,
    WantedText,
    chosen,
    decoded,
    fitting,
    optional,
)
from edgewise.servers.replies import AssistantMessage, text_of, was_ended

# With a penalty, the token that is written would be another than the likeliest.
_NO_PENALTIES: dict[str, Any] = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), 0.0),
    "repeat_penalty": 1.0,
    "stop": [],
}

_Length = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class _Details(msgspec.Struct):
    context_length: _Length | None = None


class _Tag(msgspec.Struct):
    """A model in Ollama's list; `remote_host` is set for a model that runs on another host."""

    name: str
    remote_host: str = ""
    context_length: _Length | None = None
    details: _Details = msgspec.field(default_factory=_Details)


class _Tags(msgspec.Struct):
    models: list[_Tag]


class _Shown(msgspec.Struct):
    """What a Modelfile adds to the weights; Ollama still applies `num_ctx` and `num_thread`."""

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
    """A line of `/api/generate` or a reply of `/api/chat`; `done` is True in the last line."""

    response: str = ""
    message: AssistantMessage | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: Count | None = None
    eval_count: Count | None = None
    logprobs: list[_Written] | None = None
    error: str | None = None


class OllamaServer(EdgeServer):
    """Ollama as the server of an edge model, by text prompts to which it adds no chat template."""

    program, top, most, takes_text, joins = "Ollama", 20, 20, True, True
    asks = (Request("/api/tags"),)

    def describe(
        self, url: str, model: str | None, context: int | None, *replies: bytes | None
    ) -> ServedModel | None:
        tags = optional(replies[0], _Tags)
        if tags is None:
            return None
        known = {tag.name: tag for tag in tags.models}
        near = [name for name in known if not known[name].remote_host]
        name = chosen(url, model, list(known) if model is not None else near)
        if name not in near:
            raise UsageError(
                f"Ollama sends what {name[:LONGEST_NAME]!r} is asked to "
                f"{known[name].remote_host[:LONGEST_NAME]!r}, so it is no edge model",
                hint="name it as the cloud, or as the edge one that was pulled",
                setting="edge_model",
            )
        own = known[name].details.context_length
        # Without one, Ollama's own applies, so that no other program makes it load the model anew.
        context = context and fitting(context, own and own - 1)
        return ServedModel(name, f"ollama:{name}", context or 0)

    def loaded(self, model: ServedModel) -> Sequence[Request]:
        return Request("/api/ps"), Request("/api/show", {"model": model.name})

    def context(self, model: ServedModel, *replies: bytes | None) -> tuple[int, str]:
        running, shown = optional(replies[0], _Tags), optional(replies[1], _Shown)
        listed = {tag.name: tag.context_length for tag in (running.models if running else ())}
        own = msgspec.structs.asdict(shown).items() if shown else ()
        added = ", ".join(name.upper() for name, value in own if value)
        # One position is for the token that the server writes.
        held, wanted = listed.get(model.name), model.context or None
        return fitting(wanted, held - 1) if held else wanted or CONTEXT - 1, added

    def stream(self, asked: WantedStream) -> Request:
        options: dict[str, Any] = {"num_predict": asked.tokens, **GREEDY, **_NO_PENALTIES}
        if asked.model.context:
            options["num_ctx"] = asked.model.context + 1
        body = {"model": asked.model.name, "prompt": asked.prompt, "raw": True, "options": options}
        body |= {"logprobs": True, "top_logprobs": asked.top} if asked.top else {}
        body |= {"think": False, "truncate": False, "stream": asked.stream}
        return Request("/api/generate", body)

    def streamed(self, data: bytes) -> Event | None:
        event = decoded(data, _Generated)
        if event.error is not None:
            raise Fault(event.error[:200])
        if event.response and not event.logprobs:
            raise Fault("no logprobs, which Ollama has since 0.12.11")
        rows = [
            NextToken(
                row.data,
                [*((one.data, one.logprob) for one in row.top_logprobs), (row.data, row.logprob)],
            )
            for row in event.logprobs or []
        ]
        ended = event.done and event.done_reason == "stop"
        return Event(rows, event.response, ended=ended, over=event.done)

    def metered(self, data: bytes) -> tuple[int, int | None]:
        return decoded(data, _Generated).prompt_eval_count or 0, None


class OllamaText(TextServer):
    """Ollama as the server of a cloud model. A prompt that is too long is declined, not cut."""

    name = "Ollama"

    def complete(self, asked: WantedText) -> Request:
        begun = [{"role": "assistant", "content": asked.text}] if asked.text else []
        body = {"model": asked.model, "messages": [*asked.turns, *begun]}
        options = {"num_predict": asked.n, "repeat_penalty": 1.0, **asked.drawn}
        # By itself it would cut a prompt that is too long.
        plain = {"stream": False, "think": False, "truncate": False}
        return Request("/api/chat", {**body, **plain, "options": options})

    def continued(self, data: bytes) -> TextContinuation:
        reply = decoded(data, _Generated)
        if reply.message is None:
            raise Fault("a reply without a message")
        if not reply.done:
            raise Fault("a stream that was not requested")
        ended = was_ended(reply.done_reason)
        counts = reply.prompt_eval_count, None, reply.eval_count
        return TextContinuation(text_of(reply.message), ended, *counts)
