"""A cloud model behind a chat API that cannot continue a text: it verifies passages instead.

A session is asked to verify draft tokens, the last ids of an answer. It returns how many of them
are accepted, and ids to replace the sentence after the accepted ones.
"""

import codecs
import time
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import accumulate, pairwise
from typing import NamedTuple

from msgspec.structs import replace

from edgewise.cloud.adapter.session import begun, preceding
from edgewise.cloud.adapter.text import ApiCloud, billed
from edgewise.cloud.base import CloudSession, ConsultRequest, failed
from edgewise.cloud.engine import Clients
from edgewise.cloud.passages import (
    SCHEMA,
    VERSION,
    Verdict,
    in_code,
    of_form,
    question,
    sentence_ends,
    verdict_of,
)
from edgewise.cloud.redaction import FilteredAnswer, FilteredContext
from edgewise.completion import Completion
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of, ids_of_text
from edgewise.engines.base import NOBODY, Client
from edgewise.engines.text import TextContinuation, TextRequest
from edgewise.errors import (
    Blocked,
    CloudError,
    CloudProtocolError,
    CloudRejected,
    EdgewiseError,
    NothingUsable,
)
from edgewise.prompts import Message, Prompt
from edgewise.prompts.tool_formats import has_call

# Most tokens of a reply with a verdict: some models reason before it, and bill that too.
WRITTEN = 1024
# A hosted model may load, or reason, first.
PROBE_SECONDS, _TRIES = 60.0, 2

_PROBE, _STANDS = ("Two and two are four.", "Three and three are seven."), 1
_ASKED = (Message("user", "What are two and two, and what are three and three?"),)


class _Passage(NamedTuple):
    """A passage as the cloud is shown it, after the answer's text `before`. Each of the `sentences`
    begins after so many of the passage's tokens (`begins`); `shown.restored` undoes redaction."""

    before: str
    sentences: Sequence[str]
    begins: Sequence[int]
    shown: FilteredAnswer


class ReaderCloud(ApiCloud):
    """A cloud model behind a chat API, which verifies an answer passage by passage.

    It proofreads passages (paragraphs or blocks of code) as text, so it works with any vocabulary.
    `seconds` is how long `check_vocabulary` took.
    """

    reads_passages = True
    verifies = True
    seconds = 0.0

    def identity(self) -> str:
        how = f"passages, prompt {VERSION}{self.filtered}"
        return f"{self.name} {self.engine.dialect} {self.engine.model or ''} in {how}"

    def requests(self, n: int) -> tuple[int, int]:
        return 1, n or WRITTEN

    def open(self, prompt: Prompt) -> "ReaderSession":
        return ReaderSession(self, prompt)

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        """Check that the API gives verdicts: it is sent a passage with an obvious mistake.

        `reads_well` becomes False if neither of two replies finds the mistake. Returns how the
        model is used, as a text. Raises `VocabularyMismatch` if this object was made for another
        edge model, and a `CloudError`: `CloudRejected` if a reply is not of a verdict's form.
        """
        self.require_edge(tokenizer)
        begun = time.monotonic()
        # A right verdict may be missed once, by a draw.
        self.reads_well = any(
            self.submit(self._probe(), PROBE_SECONDS).result() for _ in range(_TRIES)
        )
        self.seconds = time.monotonic() - begun
        self.vocabulary_check = (
            f"none is needed: as {self.engine.dialect} it checks and rewrites passages"
        )
        return self.vocabulary_check

    async def verdict(
        self, messages: Sequence[Message], client: Client = NOBODY
    ) -> TextContinuation:
        """Send `messages`, made by `question`; return the reply, to be parsed with `verdict_of`.

        `client` names the session and the consult to the API. Raises a `CloudError`.
        """
        return await self.engine.complete(TextRequest(messages, "", WRITTEN, schema=SCHEMA), client)

    async def _probe(self) -> bool:
        reply = await self.verdict(question(_ASKED, "", _PROBE))
        try:
            of_form(reply.text)
        except NothingUsable as error:
            raise CloudRejected(
                f"{self.name!r} gives no verdict on a passage ({error.message.rstrip('.')})",
                hint="choose another model there",
                setting="cloud_model",
            ) from error
        try:
            return verdict_of(reply.text, _PROBE).stand == _STANDS
        except NothingUsable:
            return False


