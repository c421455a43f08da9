"""Whatever the models would write, an answer is what its form allows, or was cut."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis.strategies as st
import jsonschema
import pytest
from hypothesis import given

from edgewise.edge.base import Floats
from edgewise.grammar.response_format import ResponseFormat, grammar_of
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.constant import Random
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import (
    EOS,
    ByteTokenizer,
    Script,
    ScriptedEdge,
    noise,
)

pytest.importorskip("llguidance")

TOKENIZER = ByteTokenizer()
PROMPT = "JSON: "
IDS = list(PROMPT.encode())

leaves = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda least, more: {"type": "integer", "minimum": least, "maximum": least + more},
        st.integers(-20, 20),
        st.integers(0, 99),
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 5)),
    st.just({"type": "string", "pattern": "^[a-c]{1,3}é?$"}),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.sampled_from(["x", "xy", "é", 1, 12, None, True]), min_size=1, unique=True),
    ),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(["a", "ab", "b", "ü"]), inner, max_size=3)
    return st.one_of(
        st.builds(
            lambda items, most: {"type": "array", "items": items, "maxItems": most},
            inner,
            st.integers(0, 3),
        ),
        st.builds(
            lambda found, required: {
                "type": "object",
                "properties": found,
                "required": list(found)[:required],
                "additionalProperties": False,
            },
            properties,
            st.integers(0, 3),
        ),
        st.builds(lambda found: {"anyOf": found}, st.lists(inner, min_size=1, max_size=2)),
    )


schemas = st.recursive(leaves, nested, max_leaves=5)


def restless(seed: int) -> Script:
    """Random logits; what ends a string, or an answer, comes a little more often."""
    script = noise(seed)

    def written(ids: Sequence[int]) -> Floats:
        logits = script(ids)
        logits[[ord('"'), ord("}"), ord("]"), EOS]] += 6.0
        return logits

    return written


def told(answer: Answer) -> list[object]:
    """What must not depend on speculation."""
    tokens = [(t.id, t.text, t.source, t.reason, t.logprob) for t in answer.tokens]
    counts = answer.usage
    return [answer.finish_reason, tokens, counts.cloud_tokens, counts.correction_tokens]


@given(
    schema=schemas,
    seed=st.integers(0, 10_000),
    agreement=st.sampled_from([0.0, 0.5, 0.9]),
    span=st.integers(1, 6),
    speculate=st.integers(1, 8),
    temperature=st.sampled_from([0.0, 1.0]),
    share=st.sampled_from([None, 0.3, 1.0]),
)
def test_an_answer_is_json_of_its_schema(
    schema: Mapping[str, Any],
    seed: int,
    agreement: float,
    span: int,
    speculate: int,
    temperature: float,
    share: float | None,
) -> None:
    """By edge and cloud, waiting and speculating."""
    own, other = restless(seed), noise(seed + 1)

    def cloud(ids: Sequence[int]) -> Floats:
        differs = hash((seed, len(ids), ids[-1])) % 100 >= 100 * agreement
        return other(ids) if differs else own(ids)

    grammar = grammar_of(TOKENIZER, ResponseFormat(schema=schema))
    answers: list[Answer] = []
    for ahead in (0, speculate):
        policy = Policy(threshold=0.4, cloud_share=share, span=span, speculate=ahead)
        edge = ScriptedEdge(own, tokenizer=TOKENIZER)
        made = Decoder(edge, router=Random(0), policy=policy, cloud=ScriptedCloud(cloud))
        options = {"sampling": Sampling(temperature=temperature, seed=seed), "max_tokens": 300}
        answers.append(made.generate(IDS, grammar=grammar, **options))
    waiting, ahead_answer = answers
    assert told(waiting) == told(ahead_answer)
    if waiting.finish_reason == "stop":
        jsonschema.validate(json.loads(waiting.text), schema)
    else:
        assert len(waiting.tokens) == 300
