"""A cloud model of another vocabulary: its own template, its own ids, its words in the edge's."""

from collections.abc import Sequence
from concurrent.futures import Future

from edgewise.cloud.base import CloudModel, CloudSession, then
from edgewise.cloud.bridge.context_filter import Context, ContextFilter, ContextFilterMaker, Plain
from edgewise.cloud.bridge.session import BridgeSession, ReplyChunk, preceding, request_budget
from edgewise.cloud.bridge.word_boundary import WordBoundaries
from edgewise.completion import Completion, Sent
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of, fingerprint
from edgewise.engines.base import Abilities
from edgewise.errors import CloudRejected, UsageError, VocabularyMismatch
from edgewise.prompts import Prompt, prompt_ids
from edgewise.sampling import Sampling


class Bridge(CloudModel):
    """Implements `CloudModel` over a cloud with another vocabulary, asked at word boundaries.

    A request for n tokens is one for n words, so a completion may have more ids than n. `close`
    closes `cloud` too.
    """

    def __init__(
        self,
        cloud: CloudModel,
        *,
        own: Tokenizer,
        edge: Tokenizer,
        words: bool = False,
        view: ContextFilter | None = None,
    ) -> None:
        """`own` is the cloud's tokenizer, `view` what the cloud gets to see (default: everything).

        With `words` a consult waits until a word opens, as it would for a cloud that takes text
        only; without, until both vocabularies divide.
        """
        self.cloud, self.own, self.edge = cloud, own, edge
        self._view = view or Plain()
        self.name = cloud.name
        self._boundaries = WordBoundaries(edge, None if words else own)
        self._words = words

    @property
    def own_tokenizer(self) -> Tokenizer:
        return self.own

    @property
    def boundaries(self) -> WordBoundaries:
        return self._boundaries

    @property
    def abilities(self) -> Abilities | None:
        return self.cloud.abilities

    def identity(self) -> str:
        seen = f", {self._view.name}" if self._view.name else ""
        return f"{self.cloud.identity()} at {'words' if self._words else 'boundaries'}{seen}"

    @property
    def here(self) -> bool:
        return self.cloud.here

    def local_only(self, prompt: Prompt) -> bool:
        return self._view.local_only(preceding(self.edge, prompt))

    def requests(self, n: int) -> tuple[int, int]:
        return request_budget(n, local=self.cloud.local is not None).requests

    def open(self, prompt: Prompt) -> BridgeSession:
        transport = ByIds(self.cloud, self.own)
        return BridgeSession(transport, self._view, prompt, edge=self.edge, name=self.name)

    def check(self, tokenizer: Tokenizer) -> str:
        """Prove that the cloud's ids are those of its tokenizer; raises as `CloudModel.check`."""
        if fingerprint(tokenizer) != fingerprint(self.edge):
            raise VocabularyMismatch(
                f"This bridge to {self.name!r} leads from another vocabulary",
                hint="make one for this edge model",
            )
        try:
            proof = self.cloud.check(self.own)
        except VocabularyMismatch as error:
            raise VocabularyMismatch(
                f"The cloud model {self.name!r} does not read text as its tokenizer does",
                hint="name the tokenizer of the model that it serves",
                setting="cloud_tokenizer",
            ) from error
        self.proof = f"the cloud's ids are those of its own tokenizer ({proof})"
        return self.proof

    def close(self) -> None:
        self.cloud.close()


