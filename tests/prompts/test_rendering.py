"""Templates are rendered in a sandbox, by a process that is ended where one goes too far."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from edgewise.errors import ModelError, UsageError
from edgewise.prompts import MAX_PROMPT, Message, prompt_ids
from edgewise.prompts.rendering import MAX_TEMPLATE, Renderer, render
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.gateway.processes import until
from tests.programs import python

SECONDS = 1.5
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HI_SAID = "<user>Hi\n"
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="looks processes up in /proc"
)


Make = Callable[..., Renderer]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes renderers with processes of their own."""
    with ExitStack() as made:

        def one(**limits: Any) -> Renderer:
            renderer = Renderer(**limits)
            made.callback(renderer.close)
            return renderer

        yield one


@pytest.fixture
def renderer(make: Make) -> Renderer:
    """One that does not take long."""
    return make(seconds=SECONDS)


def said(*contents: str) -> dict[str, object]:
    """What a template is given."""
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def state_of(pid: int | str) -> tuple[str, int]:
    """A process' state and who started it; "Z" for one that is gone."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "Z", 0
    return state, int(parent)


def workers(of: int | None = None) -> set[int]:
    """Processes that a process started and that render."""
    every = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {
        child
        for child in every
        if state_of(child)[1] == (of or os.getpid())
        if state_of(child)[0] != "Z"
        if b"worker.py" in Path(f"/proc/{child}/cmdline").read_bytes()
    }


def ended(pid: int) -> bool:
    return state_of(pid)[0] == "Z"  # whoever started it, or init, has yet to reap it


@pytest.mark.parametrize(
    ("bomb", "words"),
    [
        (ENDLESS, "takes more than 1.5 s"),
        ("{% set n = 9 * messages | length %}{{ n ** (n ** n) }}", "takes more than 1.5 s"),
        ("{{ ('a' * 1000000) | wordwrap(1) }}", "takes more than 1.5 s"),
        ("{{ 'x'.center(4000000000) }}", "more than 512 MB of memory"),
        ("{{ [1] * 1000000000 }}", "more than 512 MB of memory"),
        ("{{ '%1000000000d' % 3 }}", "more than 512 MB of memory"),
        ("{% for _ in range(99999) %}{{ 'x' * 99 }}{% endfor %}", "more than 4194304 characters"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "maximum recursion depth"),
        ("{% set n = namespace(a=[]) %}{% for _ in range(9999) %}{% set n.a = [n.a] %}"
         "{% endfor %}{{ n.a | tojson }}", "maximum recursion depth"),
        ("{{ " + "(" * 40000, "maximum recursion depth"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "nested blocks"),
        ("{{ range(10 ** 9) }}", "Range too big"),
        ("{% include '/etc/hostname' %}", "no loader"),
        ("{{ '\\ud800' }}", "surrogates not allowed"),
        ("{{ raise_exception('\\ud800') }}", r"\(\?\)"),
        ("{{ raise_exception('No. ' * 100000) }}", r"\((No\. ){49}No\.\)"),
        ("{{ strftime_now('\\ud800') }}", "surrogates"),
    ],
)  # fmt: skip
def test_a_bomb_ends_in_one_sentence(renderer: Renderer, bomb: str, words: str) -> None:
    assert renderer.render(PLAIN, said("Hi")) == HI_SAID
    with pytest.raises(ModelError, match=rf"^[^\n]*{words}[^\n]*$"):
        renderer.render(bomb, said("Hi"))
    assert renderer.render(PLAIN, said("And now?")) == "<user>And now?\n"


def test_what_is_no_text_is_refused(make: Make) -> None:
    """The longest passes, with the widest characters, whose strings are the largest."""
    renderer = make(seconds=30)
    with pytest.raises(UsageError, match="valid UTF-8"):
        renderer.render(PLAIN, said("caf\udce9"))
    assert renderer.render("a\0b" + PLAIN, said("c\0d")) == "a\0b<user>c\0d\n"
    long = "\U0001f600" * (MAX_PROMPT - len("<user>\n"))
    assert renderer.render(PLAIN, said(long)) == f"<user>{long}\n"


def test_many_threads_get_each_their_own(renderer: Renderer) -> None:
    asked = [f"question {number} " + "é" * (number % 7 * 1000) for number in range(400)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda one: renderer.render(PLAIN, said(one)), asked))
    assert found == [f"<user>{one}\n" for one in asked]


def test_closing_ends_a_rendering(make: Make) -> None:
    renderer = make(seconds=60)
    renderer.start()
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(renderer.render, ENDLESS, said("Hi"))
        while not stuck.running():
            time.sleep(0.01)
        renderer.close()
        with suppress(ModelError):
            stuck.result(60)


@needs_proc
def test_a_process_is_kept_and_one_that_was_killed_is_replaced(make: Make) -> None:
    before = workers()
    renderer = make(seconds=10)
    renderer.start()
    # For a moment a new process has no command line to be known by.
    assert renderer.render(PLAIN, said("Hi")) == HI_SAID
    (first,) = workers() - before
    assert [renderer.render(PLAIN, said("Hi")) for _ in range(3)] == [HI_SAID] * 3
    assert workers() - before == {first}
    os.kill(first, signal.SIGKILL)
    until(lambda: ended(first))
    assert renderer.render(PLAIN, said("Hi")) == HI_SAID
    assert not Path(f"/proc/{first}").exists()  # no zombie
    renderer.close()
    assert workers() == before


@needs_proc
def test_a_process_knows_no_secrets_nor_ctrl_c(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    for name, value in (("EDGEWISE_CLOUD_KEY", "secret"), ("PYTHONPATH", "/nowhere")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = workers()
    renderer = make(seconds=10)
    assert renderer.render(PLAIN, said("Hi")) == HI_SAID
    (worker,) = workers() - before
    assert Path(f"/proc/{worker}/environ").read_bytes() == b"TZ=Asia/Tokyo\0"
    os.kill(worker, signal.SIGINT)
    assert renderer.render(PLAIN, said("Hi")) == HI_SAID
    assert workers() - before == {worker}
    assert os.getpgid(worker) != os.getpgid(0)  # a terminal's Ctrl-C does not even reach it


PARENT = """
import os, sys, threading
from edgewise.prompts.rendering import Renderer
renderer = Renderer(seconds=2)
print(renderer.render({plain!r}, {given!r}), flush=True)
if "stick" in sys.argv:
    threading.Thread(target=renderer.render, args=({endless!r}, {given!r}), daemon=True).start()
