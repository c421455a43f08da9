"""APIs that take and return text: the contract, and what those behind HTTP have in common.

An API goes on with an answer that was begun. It serves any vocabulary.
"""

import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

import msgspec

from edgewise.engines.base import NOBODY, Client, Described
from edgewise.engines.http import Endpoint, Served, described
from edgewise.engines.registry import GATEWAY, owners
from edgewise.engines.text_replies import THINK, ApiReply, read, words_of
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable
from edgewise.prompts import Message
from edgewise.sampling import Sampling

_MOST_SHOWN = 8
_LONGEST_NAME = 100
_MOST_KEPT = 16
_UNTHOUGHT = "\n\n</think>\n\n"
_ELSEWHERE = (404, 405)
# DeepSeek, Mistral, OpenAI and vLLM, Moonshot.
_NO_MODEL = re.compile(
    r"model.{0,200}(not exist|not found|no such)|(invalid|unknown|not found the) model",
    re.IGNORECASE,
)


class TextEngine(ABC):
    """One API. Methods run in one event loop; `close` gives its connections back.

    `dialect` is what sentences call it, `owner` as servers name it. `reasons` tells whether it can
    go on inside of a block of reasoning that was begun.
    """

    dialect: ClassVar[str]
    owner: ClassVar[str] = ""
    reasons: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        """`url` says which API it is."""
        self.url = url

    @abstractmethod
    async def go_on(
        self,
        messages: Sequence[Message],
        answer: str,
        n: int,
        sampling: Sampling,
        client: Client = NOBODY,
    ) -> ApiReply:
        """At most `n` tokens behind `answer`, the beginning of a reply to `messages`; may be empty.

        Raises a `CloudError`: `CloudRejected` where the API does not take an answer that was begun.
        """

    @abstractmethod
    async def describe(self) -> Described:
        """What it serves; raises a `CloudError` where it is not of this dialect."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


class Declined(CloudRejected):
    """A request was declined with an HTTP `status`; `said` is the API's own reason."""

    said: str = ""

    @property
    def elsewhere(self) -> bool:
        """Whether nothing is at the path, which says nothing of the request."""
        return self.status in _ELSEWHERE and self.setting is None


class _Models(msgspec.Struct, frozen=True):
    data: list[Served]


