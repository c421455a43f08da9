"""Clients of APIs over HTTP that take and return text, for a cloud model of any vocabulary.

An API is sent the beginning of an answer and continues it. Each reply is checked on arrival: its
length, that it has no U+0000, and that it does not reason unasked.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from edgewise.edge.base import Tokenizer
from edgewise.engines.base import NOBODY, Client, Described, drawn
from edgewise.engines.http import Declined, Endpoint, model_named, not_served, shown
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable, UsageError
from edgewise.prompts import Message
from edgewise.prompts.rendering import render
from edgewise.prompts.special import ControlTokens
from edgewise.sampling import Sampling
from edgewise.servers.base import (
    MODELS,
    Fields,
    ListedModel,
    ListedModels,
    Request,
    TextContinuation,
    TextServer,
    WantedText,
    decoded,
)
from edgewise.servers.replies import THINK, thinks

__all__ = ["TextContinuation", "TextEngine", "TextRequest"]

LONGEST_TOKEN = 64
"""Upper bound on the bytes of a token, averaged over several tokens."""

# An echo may have other blanks.
_SLACK = 256
_MOST_RENDERED = 16
_CLOSED_THOUGHTS = "\n\n</think>\n\n"
_BASES = ("/v1", "")
# A value that the API knows, but will not have.
_TOO_MUCH = re.compile(r"too (large|long|many|big)|at most|maximum|exceed", re.IGNORECASE)
_FILTERS = ("top_k", "min_p")


class TextRequest(NamedTuple):
    """A request for at most `n` tokens that continue `answer`, the beginning of a reply.

    It is a reply to `messages`. A JSON `schema` for it is sent if the API has a field for one.
    """

    messages: Sequence[Message]
    answer: str
    n: int
    sampling: Sampling = Sampling()
    schema: Fields | None = None


class TextEngine(Endpoint):
    """A client of an API over HTTP that takes and returns text. All methods run in one event loop.

    `dialect` is the API's name in errors. `owner` is the `owned_by` of its models in `/v1/models`
    ("" if that varies). `reasons` says whether the API can continue an answer inside an open block
    of reasoning. A request field that the API declines by name is sent in another form from then
    on, or not at all.
    """

    def __init__(
        self,
        server: TextServer,
        url: str,
        *,
        key: str | None = None,
        model: str | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Check the address without connecting; `UsageError` if it is unusable.

        A `tokenizer` is needed for a server whose chat template is rendered here (`renders`);
        `UsageError` if it is missing there, or given to any other.
        """
        if server.renders != (tokenizer is not None):
            needs = "needs the" if server.renders else "takes text and needs no"
            raise UsageError(
                f"The dialect {server.name!r} {needs} tokenizer of the model that it serves",
                hint="name it" if server.renders else "leave it out",
                setting="cloud_tokenizer",
            )
        super().__init__(url, key=key, model=model)
        self.server, self.tokenizer = server, tokenizer
        self._bearer = server.headers(key)
        self.dialect, self.owner, self.reasons = server.name, server.owner, server.prompts
        self.url = self.url.removesuffix(server.base)
        self._base: str | None = None
        self._declined, self._accepts = frozenset[str](), False
        self._rendered: dict[tuple[object, ...], str] = {}

    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        """Return how the API continues `request.answer`, with token counts. Raises a `CloudError`.

        Raises `CloudRejected`, and sends nothing, if the API lacks a wanted sampling filter, cannot
        continue an answer that was begun, or would read a part of the text as a control token.
        """
        how, text = self._drawn(request), request.answer
        if text and self.server.reads:
            raise CloudRejected(f"{self.url!r} continues no answer that was begun.")
        if self.server.prompts:
            self._check_plain([*(one.content for one in request.messages), text])
        model = await self.model_name() if self.server.names else ""
        if self.server.prompts:
            text = await self._prompt(request, client)
        messages = turns(self.url, request.messages)
        asked = WantedText(model, messages, text, request.n, how, request.schema)
        forms = self.server.forms(asked)
        reply = await self._accepted(self.server.complete(asked), forms, client)
        with self.reading():
            return self._checked(request, self.server.continued(reply))

    async def describe(self) -> Described:
        """Return the model that answers: the named one, else the only one that the API lists.

        Raises a `CloudError` if no model is named and the API does not list exactly one, or if the
        list of an API with an `owner` lacks the named model. Other APIs may serve unlisted models.
        """
        # It may have been started anew, with another template.
        self._rendered.clear()
        models = await self._listed()
        self.listed = [model.id for model in models or []]
        if self.model is None:
            return self._only(models).described
        served = model_named(models or [], self.model)
        if self.owner and models is not None and served is None:
            raise not_served(self.url, self.model, self.listed)
        self.model = served.id if served else self.model
        return served.described if served else Described(self.model)

    async def model_name(self) -> str:
        """Return the name of the given model, or of the only one listed. May raise `CloudError`."""
        if self.model is None:
            self.model = (await self.describe()).model
        assert self.model is not None
        return self.model

    async def _at_base(self, request: Request, client: Client = NOBODY) -> bytes:
        """Send a request to its path with or without `/v1`; remember which of both exists."""
        if not request.path.startswith("/v1/") or (self.server.base and request.body):
            path = self.server.base + request.path.removeprefix("/v1")
            return await self.send(request._replace(path=path), client)
        nowhere: Declined | None = None
        for base in _BASES if self._base is None else [self._base]:
            path = base + request.path.removeprefix("/v1")
            try:
                reply = await self.send(request._replace(path=path), client)
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

    async def _accepted(
        self, request: Request, forms: Sequence[Sequence[Fields]], client: Client
    ) -> bytes:
        """Send `request` with the first form of each purpose not declined (`TextServer.forms`)."""
        keyed = [[(_key(n, one), one) for n, one in enumerate(form)] for form in forms]
        suspected = frozenset[str]()
        needed = {key for form in keyed if form[-1][1] for key, _ in form}
        while True:
            # What was declined before stays left out: each refusal costs a round trip.
            gone = self._declined | suspected
            chosen = [next((one for one in form if one[0] not in gone), form[-1]) for form in keyed]
            fields = {name: value for _, one in chosen for name, value in one.items()}
            try:
                reply = await self._at_base(request.having(**fields), client)
            except Declined as error:
                # The API names the field, or a newer one that it wants instead.
                fault = {key for key, one in chosen if any(_names(error.said, k) for k in one)}
                too_much = fault & needed and _TOO_MUCH.search(error.said)
                if error.elsewhere or too_much or fault & gone:
                    raise
                if fault:
                    self._declined |= fault
                elif self._accepts or not chosen or not chosen[0][1]:
                    raise
                else:
                    # Gemini does not say that it cannot be kept from reasoning.
                    suspected |= {chosen[0][0]}
                # No provider bills a request that it declined.
                if client.sent is not None:
                    client.sent.retract()
            else:
                self._declined |= suspected
                self._accepts = True
                return reply

    def _drawn(self, request: TextRequest) -> Mapping[str, Any]:
        """Return sampling fields. Raises `CloudRejected` for a setting that the API lacks."""
        fields = drawn(request.sampling, len(request.answer))
        for name in _FILTERS:
            if fields.get(name) and name not in self.server.filters:
                raise CloudRejected(
                    f"{self.dialect} has no {name.replace('_', '-')}, so it cannot sample as asked",
                    hint="leave it off",
                    setting=name,
                    own=True,
                )
        return fields

    def _checked(self, request: TextRequest, reply: TextContinuation) -> TextContinuation:
        """Return a reply if it is within bounds. Raises `CloudProtocolError` or `Fault`."""
        url, text, size = self.url, reply.text, len(reply.text.encode())
        # A server that ignores the limit could send, and bill, anything.
        if size > LONGEST_TOKEN * request.n + 2 * len(request.answer.encode()) + _SLACK:
            raise CloudProtocolError(f"{url!r} sent {size} bytes for {request.n} tokens.")
        # No tokenizer writes it, and C strings end there.
        if "\0" in text:
            raise CloudProtocolError(f"{url!r} sent a text with U+0000 in it.")
        if text.lstrip().startswith(THINK) and not request.answer.lstrip().startswith(THINK):
            raise thinks()
        prompt, cached = reply.prompt, reply.cached
        if cached is not None and prompt is not None and cached > prompt:
            raise CloudProtocolError(f"{url!r} counts {cached} of {prompt} tokens as cached.")
        return reply

    async def _listed(self) -> list[ListedModel] | None:
        """Return the models that the API lists; None if it has no list."""
        try:
            body = await self._at_base(MODELS)
        except Declined as error:
            if error.elsewhere:
                return None
            raise
        with self.reading():
            return decoded(body, ListedModels).data

    def _only(self, models: list[ListedModel] | None) -> ListedModel:
        if models is not None and len(models) == 1:
            return models[0]
        if models == []:
            raise CloudUnavailable(f"{self.url!r} serves no model", hint="load one there")
        many = "does not say which models it serves" if models is None else "serves several models"
        names = f": {shown(self.listed)}" if models else ""
        raise CloudRejected(f"{self.url!r} {many}", hint=f"name one{names}", setting="cloud_model")

    async def _prompt(self, request: TextRequest, client: Client) -> str:
        """Return the prompt as text; reasoning is closed in it unless the answer begins with it."""
        messages = request.messages
        reasoning = request.answer.lstrip().startswith(THINK)
        text = self._rendered.get((reasoning, *messages))
        if text is None:
            text = await self._render(messages, client, reasoning=reasoning)
            # Conversations that are over are never asked for again; which are, nobody tells.
            if len(self._rendered) == _MOST_RENDERED:
                self._rendered.clear()
            self._rendered[(reasoning, *messages)] = text
        if text.rstrip().endswith(THINK):
            text = text.rstrip()
            text = text.removesuffix(THINK) if reasoning else text + _CLOSED_THOUGHTS
        return text + request.answer

    async def _render(self, messages: Sequence[Message], client: Client, *, reasoning: bool) -> str:
        """Return the messages in the chat template's form, rendered by the server or here."""
        template = self.server.template(turns(self.url, messages), thinks=reasoning)
        if template is not None:
            reply = await self.send(template, client, billable=False)
            with self.reading():
                return self.server.templated(reply)
        tokenizer = self.tokenizer
        assert tokenizer is not None
        if tokenizer.chat_template is None:
            # A base model has no template: its prompt is the text alone.
            return "\n\n".join(message.content for message in messages)
        try:
            # A template is rendered in a child process, for which the event loop must not wait.
            text = await asyncio.to_thread(render, tokenizer, messages)
        except UsageError as error:
            said = f"The cloud model cannot read the prompt: {error}"
            raise CloudRejected(said, own=True) from error
        # The server puts a BOS before the text itself.
        adds = tokenizer.encode_prompt("", special=False)
        return text.removeprefix(tokenizer.special_text("bos")) if adds else text

    @cached_property
    def _control(self) -> ControlTokens:
        return ControlTokens(self.tokenizer.special if self.tokenizer else {})

    def _check_plain(self, contents: Sequence[str]) -> None:
        """Raise `CloudRejected` for text that the server would read as a control token."""
        for content in contents:
            sign = self.server.control(content)
            if sign := sign or next(iter(self._control.split(content)[1:]), None):
                raise CloudRejected(
                    f"A message holds {sign!r}, which {self.url!r} would not read as text.",
                    own=True,
                )


def turns(url: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return `messages` as dicts with "role" and "content", for chat APIs.

    Raises `CloudRejected` if there is no message, or if the last one is an assistant's; the error
    names `url`, the API's address.
    """
    if not messages:
        raise CloudRejected(f"There is no message to send to {url!r}.", own=True)
    if messages[-1].role == "assistant":
        raise CloudRejected(
            f"The conversation ends with an answer, which {url!r} would continue",
            hint="end it with a message of the user's",
            own=True,
        )
    return [{"role": message.role, "content": message.content} for message in messages]


def _names(said: str, field: str) -> bool:
    return re.search(rf"\b{re.escape(field)}\b", said) is not None


def _key(number: int, form: Fields) -> str:
    """Return a key for a form: its purpose's number and field names."""
    # Not the values, as a seed is another in each request.
    return f"{number} {' '.join(form)}"