def bridged(
    cloud: CloudModel,
    edge: Tokenizer,
    own: Tokenizer | None = None,
    viewing: ContextFilterMaker | None = None,
) -> CloudModel:
    """`cloud` itself where its vocabulary is the `edge`'s or not known here, else behind a bridge.

    `own` is the cloud's tokenizer; that of a model in this process is in its file. Where the cloud
    is to see less than everything there is always a bridge: what is not known to be another
    vocabulary is taken for the edge's, which `check` proves. Raises `UsageError` for a bridge,
    which has a view already.
    """
    if own is None and cloud.local is not None:
        own = cloud.local.tokenizer
    if viewing is not None:
        if cloud.boundaries is not None:
            raise UsageError(
                "This cloud model decides itself what it shows",
                hint="leave redact and cloud-context out, or give its bridge a view",
            )
        own = own or edge
        return Bridge(cloud, own=own, edge=edge, view=viewing(own))
    if own is None or fingerprint(own) == fingerprint(edge):
        return cloud
    return Bridge(cloud, own=own, edge=edge)


class ByIds:
    """Implements `Requester` over a cloud model that speaks ids, whose tokenizer is here."""

    def __init__(self, cloud: CloudModel, own: Tokenizer) -> None:
        self._cloud, self._own = cloud, own

    def open(self, before: Context) -> "ByIdsSession":
        try:
            begun = self._read(before)
        except UsageError as error:
            raise CloudRejected(f"For the cloud model: {error}") from error
        session = self._cloud.open(Prompt(tuple(begun), before.messages))
        return ByIdsSession(session, begun, self._own, local=self._cloud.local is not None)

    def _read(self, before: Context) -> list[int]:
        if before.messages is not None:
            return prompt_ids(self._own, before.messages)
        return self._own.encode_prompt(before.text, special=False)


class ByIdsSession:
    """Implements `RequesterSession`: prompt and answer in the cloud's ids."""

    holds_lines = False
    leaves_thoughts = False

    def __init__(
        self, session: CloudSession, begun: list[int], own: Tokenizer, *, local: bool
    ) -> None:
        """`begun` is the prompt; a `local` cloud is asked for little at once."""
        self._session, self._begun, self._own = session, begun, own
        self._local = local

    @property
    def puts_blanks(self) -> bool:
        """SentencePiece reads a text as if a blank stood before it."""
        return bytes_of(self._own, self._own.encode("x")) == b" x"

    def begin(self, answer: str, words: int) -> "RequestsByIds":
        known = [*self._begun, *self._own.encode(answer)]
        return RequestsByIds(self._session, known, self._own, words, local=self._local)

    def prefetch(self, answer: str, sent: Sent | None = None) -> int:
        known = [*self._begun, *self._own.encode(answer)]
        if sent is not None:
            sent.prefix = known
        return self._session.prefetch(known, sent)

    def close(self) -> None:
        self._session.close()


class RequestsByIds:
    """Implements `Requests`: a request has the ids of those before it, as the cloud wrote them."""

    def __init__(
        self, session: CloudSession, known: list[int], own: Tokenizer, words: int, *, local: bool
    ) -> None:
        """`known` is what the cloud is sent."""
        self._session, self._known, self._own = session, known, own
        self._step, self._most = request_budget(words, local=local)
        self._written: list[int] = []

    @property
    def exhausted(self) -> bool:
        return len(self._written) >= self._most

    def more(
        self, sampling: Sampling, deadline: float, sent: Sent | None = None
    ) -> Future[ReplyChunk]:
        known = [*self._known, *self._written]
        if sent is not None:
            sent.prefix = known
        asked = self._session.ask(known, self._step, sampling, deadline, sent)
        return then(asked, self._part)

    def _part(self, completion: Completion) -> ReplyChunk:
        """Raises `CloudProtocolError` for an invalid completion."""
        own = self._own
        prompt = len(self._known) + len(self._written)
        completion.check(asked=self._step, prompt=prompt, size=own.size)
        ids: Sequence[int] = [token for token in completion.ids if token not in own.eos_ids]
        self._written += ids
        return ReplyChunk(
            data=bytes_of(own, ids),
            ended=completion.stopped or completion.ids[-1] in own.eos_ids,
            tokens=len(completion.ids),
            cached=completion.cached,
            computed=completion.computed,
            prompt=completion.prompt,
            engine_seconds=completion.engine_seconds,
        )
