"""The cloud alone where it cannot be streamed: through a gateway, or in this process."""

from collections.abc import Sequence
from contextlib import closing

from edgewise.completion import metered
from edgewise.edge.base import Tokenizer
from edgewise.loop.policy import CLOUD_SPAN
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.link import Link
from edgewise_lab.bench.frontier.base import CloudRequest, MeasuredAnswer
from edgewise_lab.bench.frontier.recorded import RecordedCloud
from edgewise_lab.bench.frontier.timed import Travelled, Watch
from edgewise_lab.evaluation.systems import CLOUD_DEADLINE, Outcome, question_prompt, text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import is_right, is_strictly_right


class CloudInSpans:
    """Implements `MeasuredSystem`: the cloud writes `CLOUD_SPAN` tokens a request.

    What it asks for is told as the one request that the cloud alone would be: nobody would pay for
    the prompt again. Times are those of the spans.
    """

    def __init__(
        self,
        cloud: RecordedCloud,
        tokenizer: Tokenizer,
        max_tokens: int,
        *,
        link: Link | None = None,
    ) -> None:
        """`link` leads to the cloud, where its bytes are to be counted."""
        self._cloud, self._tokenizer, self._link = cloud, tokenizer, link
        self._max_tokens = max_tokens

    def answer(self, question: Question) -> MeasuredAnswer:
        prompt = question_prompt(self._tokenizer, question)
        self._cloud.take()
        travelled, watch = Travelled(self._link), Watch()
        ids = self._ids(prompt, watch)
        seconds, ttft = watch.seconds, watch.ttft
        text, requests = text_of(self._tokenizer, ids), self._cloud.take()
        outcome = Outcome(
            question=question.id,
            family=question.family,
            text=text,
            right=is_right(question, text),
            strict=is_strictly_right(question, text),
            output_tokens=len(ids),
            cloud_tokens=len(ids),
            consults=len(requests),
            seconds=seconds,
        )
        sent, received = travelled.bytes
        return MeasuredAnswer(
            outcome=outcome,
            ttft=ttft,
            gap=watch.gap,
            requests=(_as_one(requests, len(ids)),),
            sent=sent,
            received=received,
        )

    def _ids(self, prompt: Prompt, watch: Watch) -> list[int]:
        ids: list[int] = []
        with closing(self._cloud.open(prompt)) as session:
            while len(ids) < self._max_tokens and not (ids and ids[-1] in self._tokenizer.eos_ids):
                n = min(CLOUD_SPAN, self._max_tokens - len(ids))
                asked = session.ask([*prompt.ids, *ids], n, Sampling(), CLOUD_DEADLINE)
                completion = asked.result()
                ids += completion.ids
                watch.saw(text_of(self._tokenizer, completion.ids))
        return ids


def _as_one(spans: Sequence[CloudRequest], written: int) -> CloudRequest:
    """The first prompt, and all that was written; the engine's work is that of all spans."""
    taken = [span.engine_seconds for span in spans]
    known = [seconds for seconds in taken if seconds is not None]
    computed: int | None = 0
    for span in spans:
        computed = metered(computed, span.computed)
    return CloudRequest(
        prompt=spans[0].prompt,
        seen=0,
        written=written,
        cached=spans[0].cached,
        computed=computed,
        engine_seconds=sum(known) if len(known) == len(taken) else None,
    )
