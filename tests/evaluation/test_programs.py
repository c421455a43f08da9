"""Checks that run in a child process: code with its tests, and JSON by its schema."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgewise.errors import UsageError
from edgewise_lab.evaluation.tasks import programs
from edgewise_lab.evaluation.tasks.base import Grading, Question
from edgewise_lab.evaluation.tasks.grading import is_right
from tests.evaluation.test_grading import require
from tests.gateway.processes import until

PROMPT = """Complete this function.

```python
from math import pi


def twice(n):
    return 2 * n


def area(r):
    \"\"\"Area of a circle.\"\"\"
```"""
AREA = Question("area", "f", PROMPT, "assert round(area(1), 2) == 3.14", "code")
RIGHT = "def area(r):\n    return twice(r) * r * pi / 2\n"


def fenced(code: str, name: str = "python") -> str:
    return f"Here it is:\n\n```{name}\n{code}\n```\n"


@pytest.mark.parametrize(
    ("text", "right", "strict"),
    [
        (fenced(RIGHT), True, True),
        (fenced(RIGHT, ""), True, True),
        (fenced(RIGHT) + "\nThat is all.", True, True),
        (RIGHT, True, False),
        (f"```python\n{RIGHT}", True, True),
        (f"1. So:\n\n   ```python\n   {RIGHT.replace(chr(10), chr(10) + '   ')}```", True, True),
        (fenced("def area(r): return 0") + fenced(RIGHT), True, False),
        (fenced(RIGHT) + fenced("print(area(2))"), True, False),
        # What is not Python, such as a command or an output, is not run.
        (fenced(RIGHT) + fenced("$ python area.py", "sh"), True, False),
        (fenced(RIGHT) + fenced("The area is 3.14.", ""), True, False),
        (fenced(RIGHT, "Python3") + fenced(">>> area(1)", "pycon"), True, False),
        (fenced(RIGHT, "") + fenced("$ python area.py", "sh"), True, False),
        (fenced("$ touch area.py", "sh") + fenced("def area(r): return 0"), False, False),
        (fenced(RIGHT, "text"), True, True),
        # Only how to use it is named Python.
        (fenced(RIGHT, "") + "Use it:\n\n" + fenced("print(area(2))"), True, False),
        (fenced("def area(r): return 0"), False, False),
        (fenced("def other(r): return 0"), False, False),
        ("I do not know.", False, False),
        ("", False, False),
        # What ends the process before the tests is not right.
        (fenced("import sys; sys.exit(0)"), False, False),
        (fenced("import os; os._exit(0)"), False, False),
        (
            fenced("import os\nfor n in range(3, 9): os.write(n, b'\\0\\0\\0\\1' + b'1')"),
            False,
            False,
        ),
        (fenced(f"{RIGHT}\nraise SystemExit(0)"), False, False),
        (fenced("import ctypes; ctypes.string_at(0)"), False, False),
        # It has no input, no variables, and what it prints goes nowhere.
        (fenced(f"try:\n    input()\nexcept EOFError:\n    pass\n{RIGHT}"), True, True),
        (fenced(f"import os\nassert not os.environ and not os.listdir()\n{RIGHT}"), True, True),
        (fenced(f"{RIGHT}\nprint('x' * 10_000_000)"), True, True),
        (fenced(f"import base\n{RIGHT}"), False, False),
    ],
)
def test_code(text: str, right: bool, strict: bool) -> None:
    require(AREA, text, right, strict)


def test_a_prompts_own_code_is_its_python() -> None:
    """A command beside it in the prompt does not take away what the code defines."""
    asked = replace(AREA, prompt=PROMPT + fenced("$ python area.py", "sh"))
    assert is_right(asked, fenced(RIGHT))


@pytest.mark.parametrize(
    "taken",
    ["while True: pass", "a = []\nwhile True: a.append(bytes(1 << 20))", "9 ** 9 ** 9"],
)
def test_code_that_takes_too_much_is_wrong(taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "RUN_SECONDS", 1.0)
    assert not is_right(AREA, fenced(f"{RIGHT}\n{taken}"))
    assert is_right(AREA, fenced(f"{RIGHT}\n# {taken!r}"))


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_code_writes_little_and_only_beside_it(tmp_path: Path) -> None:
    large = f"with open('x', 'wb') as file: file.write(bytes(2 << 20))\n{RIGHT}"
    assert not is_right(AREA, fenced(large))
    told = tmp_path / "told"
    assert is_right(
        AREA, fenced(f"open({str(told)!r}, 'w').write(__import__('os').getcwd())\n{RIGHT}")
    )
    assert not Path(told.read_text()).exists()


def namespaces() -> bool:
    """Whether this user may have a network of his own."""
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-Un", "true"]).returncode == 0


@pytest.mark.skipif(not namespaces(), reason="no user namespaces")
def test_code_has_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        call = f"__import__('socket').create_connection({server.getsockname()!r}, 5)"
        assert not is_right(AREA, fenced(f"{RIGHT}\n{call}"))
        assert is_right(AREA, fenced(f"{RIGHT}\ntry: {call}\nexcept OSError: pass"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_code_starts_ends_with_it(tmp_path: Path) -> None:
    told = tmp_path / "told"
    sleeper = "[__import__('sys').executable, '-c', 'import time; time.sleep(60)']"
    begin = f"import subprocess\np = subprocess.Popen({sleeper})"
    is_right(AREA, fenced(f"{begin}\nopen({str(told)!r}, 'w').write(str(p.pid))"))
    if not told.exists():
        return  # this user's code starts nothing
    state = Path(f"/proc/{told.read_text()}/stat")
    until(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z")


ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
    "required": ["street", "number"],
    "additionalProperties": False,
}
POST = Question("post", "f", "Where?", json.dumps(ADDRESS), "json")
HOME = '{"street": "High Street", "number": 7}'


@pytest.mark.parametrize(
    ("text", "right", "strict"),
    [
        (HOME, True, True),
        (f"\n{HOME}\n", True, True),
        (fenced(HOME, "json"), True, False),
        (f"```\n{HOME}", True, False),
        (f"It is {HOME}, as you see.", True, False),
        (f"Of {{all}} it is {HOME}", True, False),
        (f"[{HOME}]", False, False),
        (HOME.replace("7", "null"), False, False),
        (HOME.replace("7", "7.0"), True, True),
        (HOME.replace("7", "NaN"), False, False),
        (HOME[:-1], False, False),
        (f'{{"post": {HOME}', False, False),
        (fenced(HOME[:-1], "json") + HOME, False, False),
        ("No idea.", False, False),
        ("[" * 5000, False, False),
        ("", False, False),
    ],
)
def test_json(text: str, right: bool, strict: bool) -> None:
    require(POST, text, right, strict)


@pytest.mark.parametrize(
    ("check", "answer"),
    [("code", "assert ("), ("json", "{"), ("json", "[]"), ("json", '{"type": "thing"}')],
)
def test_an_answer_that_cannot_check_is_refused(check: Grading, answer: str) -> None:
    with pytest.raises(UsageError, match="'q'"):
        Question("q", "f", "", answer, check)


@pytest.mark.parametrize("schema", [{"pattern": "(a+)+$"}, {"$ref": "http://127.0.0.1:9/x.json"}])
@pytest.mark.deep
def test_a_schema_that_cannot_be_used_is_refused(
    schema: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs._schemas._end()
    with monkeypatch.context() as brief:
        brief.setattr(programs, "_SECONDS", 1.0)
        with pytest.raises(UsageError, match="'slow'"):
            is_right(Question("slow", "f", "", json.dumps(schema), "json"), f'"{"a" * 60}!"')
    assert is_right(POST, HOME)


def test_what_is_to_be_read_is_never_right() -> None:
    require(Question("poem", "f", "Write one.", "It rhymes.", "read"), "It rhymes.", False, False)
