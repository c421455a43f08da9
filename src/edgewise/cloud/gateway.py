"""A cloud model behind a gateway, Edgewise's own server, to which only new ids are sent."""

import contextlib
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from edgewise.cloud.base import ConsultRequest, log_failure
from edgewise.cloud.engine import RemoteCloud
from edgewise.cloud.gateway_link import GatewayLink
from edgewise.completion import Completion, Outgoing, Recorder
from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.vocabulary import common_prefix
from edgewise.engines.connections import checked_address, proxy_of, unreachable
from edgewise.engines.detokenization import COMPARE_SECONDS, compare_all
from edgewise.engines.http import not_now, served_model
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.engines.vocabulary_check import FRESH_SECONDS
from edgewise.errors import CloudError, CloudProtocolError, CloudRejected, OtherVocabulary
from edgewise.prompts import Prompt
from edgewise.servers.http import tls_of
from edgewise.wire.protocol import MAX_FRAME, PATH, tokenizer_fingerprint

# To open a session, or end all, over a slow link; a comparison of vocabularies has its own time.
CHECK_SECONDS = 10.0
# A link that takes longer would miss most consults' deadlines; a farewell is not worth a wait.
CONNECT_SECONDS, CLOSE_SECONDS = 5.0, 1.0
HEARTBEAT_SECONDS = 20.0
"""Seconds between pings. A connection with no reply to a ping within half of this is broken."""

# Most unused sessions kept open for later answers: the gateway holds a conversation for each.
MOST_IDLE = 8
# New ids that a prefetch waits for once something was sent: a common KV cache block size.
PREFETCHED = 16


class GatewayText(LlamaServerEngine):
    """Asks a gateway for the text of ids, by HTTP requests like those to a llama-server."""

    async def end_text(self) -> str | None:
        try:
            meta = (await served_model(self)).meta
        except (CloudRejected, CloudProtocolError):
            return None
        return meta.eos_token if meta else None


