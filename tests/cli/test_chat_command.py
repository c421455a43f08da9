"""`edgewise chat`: lines of stdin, and a real terminal."""

import fcntl
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edgewise import Pair
from edgewise.addresses import bundled
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.cli.conftest import Edgewise
from tests.doubles.scripted_text import ScriptedText
from tests.doubles.served_edge import llama_edge
from tests.llama_server_process import llama_server
from tests.server.serving import far_cloud

QUESTION = pocketqa().questions[1].prompt
DROPPED = re.compile(r"the context is full: dropped the oldest questions and answers, (\d+) of \d+")


def saved_by(edgewise: Edgewise) -> Any:
    return json.loads((edgewise.folder / "talk.json").read_text())


def test_a_conversation_has_turns(edgewise: Edgewise) -> None:
    lines = f"Tell me about copper.\n/why\n\nAnd iron?\n/save talk.json\n/quit\n{QUESTION}\n"
    result = edgewise("chat", stdin=lines.encode())
    assert "copper" in result.out
    saved = saved_by(edgewise)
    roles = [message["role"] for message in saved["messages"]]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert saved["messages"][1]["content"] in result.out
    assert [answer["whole"] for answer in saved["answers"]] == [True, True]
    assert QUESTION not in json.dumps(saved)


def test_why_shows_the_routed_and_the_corrected_tokens(edgewise: Edgewise) -> None:
    lines = f"/why\n/share 1\n{QUESTION}\n/why\n/share 0\n{QUESTION}\n/why\n"
    result = edgewise("chat", "--verify", "off", stdin=lines.encode())
    assert "There is no answer yet" in result.err
    assert "critical" in result.out
    assert re.search(r"' \d+\.\d%", result.out)
    assert "cloud" in result.out
    assert "none of its tokens" in result.err
    result = edgewise("chat", stdin=f"{QUESTION}\n/why\n".encode())
    lines = [line.split() for line in result.out.splitlines() if " corrected " in line]
    assert lines
    assert "ratio" in result.out
    assert re.search(rf": {len(lines)} of \d+ tokens corrected", result.err)


def test_the_dial_and_the_modes(edgewise: Edgewise) -> None:
    lines = f"/mode edge\n{QUESTION}\n/mode cloud\n{QUESTION}\n/mode pair\n/share 0.2\n{QUESTION}\n"
    result = edgewise("chat", stdin=lines.encode())
    counts = re.findall(r"(\d+) edge \+ (\d+) cloud tokens", result.err)
    (_, none), (alone, _) = [(int(e), int(c)) for e, c in counts]
    assert none == alone == 0
    ((corrected, of),) = re.findall(r"(\d+) of (\d+) tokens corrected", result.err)
    assert 0 < int(corrected) < int(of)
    # The dial tells where it stands.
    told = edgewise("chat", "--cloud-share", "7%", stdin=b"/share\n/mode edge\n/share\n").err
    assert re.findall(r"to (\d+)%", told) == ["7", "0"]
    assert "0.25" in edgewise("chat", "--threshold", "0.25", stdin=b"/share\n").err


MISTAKES = {
    "/dance": "no command /dance",
    "/shar 0.1": "no command /shar; did you mean '/share'",
    "/new ideas for a party": "/new takes no text",
    "/quit it": "/quit takes no text",
    "/share lots": "'lots'",
    "/share 2": "from 0 to 1",
    "/mode both": "/mode needs",
    "/save": "/save needs",
    "/save no/such/folder.json": "no/such/folder.json' cannot be written",
    "/save ~nobody-of-this-name/talk.json": "~nobody-of-this-name/talk.json' cannot be written",
    "/save talk\0.json": "talk\\x00.json' cannot be written",
    "copper " * 5000: "do not fit",
}


def test_mistakes_cost_nothing(edgewise: Edgewise) -> None:
    lines = ["Tell me about tin.", *MISTAKES, "Tell me about copper."]
    result = edgewise("chat", stdin="".join(f"{line}\n" for line in lines).encode())
    for told in MISTAKES.values():
        assert told in result.err
    assert "copper" in result.out
    assert not DROPPED.search(result.err)


