"""A simulated chat model that verifies whole sentences, to measure what that costs."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest
from edgewise.cloud.passages import in_code, sentence_ends
from edgewise.completion import Completion
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.loop.policy import RATIO
from edgewise.prompts import Prompt

AT_ONCE, MOST = 16, 128
"""Tokens that one request asks the cloud for, and the most that it writes for a sentence."""


class AbleReader(CloudModel):
    """A cloud model that accepts sentences, and rewrites the first one that it rejects.

    It rejects a sentence with a token that `cloud`, a model which verifies tokens, would not write
    itself and finds less than `RATIO` (0.3) times as probable as its likeliest token.
    """

    reads_passages = verifies = True

    def __init__(self, cloud: CloudModel, tokenizer: Tokenizer) -> None:
        self.cloud, self.tokenizer = cloud, tokenizer
        self.name = f"{cloud.name} in passages"
        self.here, self.vocabulary_check = cloud.here, cloud.vocabulary_check
        self.local = cloud.local

    def open(self, prompt: Prompt) -> CloudSession:
        return _Session(self.cloud.open(prompt), self.tokenizer, len(prompt.ids))

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        return self.cloud.check_vocabulary(tokenizer)

    def identity(self) -> str:
        return f"{self.cloud.identity()} in passages"

    def close(self) -> None:
        self.cloud.close()


class _Session(CloudSession):
    def __init__(self, session: CloudSession, tokenizer: Tokenizer, start: int) -> None:
        self._session, self._tokenizer, self._start = session, tokenizer, start
        self._thread = ThreadPoolExecutor(1)

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        return self._thread.submit(self._read, request)

    def close(self) -> None:
        self._thread.shutdown()
        self._session.close()

    def _read(self, request: ConsultRequest) -> Completion:
        first = len(request.ids) - request.verify
        verified = self._session.ask(request).result().verified
        block = request.ids[first:]
        before = self._text(request.ids[self._start : first])
        start = 0
        for end in sentence_ends([self._text([one]) for one in block], code=in_code(before)):
            places = zip(block[start:end], verified[start:end], strict=True)
            if any(token != one.id and one.ratio < RATIO for token, one in places):
                return self._rewritten(request, first + start, before)
            start = end
        return Completion(ids=(), logprobs=(), stand=request.verify)

    def _rewritten(self, request: ConsultRequest, at: int, before: str) -> Completion:
        """Return a completion: the cloud's sentence from index `at`, or its end of the answer."""
        prefix, ids, ends = [*request.ids[:at]], list[int](), [0, 0]
        code = in_code(before + self._text(request.ids[len(request.ids) - request.verify : at]))
        while len(ends) < 2 or ends[0] == len(ids):
            asked = replace(request, ids=[*prefix, *ids], n=AT_ONCE, verify=0)
            more = self._session.ask(asked).result()
            ids += more.ids
            ends = sentence_ends([self._text([one]) for one in ids], code=code)
            # Fewer than were asked for: the cloud's context is full.
            if more.stopped or len(ids) >= MOST or len(more.ids) < AT_ONCE:
                break
        ids = ids[: ends[0]] if ends else ids
        stand = at - (len(request.ids) - request.verify)
        return Completion(ids=tuple(ids), logprobs=(None,) * len(ids), stand=stand)

    def _text(self, ids: Sequence[int]) -> str:
        return bytes_of(self._tokenizer, ids).decode("utf-8", "ignore")