if "wait" in sys.argv:
    sys.stdin.read()
if "fork" in sys.argv:
    child = os.fork()
    print(renderer.render({plain!r}, {given!r}), end="", flush=True)
    if child:
        assert os.waitpid(child, 0)[1] == 0
        print(renderer.render({plain!r}, {given!r}), end="", flush=True)
""".format(plain=PLAIN, given=said("Hi"), endless=ENDLESS)


def started(*arguments: str) -> "subprocess.Popen[str]":
    """A process that has rendered once, and does what it is told then."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", PARENT, *arguments], text=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() + process.stdout.readline() == HI_SAID + "\n"
    return process


@pytest.mark.deep
@needs_proc
@pytest.mark.parametrize("how", [["wait"], ["wait", "stick"]])
def test_nothing_outlives_a_parent_that_is_killed(how: list[str]) -> None:
    process = started(*how)
    (worker,) = workers(process.pid)

    def ticks() -> int:
        return int(Path(f"/proc/{worker}/stat").read_text().split()[13])

    if "stick" in how:
        first = ticks()
        until(lambda: ticks() >= first + 2, "work on what never ends")
    process.kill()
    process.communicate()
    until(lambda: ended(worker))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_after_a_fork_both_render() -> None:
    done = python("-c", PARENT, "fork")
    assert (done.stdout, done.stderr) == (HI_SAID + "\n" + HI_SAID * 3, "")


@pytest.mark.parametrize(
    "worker",
    [
        "raise SystemExit",
        "frame(b''); sys.stdin.buffer.read(9)",
        "frame(b''); frame(b'{')",
        "frame(b''); frame(b'{\"text\": 3}')",
        "frame(b''); frame(b'{\"text\": \"\\xff\"}')",
        "frame(b''); out.write(b'\\xff' * 9999)",
        "frame(b''); out.write(b'\\0\\0\\0\\x09abc')",
    ],
)
def test_a_process_that_was_taken_over_lies_in_vain(
    monkeypatch: pytest.MonkeyPatch, make: Make, tmp_path: Path, worker: str
) -> None:
    frame = "def frame(data): out.write(len(data).to_bytes(4, 'big') + data); out.flush()"
    file = tmp_path / "worker.py"
    file.write_text(f"import sys\nout = sys.stdout.buffer\n{frame}\n{worker}")
    renderer = make(seconds=10)
    begins = worker.startswith("frame")
    words = "ended the process" if begins else "the process for it did not start"
    with monkeypatch.context() as changed:
        changed.setattr("edgewise.sandbox.worker.__file__", str(file))
        with pytest.raises(ModelError, match=words):
            renderer.render(PLAIN, said("Hi"))
    assert renderer.render(PLAIN, said("Hi")) == HI_SAID


