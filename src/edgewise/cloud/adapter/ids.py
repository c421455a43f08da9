"""The cross-tokenizer adapter for cloud models that take token ids of another vocabulary."""

from concurrent.futures import Future

from edgewise.cloud.adapter.session import (
    STEP,
    AdaptedCloud,
    AdaptedSession,
    ReplyChunk,
    WordConsult,
)
from edgewise.cloud.adapter.word_boundary import WordBoundaries
from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest
from edgewise.cloud.redaction import Context, ContextFilter
from edgewise.completion import Completion
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of, fingerprint
from edgewise.errors import CloudRejected, UsageError, VocabularyMismatch
from edgewise.prompts import Prompt, prompt_ids


class Adapter(AdaptedCloud):
    """A wrapper around a cloud model, which is asked only between words, in its own token ids.

    It is for a model of another vocabulary. Others are wrapped too, to hide private words from them
    or to ask them between words only. `n` of a consult counts words here, so a completion may have
    more ids. `close` also closes the wrapped model.
    """

    def __init__(
        self,
        cloud: CloudModel,
        *,
        own: Tokenizer,
        edge: Tokenizer,
        context_filter: ContextFilter | None = None,
    ) -> None:
        """`own` is the cloud model's tokenizer; `context_filter` (or None) hides private words."""
        super().__init__(cloud.name, edge, context_filter)
        self.cloud, self.here, self.id_engine = cloud, cloud.here, cloud.id_engine
        self.own = self.own_tokenizer = own
        self.boundaries = WordBoundaries(edge, own)
        self.step = STEP if cloud.local is not None else None

    def identity(self) -> str:
        return f"{self.cloud.identity()} at boundaries{self.filtered}"

    def open(self, prompt: Prompt) -> "AdaptedIdSession":
        return AdaptedIdSession(self, prompt)

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        """Check that the wrapped cloud model has the ids of `own`, the tokenizer given as its own.

        `tokenizer` is the edge model's. Returns what was found, as a text. Raises
        `VocabularyMismatch` if the ids differ, or if this adapter was made for another edge model,
        and a `CloudError` if the cloud does not answer.
        """
        self.require_edge(tokenizer)
        try:
            how = self.cloud.check_vocabulary(self.own)
        except VocabularyMismatch as error:
            raise VocabularyMismatch(
                f"The cloud model {self.name!r} does not read text as its tokenizer does",
                hint="name the tokenizer of the model that it serves",
                setting="cloud_tokenizer",
            ) from error
        self.vocabulary_check = f"the cloud's ids are those of its own tokenizer ({how})"
        return self.vocabulary_check

    def close(self) -> None:
        self.cloud.close()


def adapted(
    cloud: CloudModel,
    edge: Tokenizer,
    own: Tokenizer | None = None,
    context_filter: ContextFilter | None = None,
) -> CloudModel:
    """Return `cloud`, in an `Adapter` if its vocabulary is not the edge model's.

    `edge` and `own` are the tokenizers of the edge and the cloud model. If `own` is None, a model
    in this process brings its own; any other is assumed to have the edge model's vocabulary, which
    its `check_vocabulary` verifies later. With a `context_filter`, which hides private words, an
    adapter is always made. Raises `UsageError` for a filter if `cloud` is an adapter (has
    `boundaries`) already.
    """
    if own is None and cloud.local is not None:
        own = cloud.local.tokenizer
    if context_filter is None:
        if own is None or fingerprint(own) == fingerprint(edge):
            return cloud
        return Adapter(cloud, own=own, edge=edge)
    if cloud.boundaries is not None:
        raise UsageError(
            "redact cannot be applied to a cloud model that is already adapted",
            hint="leave redact out, or give its adapter a context filter",
        )
    return Adapter(cloud, own=own or edge, edge=edge, context_filter=context_filter)


def checked(
    cloud: CloudModel,
    edge: Tokenizer,
    own: Tokenizer | None = None,
    context_filter: ContextFilter | None = None,
) -> CloudModel:
    """Return `adapted(cloud, edge, own, context_filter)` after its `check_vocabulary(edge)`.

    Raises the errors of both calls, such as `VocabularyMismatch`; `cloud` is closed first.
    """
    try:
        model = adapted(cloud, edge, own, context_filter)
        model.check_vocabulary(edge)
    except BaseException:
        cloud.close()
        raise
    return model


class AdaptedIdSession(AdaptedSession):
    """The session of an `Adapter`: sends prompt and answer in ids of the cloud model."""

    def __init__(self, adapter: Adapter, prompt: Prompt) -> None:
        super().__init__(adapter, prompt)
        self._adapter, self.own = adapter, adapter.own
        self._session: CloudSession | None = None
        self._ids: list[int] = []
        # SentencePiece reads a text as if a blank stood before it.
        self.puts_blanks = bytes_of(self.own, self.own.encode("x")) == b" x"

    def begin(self, before: Context) -> None:
        try:
            if before.messages is None:
                self._ids = self.own.encode_prompt(before.text, special=False)
            else:
                self._ids = prompt_ids(self.own, before.messages)
        except UsageError as error:
            # `own`: so that it pauses the cloud for no other prompt.
            said = f"The cloud model cannot read the prompt: {error}"
            raise CloudRejected(said, own=True) from error
        self._session = self._adapter.cloud.open(Prompt(tuple(self._ids), before.messages))

    def request(self, consult: WordConsult, deadline: float) -> Future[Completion]:
        assert self._session is not None
        consult.ids = ids = consult.ids or [*self._ids, *self.own.encode(consult.text)]
        sampling, sent = consult.request.sampling, consult.request.sent
        return self._session.ask(ConsultRequest(ids, consult.step, deadline, sampling, sent))

    def meter(self, consult: WordConsult, reply: Completion) -> Completion:
        return reply

    def read(self, consult: WordConsult, reply: Completion) -> ReplyChunk:
        """Return the new text in `reply`, the completion of one request, without end tokens.

        Adds the ids of that text to `consult.ids`, for the next request. Raises
        `CloudProtocolError` if the reply is invalid.
        """
        own = self.own
        reply.validate(asked=consult.step, prompt=len(consult.ids), size=own.size)
        ids = [token for token in reply.ids if token not in own.eos_ids]
        consult.ids = consult.ids + ids
        return ReplyChunk(
            data=bytes_of(own, ids),
            ended=reply.stopped or reply.ids[-1] in own.eos_ids,
            size=len(ids),
        )

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
