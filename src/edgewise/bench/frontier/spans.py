"""The cloud alone where it cannot be streamed: through a gateway, or in this process."""

from contextlib import closing

from edgewise.bench.frontier.base import MeasuredAnswer
from edgewise.bench.frontier.recorded import RecordedCloud
from edgewise.bench.frontier.timed import Travelled, Watch
from edgewise.edge.base import Tokenizer
from edgewise.evaluation.systems import CLOUD_DEADLINE, Outcome, question_prompt, text_of
from edgewise.evaluation.tasks.base import Question
from edgewise.evaluation.tasks.grading import is_right, is_strictly_right
from edgewise.loop.policy import CLOUD_SPAN
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.link import Link


class CloudInSpans:
    """Implements `MeasuredSystem`: the cloud writes `CLOUD_SPAN` tokens a request."""

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
            requests=requests,
            sent=sent,
            received=received,
        )

    def _ids(self, prompt: Prompt, watch: Watch) -> list[int]:
        ids: list[int] = []
        with closing(self._cloud.open(prompt)) as session:
            while len(ids) < self._max_tokens and not (ids and ids[-1] in self._tokenizer.eos_ids):
                n = min(CLOUD_SPAN, self._max_tokens - len(ids))
                asked = session.ask([*prompt.ids, *ids], n, Sampling(), CLOUD_DEADLINE)
                verdict = asked.result()
                ids += verdict.ids
                watch.saw(text_of(self._tokenizer, verdict.ids))
        return ids
