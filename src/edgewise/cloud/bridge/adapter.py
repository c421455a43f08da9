"""A cloud model of another vocabulary: its own template, its own ids, its words in the edge's."""

from concurrent.futures import Future

from edgewise.cloud.base import CloudModel, CloudSession, then
from edgewise.cloud.bridge.context_filter import Context, ContextFilter, ContextFilterMaker
from edgewise.cloud.bridge.session import (
    AdaptedCloud,
    BridgeSession,
    ReplyChunk,
    Wanted,
    WordConsult,
    request_budget,
)
from edgewise.cloud.bridge.word_boundary import WordBoundaries
from edgewise.completion import Completion, Sent
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of, fingerprint
from edgewise.engines.base import Abilities
from edgewise.errors import CloudRejected, UsageError, VocabularyMismatch
from edgewise.prompts import Prompt, prompt_ids
from edgewise.sampling import Sampling


class Bridge(AdaptedCloud):
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
        super().__init__(cloud.name, edge, view)
        self.cloud, self.own = cloud, own
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
        seen = f", {self.view.name}" if self.view.name else ""
        return f"{self.cloud.identity()} at {'words' if self._words else 'boundaries'}{seen}"

    @property
    def here(self) -> bool:
        return self.cloud.here

    def requests(self, n: int) -> tuple[int, int]:
        return request_budget(n, local=self.cloud.local is not None).requests

    def open(self, prompt: Prompt) -> "IdBridgeSession":
        return IdBridgeSession(self, prompt)

    def check(self, tokenizer: Tokenizer) -> str:
        """Prove that the cloud's ids are those of its tokenizer; raises as `CloudModel.check`."""
        self.require_edge(tokenizer)
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
    context_filter: ContextFilterMaker | None = None,
) -> CloudModel:
    """`cloud` itself where its vocabulary is the `edge`'s or not known here, else behind a bridge.

    `own` is the cloud's tokenizer; that of a model in this process is in its file. Where the cloud
    is to see less than everything there is always a bridge: what is not known to be another
    vocabulary is taken for the edge's, which `check` proves. Raises `UsageError` for a bridge,
    which has a view already.
    """
    if own is None and cloud.local is not None:
        own = cloud.local.tokenizer
    if context_filter is not None:
        if cloud.boundaries is not None:
            raise UsageError(
                "This cloud model decides itself what it shows",
                hint="leave redact and cloud-context out, or give its bridge a view",
            )
        own = own or edge
        return Bridge(cloud, own=own, edge=edge, view=context_filter(own))
    if own is None or fingerprint(own) == fingerprint(edge):
        return cloud
    return Bridge(cloud, own=own, edge=edge)


class IdBridgeSession(BridgeSession):
    """Prompt and answer go in the cloud's ids."""

    def __init__(self, bridge: Bridge, prompt: Prompt) -> None:
        super().__init__(bridge, prompt)
        self._bridge, self.own = bridge, bridge.own
        self.ids: list[int] = []
        self.session: CloudSession | None = None

    @property
    def puts_blanks(self) -> bool:
        """SentencePiece reads a text as if a blank stood before it."""
        return bytes_of(self.own, self.own.encode("x")) == b" x"

    def begin(self, before: Context) -> None:
        try:
            if before.messages is None:
                self.ids = self.own.encode_prompt(before.text, special=False)
            else:
                self.ids = prompt_ids(self.own, before.messages)
        except UsageError as error:
            raise CloudRejected(f"For the cloud model: {error}") from error
        self.session = self._bridge.cloud.open(Prompt(tuple(self.ids), before.messages))

    def consult(self, wanted: Wanted) -> "_IdConsult":
        assert self.session is not None
        ids = [*self.ids, *self.own.encode(wanted.text)]
        local = self._bridge.cloud.local is not None
        return _IdConsult(self, self.session, ids, wanted, local=local)

    def send_ahead(self, answer: str, sent: Sent | None) -> int:
        assert self.session is not None
        ids = [*self.ids, *self.own.encode(answer)]
        if sent is not None:
            sent.prefix = ids
        return self.session.prefetch(ids, sent)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


class _IdConsult(WordConsult):
    """A request has the ids of those before it, as the cloud wrote them."""

    def __init__(
        self,
        bridge: IdBridgeSession,
        session: CloudSession,
        ids: list[int],
        wanted: Wanted,
        *,
        local: bool,
    ) -> None:
        """`ids` are what the cloud is sent; a `local` cloud is asked for little at once."""
        super().__init__(bridge, wanted, request_budget(wanted.words, local=local))
        self._cloud, self._own = session, bridge.own
        self._ids, self._first = ids, len(ids)

    @property
    def exhausted(self) -> bool:
        return len(self._ids) - self._first >= self.most

    def request(self, sampling: Sampling, deadline: float, sent: Sent | None) -> Future[ReplyChunk]:
        ids = list(self._ids)
        if sent is not None:
            sent.prefix = ids
        return then(self._cloud.ask(ids, self.step, sampling, deadline, sent), self._chunk)

    def _chunk(self, completion: Completion) -> ReplyChunk:
        """Raises `CloudProtocolError` for an invalid completion."""
        own = self._own
        completion.check(asked=self.step, prompt=len(self._ids), size=own.size)
        ids = [token for token in completion.ids if token not in own.eos_ids]
        self._ids += ids
        return ReplyChunk(
            data=bytes_of(own, ids),
            ended=completion.stopped or completion.ids[-1] in own.eos_ids,
            tokens=len(completion.ids),
            cached=completion.cached,
            computed=completion.computed,
            prompt=completion.prompt,
            engine_seconds=completion.engine_seconds,
        )
