"""Asks a server for JSON and for calls, with OpenAI's client: `tool_clients.py URL`.

The model's weights are random, so all that it says was made what it is by the form.
"""

import json
import sys
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, ConfigDict

URL = sys.argv[1] + "/v1"
MODEL = "edgewise"
MESSAGES = [{"role": "user", "content": "Is it warm in Paris?"}]


class Report(BaseModel):
    """What it is like."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Prague"]
    warm: bool
    day: Literal["today", "tomorrow"]


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Prague"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def sdk() -> None:
    client = OpenAI(base_url=URL, api_key="none")
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 400}
    parsed = client.chat.completions.parse(**asked, response_format=Report)
    assert isinstance(parsed.choices[0].message.parsed, Report)

    calling = {**asked, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    answer = client.chat.completions.create(**calling)
    assert answer.choices[0].finish_reason == "tool_calls"
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Prague")

    # The answer goes back as it came, with what the call came to.
    result = {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}
    assert client.chat.completions.create(**calling | {"messages": [*MESSAGES, message, result]})

    with client.chat.completions.stream(**calling) as events:
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        final = events.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.arguments == call.function.arguments
    assert done[0].arguments == call.function.arguments


sdk()
