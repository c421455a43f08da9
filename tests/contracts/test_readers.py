"""A cloud that reads passages behind a real llama-server, by OpenAI's API and by Anthropic's."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from edgewise import Pair
from edgewise.errors import CloudRefused
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.llama_server_process import llama_server
from tests.models import write_saying

pytestmark = pytest.mark.deep

VERDICT = '{"stand":1,"replacement":"Three and three are six."}'
"""All that the model there ever writes; on a passage of one sentence it is no verdict."""

PROMPT = "What are two and two, and what are three and three? "
WRONG = (
    "Two and two are four. Three and three are seven.\n\n"
    "Now you know both of them, and what they are good for.\n\n"
)
KEY = "sk-of-the-gateway"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = write_saying(tmp_path_factory.mktemp("reader") / "reader.gguf", VERDICT)
    with llama_server(model, key=KEY, flags={"n_ctx": 8192}) as served:
        yield served


@pytest.fixture(params=["openai", "anthropic"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def reading(url: str, form: str, *, key: str = KEY, **settings: Any) -> Pair:
    edge = ScriptedEdge(replying(WRONG, prompt=PROMPT))
    return Pair(edge, cloud=url, cloud_engine=form, cloud_key=key, **settings)


def test_a_verdict_is_obeyed_and_what_is_none_is_a_failed_consult(url: str, form: str) -> None:
    with reading(url, form, cloud_share=0.5) as pair:
        answer = pair.ask([*PROMPT.encode()], max_tokens=len(WRONG))
    assert answer.text.startswith("Two and two are four. Three and three are six.\n\n")
    usage, by = answer.usage, Counter(token.source for token in answer.tokens)
    assert usage.review == "passages"
    assert (usage.cloud_tokens, usage.edge_tokens) == (by["cloud"], by["edge"])
    assert by["cloud"]
    assert usage.cloud_calls > usage.failed_calls > 0
    assert any(token.reason == "rejected" for token in answer.tokens)
    assert usage.cloud_prompt_computed
    assert usage.cloud_completion_tokens == 2 * usage.cloud_calls


def test_a_whole_answer_is_all_that_it_wrote(url: str, form: str) -> None:
    with reading(url, form, escalate=1.0) as pair:
        answer = pair.ask([*PROMPT.encode()])
    assert (answer.text, answer.finish_reason) == (VERDICT, "stop")
    assert answer.usage.escalated


def test_another_key_is_refused(url: str, form: str) -> None:
    with pytest.raises(CloudRefused) as refused:
        reading(url, form, key="sk-of-somebody")
    assert "key" in refused.value.message
    assert "sk-of" not in str(refused.value)
