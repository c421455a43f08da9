"""Calls of tools in every known form, and response formats in Python with the bundled pair."""

import json
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jsonschema
import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

from edgewise import Pair
from edgewise.edge.base import Floats
from edgewise.edge.llamacpp.model import LlamaModel
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import UsageError
from edgewise.events import Consult, Token
from edgewise.grammar import compiled
from edgewise.grammar.calls import CallArguments, CallBegun, Part, Said, call_reader, collected
from edgewise.grammar.compiled import Grammar
from edgewise.grammar.response_format import ResponseFormat, grammar_of, response_format_from
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, Tool, ToolCall, prompt_of
from edgewise.prompts.tool_formats import tool_format
from edgewise.routers.untrained import Constant
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, Script, ScriptedEdge, noise
from tests import tool_models
from tests.models import write_with_tools
from tests.pocket_models import OTHER as OTHER_CLOUD
from tests.tool_models import TIME, WEATHER, ToolTokenizer, saying

pytest.importorskip("llguidance")

TOOLS = (WEATHER, TIME)
ASKED = [Message("user", "Weather?")]
PARIS, NOW = ToolCall("", "get_weather", '{"city": "Paris"}'), ToolCall("", "get_time", "{}")
TEMPLATES = {
    "hermes": tool_models.HERMES,
    "llama": tool_models.LLAMA,
    "mistral": tool_models.MISTRAL,
    "named": tool_models.NAMED,
}
TOKENIZERS = {name: ToolTokenizer(template) for name, template in TEMPLATES.items()}
every = pytest.mark.parametrize("name", TEMPLATES)


def written(name: str, script: Script, form: ResponseFormat, **options: Any) -> Answer:
    tokenizer = TOKENIZERS[name]
    decoder = Decoder(
        ScriptedEdge(script, tokenizer=tokenizer), router=Constant(0.0), policy=Policy()
    )
    prompt = prompt_of(tokenizer, ASKED, form.tools)
    return decoder.generate(
        prompt, grammar=grammar_of(tokenizer, form), **{"max_tokens": 400, **options}
    )


