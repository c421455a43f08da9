"""Chat APIs that answer whole and read, but continue nothing: OpenAI's form, and Anthropic's.

Most hosted models are such. Fields that an API declines by name are left out from then on, or sent
in its other form.
"""

from collections.abc import Sequence

import msgspec

from edgewise.engines.base import NOBODY, Client, drawn
from edgewise.engines.http import Declined
from edgewise.engines.text import TextEngine, TextRequest, is_named, turns
from edgewise.errors import CloudRejected
from edgewise.prompts import Message
from edgewise.sampling import Sampling
from edgewise.servers.base import Fields, Request, TextContinuation, WantedText


class ReaderRequest(msgspec.Struct, frozen=True):
    """A reply to `messages` of at most `n` tokens; with a JSON `schema`, one that fits it."""

    messages: Sequence[Message]
    n: int
    sampling: Sampling = Sampling()
    schema: Fields | None = None


class Reader(TextEngine):
    """A chat API that is asked for whole replies."""

    _declined: frozenset[str] = frozenset()

    async def chat(self, request: ReaderRequest, client: Client = NOBODY) -> TextContinuation:
        """The whole reply; raises a `CloudError`."""
        messages = turns(self.url, request.messages)
        how, schema = drawn(request.sampling, 0), request.schema
        asked = WantedText(await self.model_name(), messages, "", request.n, how, schema)
        forms = self.server.forms(asked)
        reply = await self._accepted(self.server.complete(asked), forms, client)
        with self.reading():
            whole = TextRequest(request.messages, "", request.n, request.sampling)
            return self.checked(whole, self.server.continued(reply))

    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        """A whole answer: one that was begun is not continued."""
        if request.answer:
            raise CloudRejected(f"{self.url!r} continues no answer that was begun.")
        asked = ReaderRequest(request.messages, request.n, request.sampling)
        return await self.chat(asked, client)

    async def _accepted(
        self, request: Request, forms: Sequence[Sequence[Fields]], client: Client
    ) -> bytes:
        """The reply to a request and one of each of the `forms`: the first not declined yet.

        After the last of them nothing is sent in their place. Raises a `CloudError`.
        """
        while True:
            chosen = [next((one for one in form if not self._gone(one)), {}) for form in forms]
            fields = {name: value for one in chosen for name, value in one.items()}
            try:
                return await self.at_base(request.having(**fields), client)
            except Declined as error:
                # By its name, or by a newer one that it wants instead.
                at_fault = [one for one in chosen if any(is_named(error.said, k) for k in one)]
                if error.elsewhere or not at_fault:
                    raise
                self._declined |= {_key(one) for one in at_fault}

    def _gone(self, form: Fields) -> bool:
        return _key(form) in self._declined


def _key(form: Fields) -> str:
    return msgspec.json.encode(form, order="deterministic").decode()
