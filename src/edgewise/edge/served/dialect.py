"""What servers call the same things: how each is recognised, asked to continue, and read."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.edge.served.server import Server
from edgewise.errors import UsageError

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_MOST_SHOWN, LONGEST_NAME = 8, 100
CONTEXT = 4096
"""Tokens, where a server does not say how many it holds."""


class Told(NamedTuple):
    """The token that a server wrote, and the likeliest there with their logprobs.

    A server that says nothing of a token is taken to be sure of it: one candidate, at 0.
    """

    token: int
    top: Sequence[tuple[int, float]]


class ServedModel(NamedTuple):
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

    def __init__(self, server: Server, described: ServedModel) -> None:
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

    def computed(self, ids: Sequence[int]) -> int | None:
        """How many ids of a prompt the server computes, by its own meter; None without one."""
        return None

    @cached_property
    def end(self) -> int:
        """The id that stands for the end of an answer where a server only says that it ended."""
        ends = self.tokenizer.eos_ids
        named = self.tokenizer.special_text("eos")
        return next((i for i in sorted(ends) if self.tokenizer.special.get(i) == named), min(ends))


class ModelMeta(msgspec.Struct):
    n_vocab: int | None = None
    n_embd: int = 0
    n_params: int | None = None


class ListedModel(msgspec.Struct):
    id: str
    owned_by: str = ""
    root: str | None = None
    max_model_len: Count | None = None
    meta: ModelMeta | None = None


class ListedModels(msgspec.Struct):
    data: list[ListedModel]


class ById(msgspec.Struct):
    """JSON has no infinity: an id of no probability has no number."""

    id: int
    logprob: float | None = None


class Logprobs(msgspec.Struct):
    """OpenAI's of `/v1/completions`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None] | None = None


class Choice(msgspec.Struct):
    text: str = ""
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class Billed(msgspec.Struct):
    prompt_tokens: int
    prompt_tokens_details: _Cached | None = None

    @property
    def computed(self) -> int | None:
        """Tokens that were not in the cache."""
        cached = self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens
        return None if cached is None else self.prompt_tokens - cached


class ChoiceEvent(msgspec.Struct):
    choices: list[Choice]
    usage: Billed | None = None


def chosen(server: Server, model: str | None, names: Sequence[str]) -> str:
    """The model that is named, or the only one."""
    if model is None and len(names) == 1:
        return names[0]
    if model is not None and model in names:
        return model
    some = ", ".join(repr(name[:LONGEST_NAME]) for name in names[:_MOST_SHOWN])
    lacks = "serves several models" if model is None else f"serves no model {model!r}"
    raise UsageError(
        f"The edge model's server at {server.url} {lacks if names else 'serves no model'}",
        hint=f"name one: {some}" if names else "load one there",
        setting="edge_model" if names else "edge",
    )


def fitting(wanted: int | None, held: int | None) -> int:
    if wanted is not None and held is not None and wanted > held:
        raise UsageError(
            f"The edge model's server holds {held} tokens a slot, not {wanted}",
            hint="start it with a larger context, or lower yours",
            setting="ctx",
        )
    return wanted or held or CONTEXT


def asking(model: str, prompt: str | list[int], tokens: int) -> dict[str, Any]:
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens}
    return {**asked, "temperature": 0, "stream": True}


def choices(server: Server, body: Mapping[str, Any], closing: ExitStack) -> Iterator[Choice]:
    """The choices of OpenAI's events, one each."""
    for line in closing.enter_context(server.lines("/v1/completions", body)):
        if not line.startswith(b"data:"):
            continue
        if (data := line[5:].strip()) == b"[DONE]":
            return
        choices = server.decoded(data, ChoiceEvent).choices
        if len(choices) > 1:
            raise server.broken(f"{len(choices)} choices")
        yield from choices