def test_such_lines_are_questions(edgewise: Edgewise) -> None:
    lines = ["/etc/passwd what is this", "/etc/passwd", "/ or not", "/me too"]
    # One ends at a line feed alone.
    lines += [f"Tell me about tin.{space}And iron?" for space in "\u2028\x85\x0b\x0c"]
    result = edgewise("chat", stdin="\n".join([*lines, "/save talk.json\n"]).encode())
    assert "command" not in result.err
    asked = [one["content"] for one in saved_by(edgewise)["messages"] if one["role"] == "user"]
    assert asked == lines


@pytest.mark.parametrize("line", ["\ufeff/local", "/LOCAL", "/Local\r"])
def test_a_command_in_any_case_and_behind_a_byte_order_mark(edgewise: Edgewise, line: str) -> None:
    """Seen: a question that was to stay here was sent."""
    told = edgewise("chat", stdin=f"{line}\n/share 5%\n".encode()).err
    assert "the conversation is local" in told
    assert "command" not in told


@pytest.mark.parametrize(
    ("cloud", "told"),
    [
        ("bundled --router entropy", "edge here, asks cloud (here) for up to 5% of the tokens"),
        ("bundled", "to verify every token, and for up to 10% of the tokens"),
        ("bundled --verify exact", "to verify every token, and write each that is not its own"),
        ("none", "edge here"),
    ],
)
def test_a_chat_opens_with_what_leaves(tmp_path: Path, cloud: str, told: str) -> None:
    flags = ("--cloud", *cloud.split())
    with closing(Terminal(tmp_path, "chat", *flags, COLUMNS="200")) as terminal:
        shown = terminal.wait_for("/help")
    assert f"{told}; nothing leaves" in shown
    # Two models on the same cores take turns.
    assert ("whether the cloud alone is sooner" in shown) is ("to verify" in told)


def test_what_goes_to_no_cloud_has_no_share(edgewise: Edgewise) -> None:
    alone = edgewise("chat", "--cloud", "none", stdin=b"/mode cloud\n/share 5%\n/mode edge\n").err
    assert alone.count("needs a cloud model") == 2
    assert "the cloud may write" not in alone
    local = edgewise("chat", stdin=b"/local\n/share 5%\n/mode pair\n/new\n/share 5%\n").err
    assert local.count("/new ends it") == 2
    assert local.count("the cloud may write 5.0%") == 1


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        self._master, slave = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EDGEWISE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgewise", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", **variables},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, seconds: float = 30) -> str:
        """What is shown before it."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            ready, _, _ = select.select([self._master], [], [], 0.1)
            if ready:
                try:
                    self.seen += os.read(self._master, 1 << 16).decode("utf-8", "replace")
                except OSError:
                    assert text in self.seen, self.seen
        before, _, self.seen = self.seen.partition(text)
        return before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.mark.deep
def test_an_interrupted_answer_is_kept(tmp_path: Path) -> None:
    asks = ("--router", "constant:1", "--speculate", "0", "--threshold", "0.5")
    with (
        far_cloud(0.3) as link,
        closing(Terminal(tmp_path, "chat", "--cloud", link.url, *asks)) as terminal,
    ):
        terminal.wait_for("2004h")  # it reads from now on
        terminal.type("Tell me about copper.\r")
        terminal.wait_for("copper.")
        terminal.wait_for("\x1b[1;4;31m")  # a token of the cloud's
        terminal.type("\x03")
        counts = terminal.wait_for("interrupted") + terminal.wait_for("text so far")
        assert re.search(r"after \d+ edge \+ [1-9]\d* cloud tokens", counts)
        terminal.type("/save talk.json\r")
        terminal.wait_for("saved to talk.json")
        terminal.wait_for("2004h")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=60) == 0
    saved = json.loads((tmp_path / "talk.json").read_text())
    (answer,) = saved["answers"]
    assert not answer["whole"]
    assert 1 <= len(answer["tokens"]) < 10
    assert saved["messages"][1]["content"]


@pytest.mark.deep
def test_local_keeps_everything_from_there_on_here(edgewise: Edgewise) -> None:
    lines = (
        f"/local now\n{QUESTION}\n/local\nTell me about copper.\n/mode cloud\n{QUESTION}\n"
        "/save talk.json\n/new\n/mode cloud\nTell me about iron.\n"
    )
    with llama_server(bundled("cloud")) as engine:
        flags = ("--cloud", engine, "--cloud-share", "0.5", "--sent-file", "out.jsonl")
        result = edgewise("chat", *flags, stdin=lines.encode())
    assert "/local takes no text" in result.err
    assert "nothing leaves this device" in result.err
    assert "/mode cloud is not possible" in result.err
    saved = saved_by(edgewise)
    marks = [message.get("local", False) for message in saved["messages"]]
    assert marks == [False, False, True, True, True, True]
    sent = (edgewise.folder / "out.jsonl").read_text().splitlines()
    texts = "\0".join(json.loads(line)["text"] for line in sent)
    assert QUESTION in texts
    assert "iron" in texts
    assert "copper" not in texts


@pytest.mark.parametrize("trust", [(), ("--trust", "box")])
@pytest.mark.parametrize("away", [False, True])
def test_local_says_what_is_sent_all_the_same(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch, trust: tuple[str, ...], away: bool
) -> None:
    """Seen: "nothing leaves this device", with an edge model's server or a trusted cloud."""
    monkeypatch.setattr("edgewise.cli.chat.is_loopback", lambda host: not away)
    with llama_edge() as served:
        flags = ("--edge", served.url, "--cloud", "none", *trust)
        told = edgewise("chat", *flags, stdin=b"/local\n").err
    assert (served.url in told) is away
    assert ("trust" in told) is bool(trust)
    assert ("nothing leaves" in told) is not (away or trust)