def read(name: str, answer: Answer) -> tuple[str, list[tuple[str, str]]]:
    reader = call_reader(TOKENIZERS[name], ResponseFormat(tools=TOOLS))
    assert reader is not None
    text, calls = collected(reader, answer.text)
    return text, [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("name", ["hermes", "mistral", "named"])
def test_several_calls_behind_text(name: str) -> None:
    """Each as the model writes it."""
    text = "Let me see. " + tool_format(TOKENIZERS[name]).written([PARIS, NOW])
    calls = [("get_weather", '{"city": "Paris"}'), ("get_time", "{}")]
    for parallel, read_as in ((True, calls), (False, calls[:1])):
        answer = written(name, saying(text), ResponseFormat(tools=TOOLS, parallel=parallel))
        assert answer.finish_reason == "stop"
        assert not parallel or answer.text == text
        assert read(name, answer) == ("Let me see. ", read_as)


@every
@pytest.mark.parametrize("only", [None, "get_time"])
def test_a_call_that_must_be_made_is(name: str, only: str | None) -> None:
    form = ResponseFormat(tools=TOOLS, required=True, only=only, parallel=False)
    answer = written(name, saying("I would rather not."), form)
    said, ((called, arguments),) = read(name, answer)
    assert said == ""
    assert called in ("get_weather", "get_time") if only is None else called == only
    json.loads(arguments)


@every
@given(seed=st.integers(0, 10_000), cloudy=st.booleans())
def test_whatever_is_written_is_a_call_of_its_schema(name: str, seed: int, cloudy: bool) -> None:
    tokenizer = TOKENIZERS[name]

    def wild(extra: int) -> Script:
        def script(ids: Sequence[int]) -> Floats:
            logits = np.concatenate([noise(seed + extra)(ids), np.zeros(2, np.float32)])
            logits[[ord('"'), ord("}"), ord("]"), EOS]] += 6.0
            return logits

        return script

    decoder = Decoder(
        ScriptedEdge(wild(0), tokenizer=tokenizer),
        router=Constant(1.0),
        policy=Policy(speculate=4, span=3),
        cloud=ScriptedCloud(wild(1)) if cloudy else None,
    )
    answer = decoder.generate(
        prompt_of(tokenizer, ASKED, TOOLS),
        grammar=required(name),
        sampling=Sampling(temperature=0.0 if seed % 2 else 1.0, seed=seed),
        max_tokens=600,
    )
    _, calls = read(name, answer)
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    for called, arguments in calls if answer.finish_reason == "stop" else calls[:-1]:
        jsonschema.validate(json.loads(arguments), schemas[called])
    assert calls or answer.finish_reason == "length"


@cache
def required(name: str) -> Grammar:
    return grammar_of(TOKENIZERS[name], ResponseFormat(tools=TOOLS, required=True))


@every
@given(cuts=st.lists(st.integers(0, 120), max_size=8), text=st.sampled_from(["", "Look: <tool_"]))
def test_calls_are_read_alike_in_pieces(name: str, cuts: list[int], text: str) -> None:
    style = tool_format(TOKENIZERS[name])
    calls = [PARIS, replace(NOW, arguments='{"a": "}\\"{", "b": [{}, "]"]}')]
    if not style.opening:
        text, calls = "", calls[1:]
    whole = text + style.written(calls)
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    reader = call_reader(TOKENIZERS[name], ResponseFormat(tools=TOOLS))
    assert reader is not None
    parts: list[Part] = []
    for start, end in pairwise(places):
        parts += reader.feed(whole[start:end])
    parts += reader.finish()
    assert reader.called
    assert "".join(part.text for part in parts if isinstance(part, Said)) == text
    begun = [part for part in parts if isinstance(part, CallBegun)]
    told = ["", ""]
    for part in parts:
        if isinstance(part, CallArguments):
            told[part.index] += part.text
    found = [(one.name, told[one.index]) for one in begun]
    assert found == [(call.name, call.arguments) for call in calls]
    assert all(len(one.id) == 9 and one.id.isalnum() for one in begun)


BARE = [
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
    '```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Paris"\n  }\n}\n```',
    '```\n{"name":"get_weather","parameters":{"city":"Paris"}}\n```\n',
    ' {"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
    tool_format(TOKENIZERS["llama"]).written([PARIS]),
]
NO_CALL = [
    "It rains: 3 < 4 [TOO",
    "",
    '{"name": "get_money", "arguments": {"city": "Paris"}}',
    '{"name": "Bob", "age": 3}',
    '{"name": "get_weather"}',
    '{"name": "get_weather", "city": "Paris"}',
    '{"name": "get_ weather", "arguments": {"city": "Paris"}}',
    '[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    'Sure: {"name": "get_weather", "arguments": {"city": "Paris"}}',
    '```json\n{"name": "Bob"}\n```',
    "```python\nprint(3)\n```",
    '{"name": "get_weather", "argu',
]


@every
@pytest.mark.parametrize("text", BARE + NO_CALL)
def test_a_call_without_its_form_is_one(name: str, text: str) -> None:
    """As small models write it, though their template has another form; other JSON is text."""
    answer = written(name, saying(text), ResponseFormat(tools=TOOLS))
    assert (answer.text, answer.finish_reason) == (text, "stop")
    said, calls = read(name, answer)
    read_as = [(called, json.loads(arguments)) for called, arguments in calls]
    if text in BARE:
        assert (said, read_as) == ("", [("get_weather", {"city": "Paris"})])
    else:
        assert (said, read_as) == (text, [])


@every
def test_a_bare_call_is_held_to_the_tool(name: str) -> None:
    form = ResponseFormat(tools=TOOLS)
    allowed = grammar_of(TOKENIZERS[name], form).constraint(0)
    head = '{"name": "get_weather", "arguments": {"'
    for begun, fits in (("city", True), ("town", False)):
        ids = [*(head + begun).encode()]
        assert (allowed.fitting([], ids) == len(ids)) is fits
    ids = [*BARE[0].encode()]
    assert allowed.fitting(ids, [*b" And?"]) <= 1
    # With a schema that is what the text is.
    shown = ResponseFormat(tools=TOOLS, schema={"type": "object"})
    if name != "llama":
        reader = call_reader(TOKENIZERS[name], shown)
        assert reader is not None
        assert collected(reader, BARE[0]) == (BARE[0], ())


def test_text_may_be_json_of_a_schema_instead() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = ResponseFormat(tools=TOOLS, schema=schema)
    for name in ("hermes", "mistral", "named"):
        assert json.loads(written(name, saying('{"n": 3}'), form).text) == {"n": 3}
        call = tool_format(TOKENIZERS[name]).written([NOW])
        assert read(name, written(name, saying(call), form))[1] == [("get_time", "{}")]
    with pytest.raises(UsageError) as refused:
        grammar_of(TOKENIZERS["llama"], form)
    assert refused.value.setting == "json_schema"
    # A marker that is a control token is written as one.
    form = ResponseFormat(tools=TOOLS, required=True, only="get_time")
    for name, ids in (
        ("mistral", [tool_models.CALLS]),
        ("named", [tool_models.CALLS, tool_models.ARGS]),
    ):
        answer = written(name, saying("no"), form)
        assert [
            token.id for token in answer.tokens if token.id in (tool_models.CALLS, tool_models.ARGS)
        ] == ids


@every
def test_a_conversation_with_tools_is_what_the_template_makes_of_it(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    turns = [
        Message("system", "Be brief.", local=True),
        *ASKED,
        Message("assistant", "", tool_calls=(replace(PARIS, id="call00001"),)),
        Message("tool", "Sun.", tool_call_id="call00001"),
        Message("user", "And now?"),
    ]
    prompt = prompt_of(tokenizer, turns, TOOLS)
    text = bytes(one for one in prompt.ids if one < 256).decode()
    assert text.endswith(tool_models.BEGIN)
    for part in ('"name": "get_weather"', '"Prague"', "<tool>Sun.", "Paris", "Be brief."):
        assert part in text
    # Who has another template is told the same, in words, and what is local stays so.
    assert prompt.messages is not None
    assert [one.role for one in prompt.messages] == ["system", "user", "assistant", "user"]
    assert prompt.messages[0].content.startswith("Be brief.\n\n")
    assert prompt.messages[0].local
    assert '"Prague"' in prompt.messages[0].content
    assert prompt.messages[2].content == tool_format(tokenizer).written([PARIS])
    assert "Sun." in prompt.messages[3].content
    assert prompt.messages[3].content.endswith("\nAnd now?")


def test_a_template_for_tools_is_used_where_there_are_any(tmp_path: Path) -> None:
    """As Hermes 2 Pro and Command R have them, beside one for other conversations."""
    templates = {"default": "{{ messages[0].content }}", "tool_use": tool_models.HERMES}
    named = [{"name": name, "template": one} for name, one in templates.items()]
    with LlamaModel(write_with_tools(tmp_path / "named.gguf", named), threads=1) as model:
        tokenizer = model.tokenizer
        alone, tools = (prompt_of(tokenizer, ASKED, given).ids for given in ((), TOOLS))
        assert bytes_of(tokenizer, alone) == b"Weather?"
        assert b"get_weather" in bytes_of(tokenizer, tools)
        assert tool_format(tokenizer).opening == "<tool_call>"


CALLED = Message("assistant", "", tool_calls=(replace(NOW, id="a"),))


def test_calls_that_are_none_are_refused() -> None:
    for messages, said in (
        ([*ASKED, Message("tool", "x", tool_call_id="a")], "There is no call 'a' before"),
        ([*ASKED, CALLED, Message("tool", "x")], "has a tool_call_id"),
        ([Message("user", "x", tool_calls=CALLED.tool_calls)], "Only an assistant's message"),
        ([Message("user", "x", tool_call_id="a"), CALLED], "has a tool_call_id"),
    ):
        with pytest.raises(UsageError, match=said):
            prompt_of(TOKENIZERS["hermes"], messages)


@every
def test_a_call_that_was_cut_is_a_history_like_any_other(name: str) -> None:
    for arguments, shown in (
        ('{"city": "Pa', r'"{\"city\": \"Pa"'),
        ("", "{}"),
        ("null", "{}"),
        ("[1]", '"[1]"'),
        ('{"a":' * 90 + "1" + "}" * 90, r'"{\"a\":{\"a\":'),
    ):
        called = Message("assistant", "", tool_calls=(ToolCall("a", "f", arguments),))
        prompt = prompt_of(TOKENIZERS[name], [*ASKED, called, *ASKED], TOOLS)
        assert shown in bytes(one for one in prompt.ids if one < 256).decode()


def test_a_model_without_tools_says_so() -> None:
    for template, said in (
        (None, "support tools"),
        ("{{ messages }}", "support tools"),
        (tool_models.OTHER, "unknown format"),
    ):
        tokenizer = ToolTokenizer(template)
        for messages, tools in ((ASKED, TOOLS), ([*ASKED, CALLED], ())):
            with pytest.raises(UsageError, match=said) as caught:
                prompt_of(tokenizer, messages, tools)
            assert caught.value.setting == "tools"
        with pytest.raises(UsageError, match=said):
            grammar_of(tokenizer, ResponseFormat(tools=TOOLS))


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"tools": [{"name": "a b"}]}, "invalid"),
        ({"tools": [Tool('a": 1}')]}, "invalid"),
        ({"tools": [{"name": "a", "parameters": {"const": object()}}]}, "invalid"),
        ({"tools": [TIME, TIME]}, "Two tools have one name"),
        ({"tools": [Tool(f"t{n}") for n in range(200)]}, "128"),
        ({"tools": [TIME], "tool_choice": "x"}, "There is no tool 'x'"),
        ({"tools": [{"name": "a", "parameters": {"type": "string"}}]}, "not an object"),
        ({"tools": [{"title": "a"}]}, "invalid"),
        ({"tools": ["a"]}, "invalid"),
    ],
)
def test_tools_that_are_none_are_refused(wishes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        response_format_from(**wishes)


SCHEMA = {
    "type": "object",
    "properties": {
        "metal": {"type": "string", "maxLength": 12},
        "melts_at": {"type": "integer", "minimum": 0, "maximum": 3000},
    },
    "required": ["metal"],
    "additionalProperties": False,
}
QUESTION = "Tell me about copper."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOL = {"name": "get_weather", "parameters": dict(WEATHER.parameters)}


@pytest.mark.parametrize("cloud", [None, str(OTHER_CLOUD)])
@pytest.mark.parametrize("speculate", [0, 16])
def test_the_bundled_pair_answers_in_json(cloud: str | None, speculate: int) -> None:
    """It never saw any, so nothing but the format makes it so; one cloud is behind an adapter."""
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
