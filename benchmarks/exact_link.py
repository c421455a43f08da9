"""Whether exact verification is the cloud's own answer over a bad link.

`python -m benchmarks.exact_link`: the bundled edge, a gateway process with the bundled cloud, an
emulated link between them, whose connections are cut behind so many of a hundred tokens and which
stalls for a moment behind others. Each answer is compared, id by id, with what the cloud's model
writes by itself in this process. Where two ids are as likely, a pass over a block may choose
otherwise than one over a token: such ties are told with their margin (nats). Prints Markdown; exit
code 1 where an answer differs otherwise though every token of it was verified.
"""

import argparse
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing

import msgspec

from edgewise.addresses import bundled
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.base import EdgeModel, Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.events import Event, Finished, Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.testing.link import Link, Quality
from edgewise_lab.bench.link import gateway_process, http_target
from edgewise_lab.evaluation.systems import edge_alone, question_ids
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.tables import line

STALL = 0.3
"""Seconds."""

TIE = 0.2
"""Nats: by less the cloud's own passes over these ids, in other batches, differ."""


Margin = Callable[[list[int], int, int], float]


class Faulty:
    """A link that breaks behind some tokens; `cuts` and `stalls` count."""

    def __init__(self, link: Link, often: float, seed: int) -> None:
        self._link, self._often, self._rng = link, often, random.Random(seed)
        self.cuts = self.stalls = 0
        self._mends = threading.Timer(0, link.restore)

    def end(self) -> None:
        """Wait for the last stall to be over."""
        if self._mends.is_alive():
            self._mends.join()

    def passed(self) -> None:
        """One more token was written."""
        drawn = self._rng.random()
        if drawn < self._often:
            self.cuts += 1
            self._link.cut()
        elif drawn < 1.5 * self._often:
            self.stalls += 1
            self._link.stall()
            self._mends = threading.Timer(STALL, self._link.restore)
            self._mends.start()


class Compared(msgspec.Struct):
    """Answers that are the cloud's own, and what happened to the others; `ties` are margins."""

    questions: int = 0
    equal: int = 0
    partly: int = 0
    ties: list[float] = []
    wrong: list[str] = []
    tokens: Counter[str] = msgspec.field(default_factory=Counter[str])
    calls: int = 0

    def add(self, question: str, events: list[Event], own: list[int], margin: Margin) -> None:
        """`own` are the ids that the cloud writes by itself."""
        tokens = [event for event in events if isinstance(event, Token)]
        finished = events[-1]
        assert isinstance(finished, Finished)
        self.questions += 1
        self.calls += finished.usage.cloud_calls
        self.tokens.update(token.reason for token in tokens)
        ids = [token.id for token in tokens]
        at = next((i for i, pair in enumerate(zip(ids, own, strict=False)) if len({*pair}) > 1), -1)
        if ids == own:
            self.equal += 1
        elif any(token.reason not in ("verified", "corrected") for token in tokens):
            self.partly += 1
        elif at >= 0 and (found := margin(own[:at], own[at], ids[at])) < TIE:
            self.ties.append(found)
        else:
            self.wrong.append(question)


def margin_of(model: EdgeModel, prompt: list[int]) -> Margin:
    """By how much the logprobs of two ids differ after some of an answer."""

    def margin(before: list[int], one: int, other: int) -> float:
        with closing(model.session(Needs.NOTHING)) as session:
            session.open([*prompt, *before])
            step = session.step()
            return abs(step.logprob(one) - step.logprob(other))

    return margin


def answers(
    questions: tuple[Question, ...], most: int, often: float, quality: Quality
) -> tuple[Faulty, Compared]:
    """The questions' answers over a link that breaks so often."""
    with ExitStack() as stack:
        edge = stack.enter_context(LlamaModel(bundled("edge"), threads=1))
        alone = stack.enter_context(LlamaModel(bundled("cloud"), threads=1))
        url = stack.enter_context(gateway_process("bundled"))
        link = stack.enter_context(closing(Link(*http_target(url), quality)))
        cloud = stack.enter_context(closing(GatewayCloud(link.url)))
        cloud.check_vocabulary(edge.tokenizer)
        faulty, found = Faulty(link, often, seed=0), Compared()
        stack.callback(faulty.end)
        policy = Policy(verify="exact")
        decoder = Decoder(edge, router=Constant(0.0), policy=policy, cloud=cloud)
        for question in questions:
            own = [token.id for token in edge_alone(alone, most).ask(question).tokens]
            prompt, told = question_ids(edge.tokenizer, question), list[Event]()
            with decoder.stream(prompt, max_tokens=most) as events:
                for event in events:
                    told.append(event)
                    if isinstance(event, Token):
                        faulty.passed()
            found.add(question.id, told, own, margin_of(alone, prompt))
    return faulty, found


def row(faulty: Faulty, found: Compared) -> list[str]:
    """Markdown."""
    ties = f"{len(found.ties)}" + "".join(f" ({margin:.2f})" for margin in found.ties)
    counts = (found.questions, faulty.cuts, faulty.stalls, found.equal, found.partly)
    reasons = ", ".join(f"{count} {reason}" for reason, count in found.tokens.most_common())
    wrong = " ".join([f"{len(found.wrong)}", *found.wrong])
    return line([*map(str, counts), ties, wrong, f"{found.calls}", reasons])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument(
        "--cut", type=float, nargs="+", default=(0.0, 3.0), help="percent of tokens"
    )
    parser.add_argument("--trip", type=float, default=20, help="ms")
    options = parser.parse_args()
    task = pocketqa()
    questions = task.questions[options.skip : options.skip + options.questions]
    head = ["questions", "cuts", "stalls", "equal", "not wholly verified", "ties", "wrong"]
    print("\n".join(line([*head, "requests", "tokens"], head=True)), flush=True)
    quality, wrong = Quality(round_trip=options.trip / 1000), 0
    for often in options.cut:
        faulty, found = answers(questions, task.max_tokens, often / 100, quality)
        print("\n".join(row(faulty, found)), flush=True)
        wrong += len(found.wrong)
    sys.exit(int(wrong > 0))


if __name__ == "__main__":
    main()