class ReaderSession(CloudSession):
    """The session of a `ReaderCloud`.

    Each consult is a chat of its own, which states everything: the conversation, the answer so far
    and the sentences to verify.
    """

    def __init__(self, cloud: ReaderCloud, prompt: Prompt) -> None:
        self._cloud, self._edge, self._prompt = cloud, cloud.edge, prompt
        self._before = preceding(cloud.edge, prompt)
        self._context: FilteredContext | None = None
        self._clients = Clients()

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        """Ask for a verdict on the request's last `verify` ids; return the completion's future.

        `stand` of the completion is the number of accepted ids. `ids` replace the sentence after
        these; the draft tokens after that sentence are to be dropped. If the request has an `n`,
        the cloud writes a whole answer of at most `n` ids instead, and `stand` is 0. The future
        fails with a `CloudError`. Raises `Blocked` if the context filter forbids sending.
        """
        if not request.verify and len(request.ids) > len(self._prompt.ids):
            return failed(CloudRejected(f"{self._cloud.name!r} continues no answer."))
        try:
            messages = self._shown_before()
            passage = None if request.n else self._passage(request)
        except Blocked:
            raise
        except EdgewiseError as error:
            return failed(error if isinstance(error, CloudError) else CloudError(str(error)))
        # Of blanks there is nothing to read: nothing is sent, and nothing billed.
        if passage is not None and not passage.sentences:
            done = Future[Completion]()
            nothing = Completion(ids=(), logprobs=(), stand=request.verify, cached=0, computed=0)
            done.set_result(nothing)
            return done
        client = self._clients.of(request.sent, time.monotonic() + request.deadline)
        if passage is None:
            return self._cloud.submit(self._whole(messages, request, client), request.deadline)
        asked = question(messages, passage.before, passage.sentences)
        return self._cloud.submit(self._read(asked, passage, request, client), request.deadline)

    async def _whole(
        self, messages: Sequence[Message], request: ConsultRequest, client: Client
    ) -> Completion:
        """Have the whole answer written, in place of the edge model's beginning."""
        n, sampling = request.n, request.sampling
        reply = await self._cloud.engine.complete(TextRequest(messages, "", n, sampling), client)
        shown = FilteredAnswer("") if self._context is None else self._context.answer("", "")
        restored = shown.restored(reply.text, ended=True)
        ids = ids_of_text(self._edge, (), restored.text)
        if not ids or restored.left is not None:
            error = NothingUsable("The cloud wrote an answer of which nothing can be used.")
            error.meter = billed(reply, n)
            raise error
        if reply.ended:
            ids.append(min(self._edge.eos_ids or frozenset([0])))
        kept = tuple(ids[:n])
        logprobs = (None,) * len(kept)
        return replace(billed(reply, n), stand=0, ids=kept, logprobs=logprobs)

    async def _read(
        self,
        asked: Sequence[Message],
        passage: _Passage,
        request: ConsultRequest,
        client: Client,
    ) -> Completion:
        reply = await self._cloud.verdict(asked, client)
        try:
            if not reply.ended:
                raise NothingUsable(f"The cloud's verdict was longer than {WRITTEN} tokens.")
            return self._completion(
                verdict_of(reply.text, passage.sentences), passage, request, reply
            )
        except NothingUsable as error:
            error.meter = billed(reply, WRITTEN)
            raise

    def _completion(
        self,
        verdict: Verdict,
        passage: _Passage,
        request: ConsultRequest,
        reply: TextContinuation,
    ) -> Completion:
        metered = replace(billed(reply, WRITTEN), stand=request.verify)
        if verdict.replacement is None:
            return metered
        stand = passage.begins[verdict.stand]
        start = len(self._prompt.ids)
        before = request.ids[start : len(request.ids) - request.verify + stand]
        written = begun(self._edge, before)
        restored = passage.shown.restored(verdict.replacement, begun=written, ended=True)
        if restored.left is not None:
            raise NothingUsable("The cloud wrote an unknown placeholder.")
        # The edge alone decides which tool is called, and how.
        if has_call(written + restored.text) or has_call(begun(self._edge, request.ids[start:])):
            raise NothingUsable("The cloud's replacement begins or changes a tool call.")
        ids = ids_of_text(self._edge, before, restored.text)
        if not ids:
            raise CloudProtocolError("The cloud's text cannot be encoded in the edge's vocabulary.")
        return replace(metered, ids=tuple(ids), logprobs=(None,) * len(ids), stand=stand)

    def _shown_before(self) -> Sequence[Message]:
        """Return the conversation as the cloud model is shown it. Raises `Blocked`."""
        before = self._before
        if self._cloud.context_filter is not None:
            self._context = self._context or self._cloud.context_filter.of(before)
            before = self._context.shown
        if before.messages is None:
            return (Message("user", before.text),)
        return [replace(one, local=False) for one in before.messages]

    def _passage(self, request: ConsultRequest) -> _Passage:
        """Divide the answer into the text so far and the sentences to verify. Raises `Blocked`."""
        start = len(self._prompt.ids)
        first = len(request.ids) - request.verify
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        before = decoder.decode(bytes_of(self._edge, request.ids[start:first]))
        begins = [] if decoder.getstate()[0] else [0]
        pieces = [decoder.decode(bytes_of(self._edge, [one])) for one in request.ids[first:]]
        text = before + "".join(pieces)
        # All at once: a word that is found late is hidden where it stands earlier, too.
        shown = FilteredAnswer(text) if self._context is None else self._context.answer(text)
        places = [*accumulate(map(len, pieces), initial=len(before))]
        # No sentence begins inside a character or a private word.
        cuts = [
            (end, at)
            for end in (*begins, *sentence_ends(pieces, code=in_code(before)))
            if (at := shown.shown(places[end])) is not None
        ]
        sentences = [shown.text[at:to] for (_, at), (_, to) in pairwise(cuts)]
        return _Passage(
            shown.text[: cuts[0][1]],
            [one for one in sentences if one.strip()],
            [end for end, _ in cuts],
            shown,
        )
