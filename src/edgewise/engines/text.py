"""APIs that take and return text: the contract, and what those over HTTP have in common.

An API continues an answer that was begun. It serves any vocabulary. A reply is checked here, where
it arrives.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.engines.base import NOBODY, Client, Described, decoded
from edgewise.engines.http import (
    Declined,
    Endpoint,
    Served,
    ServedModels,
    named,
    not_served,
    shown,
    words_of,
)
from edgewise.engines.replies import THINK, Meter, has_ended, only
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable, UsageError
from edgewise.prompts import Message
from edgewise.sampling import Sampling

LONGEST_TOKEN = 64
"""More bytes than a token has on an average of several."""

_CUT = frozenset({"length", "max_tokens", "model_length", "limit"})
# An echo may have other blanks.
_SLACK = 256
_MOST_RENDERED = 16
_CLOSED_THOUGHTS = "\n\n</think>\n\n"
_T = TypeVar("_T")


class TextRequest(NamedTuple):
    """A request for at most `n` tokens after `answer`, the beginning of a reply; may be empty."""

    messages: Sequence[Message]
    answer: str
    n: int
    sampling: Sampling = Sampling()


class TextContinuation(msgspec.Struct, frozen=True, kw_only=True):
    """Raw text that an API wrote; it may begin with an echo of what was sent.

    `ended` where it ended the answer there, and was not cut. `prompt`, `cached` and `written` are
    tokens by the provider's own usage, `cached` those of the `prompt` that it had; None where it
    does not report them.
    """

    text: str
    ended: bool
    prompt: int | None = None
    cached: int | None = None
    written: int | None = None


class ReplyMessage(msgspec.Struct):
    """Mistral has a list for a content with thoughts, and Ollama its own word for these."""

    content: str | list[msgspec.Raw] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: object = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    message: ReplyMessage | None = None
    text: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Meter | None = None
    error: object = None


class TextEngine(Endpoint, ABC):
    """An API over HTTP. Methods run in one event loop.

    `dialect`: name in errors. `owner`: the `owned_by` of its models ("" if it varies). `bases`:
    base paths to try. `chat_base`: base path of consults, if different. `reasons`: can continue
    inside an open reasoning block. `renders`: renders the chat template here, so it needs
    `tokenizer`; other dialects refuse one. `model`: None picks the only model listed.
    """

    dialect: ClassVar[str]
    owner: ClassVar[str] = ""
    reasons: ClassVar[bool] = False
    renders: ClassVar[bool] = False
    bases: ClassVar[Sequence[str]] = ("/v1", "")
    chat_base: ClassVar[str] = ""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        model: str | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """`key` is a bearer. Raises `UsageError` for an invalid address, and as `renders` says."""
        if self.renders != (tokenizer is not None):
            needs = "needs the" if self.renders else "takes text and needs no"
            raise UsageError(
                f"The dialect {self.dialect!r} {needs} tokenizer of the model that it serves",
                hint="name it" if self.renders else "leave it out",
                setting="cloud_tokenizer",
            )
        super().__init__(url, key=key, model=model)
        self.url = self.url.removesuffix(self.chat_base)
        self.tokenizer = tokenizer
        self._base: str | None = None

    @abstractmethod
    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        """Continue the answer of a request.

        Raises a `CloudError`: `CloudRejected` where the API does not take an answer that was begun.
        """

    async def describe(self) -> Described:
        """Describes the served model; raises a `CloudError` if the API is not of this dialect.

        An API that lists no models, or not all, serves the named.
        """
        models = await self._listed()
        self.listed = [model.id for model in models or []]
        if self.model is None:
            return self._only(models).described
        served = named(models or [], self.model)
        if self.owner and models is not None and served is None:
            raise not_served(self.url, self.model, self.listed)
        self.model = served.id if served else self.model
        return served.described if served else Described(self.model)

    async def model_name(self) -> str:
        """The model that requests name; raises a `CloudError` if that is ambiguous."""
        if self.model is None:
            self.model = (await self.describe()).model
        assert self.model is not None
        return self.model

    async def at_base(self, path: str, body: object = None, client: Client = NOBODY) -> bytes:
        """The reply to a `body`, or to a GET, below one of `bases`; raises a `CloudError`.

        Where nothing is at one of them, the next is tried. The right one is remembered.
        """
        nowhere: Declined | None = None
        for base in self.bases if self._base is None else [self._base]:
            try:
                if body is None:
                    reply = await self.get(base + path)
                else:
                    reply = await self.post(base + path, body, client)
            except Declined as error:
                if not error.elsewhere:
                    self._base = base
                    raise
                nowhere = nowhere or error
            else:
                self._base = base
                return reply
        assert nowhere is not None
        raise nowhere

    def read(self, body: bytes, kind: type[_T]) -> _T:
        """A reply of that form; raises `CloudProtocolError`."""
        begin = body[:16].lstrip()
        if begin.startswith(b"<"):
            raise CloudProtocolError(
                f"{self.url!r} answered with a web page",
                hint="check the address, its path too",
                setting="cloud",
            )
        if begin.startswith((b"data:", b"event:", b":")):
            raise self.streamed()
        return decoded(body, kind, self.dialect)

    def streamed(self) -> CloudProtocolError:
        """The error for a reply that comes in pieces."""
        return CloudProtocolError(f"{self.url!r} sent a stream that was not requested.")

    def completion(self, body: bytes, request: TextRequest) -> TextContinuation:
        """A reply in OpenAI's form, to a chat or to a prompt; raises a `CloudError`."""
        reply = self.read(body, _Completion)
        if reply.error is not None:
            raise CloudRejected(f"{self.url!r} declined the request ({words_of(reply.error)!r})")
        choice, usage = only(reply.choices or [], self.url), reply.usage or Meter()
        if choice.message is None and choice.text is None:
            raise CloudProtocolError(f"{self.url!r} sent a choice without any text.")
        written = choice.message or choice.text or ""
        counts = usage.prompt_tokens, usage.cached, usage.completion_tokens
        return self.checked(request, written, choice.finish_reason, counts)

    def checked(
        self,
        request: TextRequest,
        written: str | ReplyMessage,
        reason: str | None,
        counts: tuple[int | None, int | None, int | None],
    ) -> TextContinuation:
        """The reply to a request, by its finish `reason`; raises a `CloudError` for a bad one.

        `counts` are tokens of the prompt, those of them that were cached, and those written.
        """
        url = self.url
        ended = has_ended(reason, url)
        if not ended and reason not in _CUT:
            raise CloudProtocolError(f"{url!r} sent the unknown finish_reason {reason!r:.50}.")
        text = written if isinstance(written, str) else _text_of(written, url)
        size = len(text.encode())
        if size > LONGEST_TOKEN * request.n + 2 * len(request.answer.encode()) + _SLACK:
            raise CloudProtocolError(f"{url!r} sent {size} bytes for {request.n} tokens.")
        if "\0" in text:
            raise CloudProtocolError(f"{url!r} sent a text with U+0000 in it.")
        if text.lstrip().startswith(THINK) and not request.answer.lstrip().startswith(THINK):
            raise _thinks(url)
        prompt, cached, new = counts
        if cached is not None and prompt is not None and cached > prompt:
            raise CloudProtocolError(f"{url!r} counts {cached} of {prompt} tokens as cached.")
        return TextContinuation(text=text, ended=ended, prompt=prompt, cached=cached, written=new)

    async def _listed(self) -> list[Served] | None:
        """The models that it lists; None where it lists none."""
        try:
            body = await self.at_base("/models")
        except Declined as error:
            if error.elsewhere:
                return None
            raise
        return self.read(body, ServedModels).data

    def _only(self, models: list[Served] | None) -> Served:
        if models is not None and len(models) == 1:
            return models[0]
        if models == []:
            raise CloudUnavailable(f"{self.url!r} serves no model", hint="load one there")
        many = "does not say which models it serves" if models is None else "serves several models"
        names = f": {shown(self.listed)}" if models else ""
        raise CloudRejected(f"{self.url!r} {many}", hint=f"name one{names}", setting="cloud_model")


