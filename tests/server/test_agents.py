"""The agents people have, each in a process of its own, set up as docs/how-to/agents.md shows.

What the model says is given: a call of a tool of the agent's own, which the grammar of that tool's
schema has to allow and which the agent then makes, and a sentence when it has told of the outcome;
for Aider, which has no tools, a file as it asks for one.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
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


def codex(url: str, home: Path) -> str:
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text(block("toml", "wire_api", url))
    alone = "--skip-git-repo-check --dangerously-bypass-approvals-and-sandbox"
    return f"codex exec {alone} 'Make it.'"


def claude_code(url: str, home: Path) -> str:
    shown = block("sh", "claude", url).replace("\nclaude\n", "\n")
    return f"{shown}claude -p 'Make it.' --allowedTools Bash"


def continue_(url: str, home: Path) -> str:
    (home / "config.yaml").write_text(block("yaml", "apiBase", url))
    return "cn -p 'Make it.' --auto --config ~/config.yaml"


def aider(url: str, home: Path) -> str:
    return f"{block('sh', 'aider', url).rstrip()} --yes-always --no-git --message 'Make it.'"


CALLS: dict[Callable[[str, Path], str], list[str]] = {
    codex: [call("exec_command", cmd=WRITE), SAID],
    claude_code: [call("Bash", command=WRITE), SAID],
    continue_: [call("Bash", command=WRITE), SAID],
    aider: ["made.txt\n```\nmade\n```\n"],
}


@pytest.mark.parametrize("link", get_args(Link))
@pytest.mark.parametrize("agent", CALLS)
def test_an_agent_does_what_is_said(
    tmp_path: Path, agent: Callable[[str, Path], str], link: Link
) -> None:
    """In a new folder, with a home of its own and this script of a shell."""
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    path = f"{AGENTS}/node_modules/.bin:{AGENTS}/bin:{os.environ['PATH']}"
    alone = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", **QUIET}
    with served(*CALLS[agent], link=link) as url:
        script = agent(url, home)
        told = programs.run("bash", "-ec", script, folder=work, environment=alone).stdout
    assert agent is aider or SAID in told
    assert (work / "made.txt").read_text() == "made\n"