METALS = ("copper", "iron", "silver", "gold", "lead", "tin", "zinc", "nickel")
WORDS = (*METALS, "oak", "pine", "trout", "heron", "hammer", "chair")


@pytest.mark.parametrize("cloud", ["none", "bundled"])
def test_a_full_context_drops_the_oldest_turns(edgewise: Edgewise, cloud: str) -> None:
    lines = "".join(f"Tell me about {word}.\n" for word in WORDS) + "/save talk.json\n"
    flags = ("--ctx", "192", "--cloud", cloud, "--system", "Be brief.", "--threshold", "0.9")
    result = edgewise("chat", *flags, stdin=lines.encode())
    dropped = [int(count) for count in DROPPED.findall(result.err)]
    # Each makes room for some turns, so that what remains is read anew now and then only.
    assert 1 <= len(dropped) <= len(WORDS) // 2
    assert "cut at" not in result.err
    saved = saved_by(edgewise)["messages"]
    assert len(saved) == 1 + 2 * len(WORDS)
    # The last answer is that to what was kept, behind the system message.
    kept = [saved[0], *saved[1 + 2 * sum(dropped) : -1]]
    with Pair("bundled", cloud=cloud, ctx=192, threshold=0.9) as pair:
        assert pair.ask(kept).text == saved[-1]["content"]
        assert len(pair.prompt(kept).ids) <= 192 * 3 // 4


def test_a_text_api_that_knows_no_filters_is_consulted_all_the_same(edgewise: Edgewise) -> None:
    """What chat draws with where nothing is said is no wish that an API could refuse."""
    with closing(ScriptedText("chat")) as server:
        cloud = ("--cloud", server.url, "--cloud-engine", "chat")
        edge = ("--edge", str(bundled("edge")))
        arguments = (*edge, *cloud, "--threshold", "0.01", "--router", "entropy")
        result = edgewise("chat", *arguments, "--max-tokens", "16", stdin=b"Tell me more.\n")
    assert "min-p" not in result.err
    assert re.search(r"\+ [1-9]\d* cloud tokens", result.err), result.err