class TextEndpoint(Endpoint, TextEngine):
    """An API behind HTTP. `model` is which one it is asked for, found out where none was named.

    `owner` is how a server of this dialect signs its models, empty where that differs; `bases` are
    where its paths may begin.
    """

    bases: tuple[str, ...] = ("/v1", "")

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        """`key` is a bearer. Raises `UsageError` for what is no address."""
        Endpoint.__init__(self, url, key=key)
        TextEngine.__init__(self, self.url)
        self.model = model
        self._known: list[str] = []
        self._bases: dict[tuple[str, ...], str] = {}

    async def describe(self) -> Described:
        """As `TextEngine.describe`. An API that lists no models, or not all, serves the named."""
        models = await self._listed()
        self._known = [model.id for model in models or []]
        for model in models or []:
            self._check_owner(model)
        if self.model is None:
            return described(self._only(models))
        found = [model for model in models or [] if model.id == self.model]
        if self.owner and models is not None and not found:
            raise self._without_model("")
        return described(found[0]) if found else Described(self.model)

    async def model_name(self) -> str:
        """What requests are for; raises a `CloudError` where that is not clear."""
        if self.model is None:
            self.model = (await self.describe()).model
        assert self.model is not None
        return self.model

    def declined(self, status: int, body: bytes, request_id: str | None) -> CloudRejected:
        said = words_of(body)
        if self.model is not None and _NO_MODEL.search(said):
            error = self._without_model(f" (HTTP {status}: {said!r})")
        else:
            error = Declined(
                f"{self.url!r} declined the request (HTTP {status}: {said!r})",
                hint=_hint(status),
                request_id=request_id,
            )
        error.status, error.said = status, said
        return error

    async def found(
        self, ask: Callable[[str], Awaitable[bytes]], bases: tuple[str, ...] | None = None
    ) -> bytes:
        """The reply of `ask`, told where paths begin; raises a `CloudError`.

        Where nothing is at one of `bases`, the next is tried. The one found stays.
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

    async def _listed(self) -> list[Served] | None:
        """What it says that it serves; None where it does not say."""
        try:
            body = await self.found(lambda base: self.get(f"{base}/models"))
        except Declined as error:
            if error.elsewhere:
                return None
            raise
        return read(body, _Models, self.url, self.dialect).data

    def _only(self, models: list[Served] | None) -> Served:
        if models is None:
            raise CloudRejected(
                f"{self.url!r} does not say which models it serves",
                hint="name one",
                setting="cloud_model",
            )
        if not models:
            raise CloudUnavailable(f"{self.url!r} serves no model", hint="load one there")
        if len(models) > 1:
            raise CloudRejected(
                f"{self.url!r} serves {len(models)} models",
                hint=f"name one: {self._shown()}",
                setting="cloud_model",
            )
        return models[0]

    def _check_owner(self, model: Served) -> None:
        known, signed = owners(), model.owned_by.lower()
        found = known.get(signed)
        if found == GATEWAY or (self.owner and found and signed != self.owner):
            raise CloudProtocolError(
                f"What answers at {self.url!r} is {found}, not {self.dialect}",
                hint="name another engine",
                setting="cloud_engine",
            )

    def _without_model(self, said: str) -> Declined:
        known = f": {self._shown()}" if self._known else ""
        return Declined(
            f"{self.url!r} serves no model {self.model!r}{said}",
            hint=f"name one that it serves{known}",
            setting="cloud_model",
        )

    def _shown(self) -> str:
        names = ", ".join(repr(name[:_LONGEST_NAME]) for name in self._known[:_MOST_SHOWN])
        more = len(self._known) - _MOST_SHOWN
        return f"{names} and {more} more" if more > 0 else names


class PromptText(TextEndpoint):
    """The answer behind the text that a chat template makes of the messages."""

    reasons = True

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        """Raises `UsageError` as `TextEndpoint`."""
        super().__init__(url, key=key, model=model)
        self._rendered = _Rendered()

    async def describe(self) -> Described:
        # It may have been started anew, with another template.
        self._rendered.clear()
        return await super().describe()

    async def prompt(self, messages: Sequence[Message], answer: str, client: Client) -> str:
        """Messages and answer as one text; raises a `CloudError`.

        A block of reasoning that the template opens is closed, unless the answer begins with one.
        """
        turns(self.url, messages)
        thinks = answer.lstrip().startswith(THINK)
        text = self._rendered.get(messages, thinks)
        if text is None:
            rendered = await self.rendered(messages, client, thinks=thinks)
            text = self._rendered.put(rendered, messages, thinks)
        if text.rstrip().endswith(THINK):
            text = text.rstrip().removesuffix(THINK) if thinks else text.rstrip() + _UNTHOUGHT
        return text + answer

    @abstractmethod
    async def rendered(self, messages: Sequence[Message], client: Client, *, thinks: bool) -> str:
        """What the template makes of the messages; raises a `CloudError`."""


class _Rendered:
    """Conversations as a template made text of them, the last ones."""

    def __init__(self) -> None:
        self._texts: OrderedDict[tuple[object, ...], str] = OrderedDict()

    def get(self, messages: Sequence[Message], *told: object) -> str | None:
        return self._texts.get((*told, *messages))

    def put(self, text: str, messages: Sequence[Message], *told: object) -> str:
        self._texts[(*told, *messages)] = text
        while len(self._texts) > _MOST_KEPT:
            self._texts.popitem(last=False)
        return text

    def clear(self) -> None:
        self._texts.clear()


def turns(url: str, messages: Sequence[Message]) -> list[dict[str, object]]:
    """Messages as chat APIs take them; raises `CloudRejected` for those that nobody answers.

    Behind an assistant's message an answer that was begun could be another, or its rest.
    """
    if not messages:
        raise CloudRejected(f"There is no message to send to {url!r}.")
    if messages[-1].role == "assistant":
        raise CloudRejected(
            f"The conversation ends with an answer, which {url!r} would go on with",
            hint="end it with a message of the user's",
        )
    return [{"role": message.role, "content": message.content} for message in messages]


def _hint(status: int) -> str | None:
    if status in _ELSEWHERE:
        return "check the address, its path too, and the model's name"
    return "see to the account's balance" if status == 402 else None