TURNS = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes?")]
CHAT = (
    "{%- for m in messages %}<{{ m.role }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Marked(ByteTokenizer):
    """Has special tokens."""

    def special_text(self, name: str) -> str:
        return {"bos": "<s>", "eos": "</s>"}[name]


def templated(template: str | None) -> ByteTokenizer:
    tokenizer = Marked()
    tokenizer.chat_template = template
    return tokenizer


def test_a_template_sees_special_tokens_and_the_helpers_of_published_templates() -> None:
    template = (
        "{{ bos_token }}{{ strftime_now('%Y') }}{{ messages[0].content | tojson }}"
        "{% for m in [1, 2, 3] %}{% if loop.first %}{% continue %}{% endif %}{{ loop.index }}"
        "{% break %}{% endfor %}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, indent=1) }}"
        "{% if tools is none %}{% generation %}{% set x = 1 %}!{% endgeneration %}{% endif %}"
        "{{ x }}{{ eos_token }}"
    )
    expected = f'<s>{time.strftime("%Y")}"é <&>"2{{\n "a": 2,\n "b": 1\n}}!</s>'
    assert render(templated(template), [Message("user", "é <&>")]) == expected


PARTS = "{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{{ '' }}"


def test_a_template_that_reads_parts_is_given_parts() -> None:
    turns = [*TURNS, Message("user", "And?"), Message("tool", "Sun.", tool_call_id="a")]
    for parts in (PARTS, "{{ m.content[0]['text'] | trim }}"):
        template = CHAT.replace("{{ m['content'] }}", parts)
        assert render(templated(template), turns) == render(templated(CHAT), turns)


def test_a_template_that_leaves_out_what_is_said_is_refused() -> None:
    for template in ("chatml", "{{ bos_token }}", "{{ messages | length }}"):
        with pytest.raises(ModelError, match="user") as refused:
            prompt_ids(templated(template), TURNS)
        assert repr(template) in str(refused.value)
    answers = templated("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    assert bytes(prompt_ids(answers, [Message("user", "Hi")])) == b"Hi"
    with pytest.raises(ModelError, match="assistant"):
        prompt_ids(answers, [*TURNS, Message("user", "And?")])


REFUSES = "{{ raise_exception('No.') }}"
NO_SYSTEM = f"{{% if messages[0].role == 'system' %}}{REFUSES}{{% endif %}}{CHAT}"
DROPPED = CHAT.replace("{%- for m in messages", "{%- for m in messages if m.role != 'system'")
ALTERNATE = (
    "{% set turns = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    f"{REFUSES}{{% endif %}}{{% endfor %}}{CHAT}"
)
BRIEF, HI, YES = Message("system", "Brief."), Message("user", "Hi"), Message("assistant", "Yes?")


@pytest.mark.parametrize(
    ("template", "turns", "expected"),
    [
        (NO_SYSTEM, [BRIEF, HI], "<user>Brief.\n\nHi\n"),
        (DROPPED, [BRIEF, HI, YES, HI], "<user>Brief.\n\nHi\n<assistant>Yes?\n<user>Hi\n"),
        (NO_SYSTEM, [HI, HI], "<user>Hi\n<user>Hi\n"),
        (ALTERNATE, [HI, HI], "<user>Hi\n\nHi\n"),
        (ALTERNATE, [BRIEF, BRIEF, HI, HI], "<system>Brief.\n\nBrief.\n<user>Hi\n\nHi\n"),
        (ALTERNATE, [YES, HI], "<user>\n<assistant>Yes?\n<user>Hi\n"),
        (ALTERNATE, [HI, YES, BRIEF, HI], "<user>Hi\n<assistant>Yes?\n<user>Brief.\n\nHi\n"),
        (CHAT, [HI, HI, BRIEF], "<user>Hi\n<user>Hi\n<system>Brief.\n"),
    ],
)
def test_refused_turns_are_said_otherwise(
    template: str, turns: list[Message], expected: str
) -> None:
    assert render(templated(template), turns) == expected + "<assistant>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ ''['__class__'].__mro__ }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ (['']|map(attribute='__class__')|first).__mro__ }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='user') }}",
        "{% import 'os' as os %}",
        "{{ lipsum(n=10 ** 9) }}",
        "{% for _ in range(10 ** 12) %}{% endfor %}",
        "{{ undefined.attribute }}",
        "{{ 1 / 0 }}",
        "{{ messages[9].content + 1 }}",
        "{{ raise_exception | tojson }}",
        "{% for %}",
        "{{ unclosed",
    ],
)
def test_what_a_template_must_not_do_is_refused(template: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        render(templated(template), TURNS)


def test_an_oversized_template_is_not_compiled() -> None:
    assert render(templated(CHAT.ljust(MAX_TEMPLATE, "x")), TURNS).endswith("xxx")
    with pytest.raises(ModelError, match=f"has {MAX_TEMPLATE + 1} characters"):
        render(templated("x" * (MAX_TEMPLATE + 1)), TURNS)
