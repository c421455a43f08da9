"""Scripted edge models whose chat templates have tools, in the forms that models have of them."""

import re
from collections.abc import Sequence

import numpy as np

from edgewise.edge.base import Floats
from edgewise.prompts import Tool
from edgewise.testing.scripted_edge import EOS, ByteTokenizer, Script

BEGIN = "<assistant>"
CALLS, ARGS = 258, 259

_HEAD = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
)
_TAIL = "\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
_JSON = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'

HERMES = (
    f"{_HEAD}{{% for c in m.tool_calls or [] %}}<tool_call>\n{_JSON}\n</tool_call>"
    f"{{% endfor %}}{_TAIL}"
)
LLAMA = (
    f"{_HEAD}{{% for c in m.tool_calls or [] %}}<|start_header_id|>"
    '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
    f"{{% endfor %}}{_TAIL}"
)
MISTRAL = (
    f"{_HEAD}{{% if m.tool_calls %}}[TOOL_CALLS][{{% for c in m.tool_calls %}}{_JSON}"
    f"{{% endfor %}}]{{% endif %}}{_TAIL}"
)
NAMED = (
    f"{_HEAD}{{% for c in m.tool_calls or [] %}}[TOOL_CALLS]{{{{ c.function.name }}}}[ARGS]"
    f"{{{{ c.function.arguments | tojson }}}}{{% endfor %}}{_TAIL}"
)
OTHER = f"{_HEAD}<tool_call><function=x>{_TAIL}"

WEATHER = Tool(
    "get_weather",
    "The weather of a city.",
    {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Prague"]}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
TIME = Tool("get_time", "What time it is.")


class ToolTokenizer(ByteTokenizer):
    """An id is a byte; Mistral's two markers are control tokens."""

    size = 260

    def __init__(self, template: str | None = HERMES) -> None:
        super().__init__()
        self.chat_template = template
        self.special = {**self.special, CALLS: "[TOOL_CALLS]", ARGS: "[ARGS]"}


def ids_of(text: str) -> list[int]:
    """As `ToolTokenizer` has them, with its markers."""
    markers = {"[TOOL_CALLS]": CALLS, "[ARGS]": ARGS}
    found: list[int] = []
    for piece in re.split(r"(\[TOOL_CALLS\]|\[ARGS\])", text):
        found += [markers[piece]] if piece in markers else piece.encode()
    return found


def saying(*texts: str) -> Script:
    """Answers with the text of the turn it is, then with an end; else with what closes JSON."""
    begin = BEGIN.encode()

    def script(ids: Sequence[int]) -> Floats:
        written = bytes(one if one < 256 else 0 for one in ids)
        start = written.rindex(begin) + len(begin)
        wanted = [*ids_of(texts[min(written.count(begin), len(texts)) - 1]), EOS]
        answer = list(ids[start:])
        logits = np.zeros(ToolTokenizer.size, np.float32)
        logits[[ord('"'), ord("}"), ord("]"), EOS]] = 3.0
        if wanted[: len(answer)] == answer and len(answer) < len(wanted):
            logits[wanted[len(answer)]] = 20.0
        return logits

    return script
