"""The agents people have, each in a process of its own, set up as docs/how-to/agents.md shows.

What the model says is given: a call of a tool of the agent's own, which the grammar of that tool's
schema has to allow and which the agent then makes, and a sentence when it has told of the outcome;
for Aider, which has no tools, a file as it asks for one.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal, get_args

import pytest

from edgewise.cloud.connect import connect
from edgewise.testing.scripted_edge import ScriptedEdge
from tests import programs
from tests.documents import ROOT
from tests.doubles.scripted_engine import ScriptedEngine
from tests.server.in_process import answering_of, at_port
from tests.tool_models import ToolTokenizer, saying

pytest.importorskip("llguidance")

AGENTS = os.environ.get("AGENTS")
pytestmark = pytest.mark.skipif(
    AGENTS is None, reason="needs AGENTS, a folder with the agents; see make test-agents"
)
DOCS = (ROOT / "docs/how-to/agents.md").read_text()
SHOWN = "http://127.0.0.1:8300"
SAID = "It is made."
WRITE = "echo made > made.txt"
NOWHERE = "http://127.0.0.1:9"
QUIET = {
    # Nothing but the server is asked, and nobody is told.
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "http_proxy"), NOWHERE),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CONTINUE_TELEMETRY_ENABLED": "0",
    "AIDER_ANALYTICS": "false",
    "AIDER_CHECK_UPDATE": "false",
}


Link = Literal["none", "quota", "cut"]
links = pytest.mark.parametrize("link", get_args(Link))


@contextmanager
def served(*texts: str, link: Link) -> Iterator[str]:
    """A model with tools, a context for what agents send, and these answers.

    Every token is critical; the cloud answers 429 ("quota"), or its link is cut.
    """
    edge = ScriptedEdge(saying(*texts), context=1 << 20, tokenizer=ToolTokenizer())
    if link == "none":
        with at_port(answering_of(edge)) as url:
            yield url
        return
    with closing(ScriptedEngine(tokenizer=edge.tokenizer)) as engine:
        with closing(connect(engine.url, edge.tokenizer, engine="llama-server")) as cloud:
            answering = answering_of(edge, cloud)
            proven, engine.fault = engine.asked, lambda _: "busy"
            if link == "cut":
                engine.stop()
            with at_port(answering) as url:
                yield url
        assert link == "cut" or engine.asked > proven


def call(tool: str, **arguments: str) -> str:
    """As the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def block(language: str, word: str, url: str) -> str:
    """The document's block of a language that has a word, with the server where it is."""
    found = re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL)
    (one,) = [text for text in found if word in text]
    return one.replace(SHOWN, url)


def run(script: str, folder: Path) -> str:
    """A shell's script in a new folder with a home of its own; what it printed."""
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir(exist_ok=True)
    path = f"{AGENTS}/node_modules/.bin:{AGENTS}/bin:{os.environ['PATH']}"
    alone = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", **QUIET}
    return programs.run("bash", "-ec", script, folder=work, environment=alone).stdout


def written(folder: Path, name: str, text: str) -> None:
    """A file of the agent's in its home."""
    path = folder / "home" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)


def made(folder: Path) -> str:
    return (folder / "work" / "made.txt").read_text()


@links
def test_codex(tmp_path: Path, link: Link) -> None:
    with served(call("exec_command", cmd=WRITE), SAID, link=link) as url:
        written(tmp_path, ".codex/config.toml", block("toml", "wire_api", url))
        alone = "--skip-git-repo-check --dangerously-bypass-approvals-and-sandbox"
        assert SAID in run(f"codex exec {alone} 'Make it.'", tmp_path)
    assert made(tmp_path) == "made\n"


@links
def test_claude_code(tmp_path: Path, link: Link) -> None:
    with served(call("Bash", command=WRITE), SAID, link=link) as url:
        shown = block("sh", "claude", url).replace("\nclaude\n", "\n")
        assert SAID in run(f"{shown}claude -p 'Make it.' --allowedTools Bash", tmp_path)
    assert made(tmp_path) == "made\n"


@links
def test_continue(tmp_path: Path, link: Link) -> None:
    with served(call("Bash", command=WRITE), SAID, link=link) as url:
        written(tmp_path, ".continue/config.yaml", block("yaml", "apiBase", url))
        given = "--config ~/.continue/config.yaml"
        assert SAID in run(f"cn -p 'Make it.' --auto {given}", tmp_path)
    assert made(tmp_path) == "made\n"


@links
def test_aider(tmp_path: Path, link: Link) -> None:
    with served("made.txt\n```\nmade\n```\n", link=link) as url:
        shown = block("sh", "aider", url).rstrip()
        run(f"{shown} --yes-always --no-git --message 'Make it.'", tmp_path)
    assert made(tmp_path) == "made\n"
