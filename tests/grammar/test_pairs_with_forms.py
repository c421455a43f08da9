"""Forms in Python, with the bundled pair, and over a bridge."""

import json
import sys

import jsonschema
import pytest

from edgewise import Pair
from edgewise.errors import UsageError
from edgewise.events import Consult, Token
from edgewise.grammar import compiled
from edgewise.prompts import Message
from edgewise.testing.scripted_edge import ScriptedEdge
from tests.pocket_models import OTHER
from tests.tool_models import WEATHER, ToolTokenizer, saying

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "metal": {"type": "string", "maxLength": 12},
        "is_one": {"type": "boolean"},
        "melts_at": {"type": "integer", "minimum": 0, "maximum": 3000},
    },
    "required": ["metal", "is_one"],
    "additionalProperties": False,
}
QUESTION = "Tell me about copper."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOL = {"name": "get_weather", "parameters": dict(WEATHER.parameters)}


@pytest.mark.parametrize("cloud", [None, str(OTHER)])
@pytest.mark.parametrize("speculate", [0, 16])
def test_the_bundled_pair_answers_in_json(cloud: str | None, speculate: int) -> None:
    """It never saw any, so nothing but the form makes it so; the other cloud is behind a bridge."""
    with Pair(cloud=cloud, cloud_share=0.5, speculate=speculate, threads=1) as pair:
        for options in ({}, {"temperature": 1.0, "seed": 3}):
            with pair.stream(QUESTION, json_schema=SCHEMA, max_tokens=200, **options) as stream:
                events = list(stream)
            text = "".join(event.text for event in events if isinstance(event, Token))
            jsonschema.validate(json.loads(text), SCHEMA)
            assert any(isinstance(event, Consult) for event in events)


def test_calls_stand_beside_the_text() -> None:
    edge = ScriptedEdge(saying(f"Well. {CALL}", "Sunny."), tokenizer=ToolTokenizer())
    with Pair(edge, cloud="none", router="constant:0") as pair:
        answer = pair.ask("Weather?", tools=[TOOL])
        (call,) = answer.tool_calls
        assert (answer.text, call.name) == ("Well. ", "get_weather")
        assert json.loads(call.arguments) == {"city": "Paris"}
        conversation = [
            Message("user", "Weather?"),
            Message("assistant", answer.text, tool_calls=answer.tool_calls),
            {"role": "tool", "content": "sunny", "tool_call_id": call.id},
        ]
        assert pair.ask(conversation, tools=[TOOL]).text == "Sunny."
        assert pair.ask("Weather?", tools=[TOOL], tool_choice="none").tool_calls == ()
        with pytest.raises(UsageError, match="tools"):
            pair.ask([1, 2, 3], tools=[TOOL])
        with pytest.raises(UsageError, match="'x'"):
            pair.ask("Weather?", tools=[TOOL], tool_choice="x")


def test_without_the_library_its_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with Pair(cloud="none", threads=1) as pair:
        with pytest.raises(UsageError) as caught:
            pair.ask(QUESTION, json_schema=SCHEMA)
        assert compiled.INSTALL in str(caught.value)
        assert pair.ask(QUESTION, max_tokens=2).text