class PromptText(TextEngine):
    """Sends the messages rendered with the chat template, followed by the answer."""

    reasons = True

    def __init__(self, url: str, **options: Any) -> None:
        """`options` are those of `TextEngine`."""
        super().__init__(url, **options)
        self._rendered: dict[tuple[object, ...], str] = {}

    async def describe(self) -> Described:
        # It may have been started anew, with another template.
        self._rendered.clear()
        return await super().describe()

    async def prompt(self, request: TextRequest, client: Client) -> str:
        """Messages and answer as one text; raises a `CloudError`.

        A block of reasoning that the template opens is closed, unless the answer begins with one.
        """
        messages = request.messages
        turns(self.url, messages)
        thinks = request.answer.lstrip().startswith(THINK)
        text = self._rendered.get((thinks, *messages))
        if text is None:
            text = await self.rendered(messages, client, thinks=thinks)
            if len(self._rendered) == _MOST_RENDERED:
                self._rendered.clear()
            self._rendered[(thinks, *messages)] = text
        if text.rstrip().endswith(THINK):
            text = text.rstrip().removesuffix(THINK) if thinks else text.rstrip() + _CLOSED_THOUGHTS
        return text + request.answer

    @abstractmethod
    async def rendered(self, messages: Sequence[Message], client: Client, *, thinks: bool) -> str:
        """Renders the messages with the chat template; raises a `CloudError`."""


def turns(url: str, messages: Sequence[Message]) -> list[dict[str, object]]:
    """Messages as chat APIs take them; raises `CloudRejected` for those that nobody answers.

    After an assistant's message a started answer could be a new one, or its rest.
    """
    if not messages:
        raise CloudRejected(f"There is no message to send to {url!r}.")
    if messages[-1].role == "assistant":
        raise CloudRejected(
            f"The conversation ends with an answer, which {url!r} would continue",
            hint="end it with a message of the user's",
        )
    return [{"role": message.role, "content": message.content} for message in messages]


def _text_of(message: ReplyMessage, url: str) -> str:
    """Raises `CloudRejected` for what is no continuation: a refusal, a tool call, thoughts."""
    if message.refusal:
        raise CloudRejected(f"The model at {url!r} refused to answer.")
    if message.tool_calls or message.function_call:
        raise CloudRejected(f"The model at {url!r} answered with a tool call.")
    thoughts = message.reasoning_content or message.reasoning or message.thinking
    if isinstance(message.content, list) or (thoughts and not message.content):
        raise _thinks(url)
    return message.content or ""


def _thinks(url: str) -> CloudRejected:
    return CloudRejected(
        f"The model at {url!r} reasons before it answers, and reasoning is not part of an answer",
        hint="choose a model without reasoning, or one where it can be disabled",
        setting="cloud_model",
    )
