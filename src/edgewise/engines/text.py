"""APIs that take and return text: the contract, and what those behind HTTP have in common.

An API continues an answer that was begun. It serves any vocabulary.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from edgewise.engines.base import NOBODY, Client, Described
from edgewise.engines.http import Endpoint, Served, ServedModels, not_served, shown
from edgewise.engines.replies import (
    THINK,
    TextContinuation,
    TextReader,
    TextRequest,
    read,
    words_of,
)
from edgewise.errors import CloudRejected, CloudUnavailable
from edgewise.prompts import Message

_MOST_RENDERED = 16
_CLOSED_THOUGHTS = "\n\n</think>\n\n"
_ELSEWHERE = (404, 405)
# DeepSeek, Mistral, OpenAI and vLLM, Moonshot.
_NO_MODEL = re.compile(
    r"model.{0,200}(not exist|not found|no such)|(invalid|unknown|not found the) model",
    re.IGNORECASE,
)


class Declined(CloudRejected):
    """A request was declined with an HTTP `status`; `said` is the API's own reason."""

    said: str = ""

    @property
    def elsewhere(self) -> bool:
        """Whether nothing is at the path, which says nothing of the request."""
        return self.status in _ELSEWHERE


class TextEngine(Endpoint, ABC):
    """An API behind HTTP. Methods run in one event loop.

    `dialect` is what errors call it, `owner` how a server of it signs its models (empty where that
    differs); `bases` are where its paths may begin. `reasons`: it can continue inside of a block of
    reasoning that was begun. `model` is the one it is asked for, found out where none was named.
    """

    dialect: ClassVar[str]
    owner: ClassVar[str] = ""
    reasons: ClassVar[bool] = False
    bases: tuple[str, ...] = ("/v1", "")

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        """`key` is a bearer. Raises `UsageError` for an invalid address."""
        super().__init__(url, key=key)
        self.model = model
        self._models: list[str] = []
        self._bases: dict[tuple[str, ...], str] = {}

    @abstractmethod
    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        """Continue the answer of a request.

        Raises a `CloudError`: `CloudRejected` where the API does not take an answer that was begun.
        """

    async def describe(self) -> Described:
        """What it serves; raises a `CloudError` where it is not of this dialect.

        An API that lists no models, or not all, serves the named.
        """
        models = await self._listed()
        self._models = [model.id for model in models or []]
        if self.model is None:
            return self._only(models).described
        served = next((model for model in models or [] if model.id == self.model), None)
        if self.owner and models is not None and served is None:
            raise not_served(self.url, self.model, self._models)
        return served.described if served else Described(self.model)

    async def model_name(self) -> str:
        """What requests are for; raises a `CloudError` where that is not clear."""
        if self.model is None:
            self.model = (await self.describe()).model
        assert self.model is not None
        return self.model

    def declined(self, status: int, body: bytes, request_id: str | None) -> CloudRejected:
        said = words_of(body)
        if self.model is not None and _NO_MODEL.search(said):
            reason = f" (HTTP {status}: {said!r})"
            return not_served(self.url, self.model, self._models, reason)
        error = Declined(
            f"{self.url!r} declined the request (HTTP {status}: {said!r})",
            hint=_hint(status),
            request_id=request_id,
        )
        error.status, error.said = status, said
        return error

    async def at_base(
        self, ask: Callable[[str], Awaitable[bytes]], bases: tuple[str, ...] | None = None
    ) -> bytes:
        """The reply of `ask`, which is given where paths begin; raises a `CloudError`.

        Where nothing is at one of `bases`, the next is tried. The right one is remembered.
        """
        bases = bases or self.bases
        if bases in self._bases:
            return await ask(self._bases[bases])
        nowhere: list[Declined] = []
        for base in bases:
            try:
                reply = await ask(base)
            except Declined as error:
                if not error.elsewhere:
                    self._bases[bases] = base
                    raise
                nowhere.append(error)
            else:
                self._bases[bases] = base
                return reply
        raise nowhere[0]

    def reader(self, request: TextRequest) -> TextReader:
        """Reads the reply to a request."""
        return TextReader(self.url, self.dialect, request)

    async def _listed(self) -> list[Served] | None:
        """The models that it lists; None where it lists none."""
        try:
            body = await self.at_base(lambda base: self.get(f"{base}/models"))
        except Declined as error:
            if error.elsewhere:
                return None
            raise
        return read(body, ServedModels, self.url, self.dialect).data

    def _only(self, models: list[Served] | None) -> Served:
        if models is not None and len(models) == 1:
            return models[0]
        if models == []:
            raise CloudUnavailable(f"{self.url!r} serves no model", hint="load one there")
        many = "does not say which models it serves" if models is None else "serves several models"
        names = f": {shown(self._models)}" if models else ""
        raise CloudRejected(f"{self.url!r} {many}", hint=f"name one{names}", setting="cloud_model")


class PromptText(TextEngine):
    """The answer behind the text that a chat template makes of the messages."""

    reasons = True

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        """Raises `UsageError` as `TextEngine`."""
        super().__init__(url, key=key, model=model)
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
        """What the template makes of the messages; raises a `CloudError`."""


def turns(url: str, messages: Sequence[Message]) -> list[dict[str, object]]:
    """Messages as chat APIs take them; raises `CloudRejected` for those that nobody answers.

    Behind an assistant's message an answer that was begun could be another, or its rest.
    """
    if not messages:
        raise CloudRejected(f"There is no message to send to {url!r}.")
    if messages[-1].role == "assistant":
        raise CloudRejected(
            f"The conversation ends with an answer, which {url!r} would continue",
            hint="end it with a message of the user's",
        )
    return [{"role": message.role, "content": message.content} for message in messages]


def _hint(status: int) -> str | None:
    if status in _ELSEWHERE:
        return "check the address, its path too, and the model's name"
    return "see to the account's balance" if status == 402 else None