class GatewayCloud(RemoteCloud):
    """A cloud model behind a gateway (Edgewise's own server in front of engines) at a URL.

    It is sent only the ids that it lacks. It serves one model: a `model` that is named here must be
    this one. `key` is sent as a bearer token. The certificate of an `https` URL is verified.
    `owner` is the `owned_by` in a gateway's list of models.
    """

    owner: ClassVar[str] = "edgewise-gateway"
    prefetches = True

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        super().__init__(checked_address(url))
        self.model = model
        self.tokenizer = ""
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._serves = ""
        self.links: set[GatewayLink] = set()
        self._idle: list[GatewayLink] = []
        self._text = GatewayText(url, key=key)
        self._compared = 0.0

    def identity(self) -> str:
        return f"{self.name} {self._serves}"

    def open(self, prompt: Prompt) -> "GatewaySession":
        return GatewaySession(self)

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        """Check that the gateway's engine has the ids of `tokenizer`, the edge model's.

        Compares the ids of fixed strings and, if the gateway detokenizes, the text of all ids, or
        of as many as 20 s allow (`COMPARE_SECONDS`). Returns what was found, as a text. Raises
        `VocabularyMismatch` if ids differ, and a `CloudError` if the gateway does not answer.
        """
        self.tokenizer = tokenizer_fingerprint(tokenizer)
        try:
            self.check_remotely(self._check(tokenizer), CHECK_SECONDS + COMPARE_SECONDS, tokenizer)
        except OtherVocabulary as error:
            raise self._text.mismatch("has other ids than the edge model") from error
        return self.vocabulary_check

    def close(self) -> None:
        # A gateway that is gone need not be told, and drops idle sessions by itself.
        with contextlib.suppress(CloudError):
            self.submit(self._leave(), CHECK_SECONDS).result()
        super().close()

    def take(self, ids: Sequence[int]) -> GatewayLink:
        """Return a link (a session with the gateway) for an answer whose first request sends `ids`.

        Prefers the idle link whose session has the longest common prefix with `ids`, if that is at
        least half of the ids that the gateway holds for it. Otherwise makes a new link or, if 8
        (`MOST_IDLE`) are idle, takes the one idle for longest. `give` makes the link idle again.
        Call it in the I/O thread.
        """
        best = max(self._idle, key=lambda link: link.shared(ids), default=None)
        # A short prefix may be a system message alone, and the session another conversation's.
        if best is None or 2 * best.shared(ids) < best.held:
            if len(self._idle) < MOST_IDLE:
                self.links.add(link := self._link())
                return link
            best = self._idle[0]
        self._idle.remove(best)
        return best

    async def give(self, link: GatewayLink) -> None:
        """Make `link` idle, for later answers; of over 8, the one idle for longest is closed."""
        self._idle.append(link)
        if len(self._idle) > MOST_IDLE:
            self.links.discard(oldest := self._idle.pop(0))
            await oldest.forget()

    async def require_same(self, served: str) -> None:
        """Raise a `CloudError` unless the gateway serves the right model, with unchanged ids.

        `served` is the model's name, as a new connection reports it; `self.model`, if set, must
        equal it. Some ids must decode to the same text as when the vocabulary was checked. That is
        tested at most once a second, and only if the gateway detokenizes.
        """
        if self.model not in (None, served):
            raise CloudRejected(
                f"The gateway at {self.name!r} serves no model {self.model!r}",
                hint=f"it serves {served!r}",
                setting="cloud_model",
            )
        watched = self._text.watched
        if watched is None or time.monotonic() - self._compared < FRESH_SECONDS:
            return
        if await self._text.detokenize(watched.ids) != watched.text:
            raise OtherVocabulary(
                f"The gateway at {self.name!r} now decodes the same ids to another text",
                hint="restart",
            )
        self._compared = time.monotonic()

    async def socket(self) -> ClientConnection:
        """Open a WebSocket to the gateway. Raises a `CloudError` if that fails."""
        secure = self.name.startswith("https:")
        try:
            return await _Connect(
                f"ws{self.name.removeprefix('http')}{PATH}",
                additional_headers=self._headers,
                compression=None,
                max_size=MAX_FRAME,
                proxy=proxy_of(self.name)[1],
                ssl=tls_of(self.name) if secure else None,
                open_timeout=CONNECT_SECONDS,
                close_timeout=CLOSE_SECONDS,
                ping_interval=HEARTBEAT_SECONDS,
                ping_timeout=HEARTBEAT_SECONDS / 2,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            problem = not_now(self.name, status) or CloudProtocolError(
                f"{self.name!r} is not a gateway (HTTP {status})", hint="check the address"
            )
            raise problem from error
        except (WebSocketException, OSError, EOFError, UnicodeError) as error:
            raise unreachable(self.name, error) from error

    def _link(self) -> GatewayLink:
        return GatewayLink(self.name, self.tokenizer, self.socket, self.require_same)

    async def _check(self, tokenizer: Tokenizer) -> None:
        link = self._link()
        try:
            self._text.watched, self._text.described = None, await self._text.describe()
            opened = await link.connect(Outgoing())
            compared = await compare_all(self._text, tokenizer)
        except BaseException:
            # Else the gateway would keep a session that nobody uses.
            await link.forget()
            raise
        self._compared = time.monotonic()
        self._serves = f"{opened.engine} {opened.model}"
        self.verifies = opened.verifies
        self.links.add(link)
        await self.give(link)
        same = f"the gateway's {opened.engine} engine has the same ids for {len(PROBES)} strings"
        self.vocabulary_check = same + compared

    async def _leave(self) -> None:
        for link in list(self.links):
            await link.forget()

    async def _hang_up(self) -> None:
        await self._text.close()


class GatewaySession:
    """The session of a `GatewayCloud`: consults and prefetches send the ids that the gateway lacks.

    The ids of its first request decide which link it uses until `close` (`GatewayCloud.take`).
    """

    def __init__(self, gateway: GatewayCloud) -> None:
        self._gateway = gateway
        self._link: GatewayLink | None = None
        self._sent: list[int] = []
        self._closed = False

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        self._sent = list(request.ids)
        return self._gateway.submit(self._ask(request), request.deadline)

    def prefetch(self, ids: Sequence[int], record: Recorder = Outgoing) -> Future[None] | None:
        fresh = len(ids) - common_prefix(self._sent, ids)
        if not fresh or (self._sent and fresh < PREFETCHED):
            return None
        self._sent = list(ids)
        return self._in_background(self._prefetch(self._sent, record()))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._in_background(self._leave())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        under_way = self._gateway.submit(work, CHECK_SECONDS)
        under_way.add_done_callback(log_failure)
        return under_way

    def _linked(self, ids: Sequence[int]) -> GatewayLink:
        self._link = self._link or self._gateway.take(ids)
        return self._link

    async def _ask(self, request: ConsultRequest) -> Completion:
        completion = await self._linked(request.ids).ask(request)
        return self._gateway.checked(completion, request)

    async def _prefetch(self, ids: list[int], sent: Outgoing) -> None:
        # Best effort: what goes wrong shows at the next consult.
        with contextlib.suppress(CloudError):
            await self._linked(ids).prefetch(ids, sent)

    async def _leave(self) -> None:
        if self._link is not None:
            await self._gateway.give(self._link)


class _Connect(connect):
    """A WebSocket client that fails on a redirect instead of following it."""

    def process_redirect(self, exc: Exception) -> Exception:
        # To follow it would carry the key elsewhere.
        return exc
