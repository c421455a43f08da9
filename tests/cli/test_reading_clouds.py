"""Commands beside a chat API that continues nothing: it reads passages."""

import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from edgewise import providers
from edgewise.providers import PROVIDERS, hosted, provider_at
from tests.cli.conftest import Edgewise, sentence
from tests.doubles.chat_reader import Asked, ChatReader, Verdict

PROMPT = "Where in the world is Honduras?"
BOTH = "for up to 7% of the tokens, and to write 12% of the answers whole"
COMMANDS = ("run", "chat", "serve", "try", "doctor")


def replaces_all(asked: Asked) -> Verdict:
    return (0, "It is in Central America.") if not asked.answer else (len(asked.sentences), None)


@pytest.fixture
def reader() -> Iterator[ChatReader]:
    with closing(ChatReader(replaces_all)) as served:
        yield served


@pytest.mark.deep
def test_what_it_did_is_shown_and_counted(edgewise: Edgewise, reader: ChatReader) -> None:
    done = edgewise("run", PROMPT, "--cloud", reader.url, "--stats")
    assert done.out.startswith("It is in Central America.")
    assert "1 sentence" in done.err
    assert "passages" in done.err
    answer = edgewise.json("run", PROMPT, "--cloud", reader.url, "--price", "1,0.1,8")
    usage = answer["usage"]
    assert usage["cloud_tokens"] == sum(one["source"] == "cloud" for one in answer["tokens"])
    assert usage["cost"]["paid"] <= usage["cost"]["alone"]
    edgewise.write_lines("prompts.txt", PROMPT)
    told = edgewise.json("try", "prompts.txt", "--cloud", reader.url)
    answers = told["prompts"][0]["answers"]
    assert answers["cloud"]["text"] == "A whole answer."
    assert answers["pair"]["text"].startswith("It is in Central America.")


def test_doctor_says_what_it_can_do_and_measures(edgewise: Edgewise, reader: ChatReader) -> None:
    """Seen: a price was taken, and no line was about it."""
    asked = ("doctor", "--cloud", reader.url, "--price", "1,0.1,8")
    (consult,) = (one for one in edgewise.json(*asked)["checks"] if one["name"] == "consult")
    assert consult["status"] == "ok"
    assert "not measured" in consult["detail"]
    assert "price" in consult["detail"]
    shown = edgewise(*asked).out
    assert "passages" in shown
    assert shown.splitlines()[-1].startswith("Next: edgewise try")
    assert not reader.asked


@pytest.mark.deep
@pytest.mark.parametrize("probed", [(2, None), (1, None), (2, "Two and two are four.")])
def test_a_weak_reader_mends_nothing(
    edgewise: Edgewise, reader: ChatReader, probed: Verdict
) -> None:
    """Seen: Qwen2.5-Coder-1.5B gives the last, mends nothing and spoils a tenth of the answers."""
    reader.probed = probed
    cloud = ("--cloud", reader.url)
    assert "edgewise try" in edgewise.refusal("run", PROMPT, *cloud)
    assert not reader.asked
    assert "edgewise try" in edgewise("doctor", *cloud, code=1).out
    assert edgewise("run", PROMPT, *cloud, "--cloud-share", "1").out == "A whole answer.\n"
    assert edgewise("run", PROMPT, *cloud, "--verify", "on").out
    edgewise.write("prompts.txt", PROMPT)
    edgewise("try", "prompts.txt", *cloud, "--verify", "on")
    assert reader.asked


def test_one_miss_is_no_weak_reader(edgewise: Edgewise, reader: ChatReader) -> None:
    reader.misses = 1
    assert edgewise("run", PROMPT, "--cloud", reader.url).out.startswith("It is in Central America")


@pytest.mark.parametrize(
    "flags",
    [
        *("--verify off", "--verify exact", "--threshold 0.5", "--router max-prob"),
        *("--on-edge-error cloud", "--escalate 10%"),
    ],
)
def test_what_it_cannot_do_is_refused(edgewise: Edgewise, reader: ChatReader, flags: str) -> None:
    """Seen: a share of one answer was taken, and no answer was ever the cloud's."""
    told = edgewise.refusal("run", PROMPT, "--cloud", reader.url, *flags.split())
    if "escalate" in flags:
        assert "--escalate" in told
        assert "chat, serve or try" in told
        assert not reader.bodies
    assert not reader.asked


def test_a_whole_answer_is_told(edgewise: Edgewise, reader: ChatReader) -> None:
    asked = ("run", PROMPT, "--cloud", reader.url)
    assert edgewise(*asked, "--cloud-share", "100%").out == "A whole answer.\n"
    assert not reader.asked
    done = edgewise(*asked, "--escalate", "100%")
    assert done.out == "A whole answer.\n"
    assert "whole answer" in done.err
    assert edgewise(*asked, "--escalate", "0%").out


def test_the_cloud_alone_has_no_response_format(edgewise: Edgewise, reader: ChatReader) -> None:
    """Seen: the edge's answer passed for the cloud's."""
    edgewise.write("schema.json", '{"type": "object"}')
    form = ("--json-schema", "schema.json", "--cloud-share", "100%")
    assert "response format" in edgewise("run", PROMPT, "--cloud", reader.url, *form, code=2).err
    assert not any(PROMPT in str(body) for body in reader.bodies)


def test_try_goes_on_where_the_cloud_writes_nothing(edgewise: Edgewise, reader: ChatReader) -> None:
    """Seen: one refusal, or one limit that reasoning reached, ended all of it."""
    replies = iter(["", "A whole answer."])

    async def answers() -> str:
        return next(replies)

    reader.whole = answers
    edgewise.write_lines("prompts.txt", PROMPT, PROMPT)
    told = edgewise.json("try", "prompts.txt", "--cloud", reader.url, "--price", "0,0,1000000")
    first, second = (one["answers"]["cloud"] for one in told["prompts"])
    assert (first["text"], first["failed"], first["paid"]) == ("", 1, 12)
    assert (second["text"], second["failed"]) == ("A whole answer.", 0)
    assert told["systems"][2]["answers"] == 2


@pytest.mark.parametrize(
    ("command", "flags", "asked"),
    [
        *((one, "--escalate 100%", "to write every answer whole") for one in COMMANDS),
        *((one, "--cloud-share 7% --escalate 12%", BOTH) for one in COMMANDS if one != "run"),
        ("run", "", "rewrite their sentences, for up to 10% of the tokens"),
        ("run", "--cloud-share 100%", "to write every answer whole"),
        ("run", "--cloud-share 0% --escalate 100%", "for up to 0% of the tokens"),
    ],
)
def test_each_command_says_what_it_is_asked(
    edgewise: Edgewise,
    reader: ChatReader,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    flags: str,
    asked: str,
) -> None:
    """Seen: it was said to write no tokens, and wrote the answer."""
    monkeypatch.setattr("edgewise.listening.server.Listener.listen", ended)
    own = {"run": (PROMPT,), "try": ("-", "--max-tokens", "8"), "serve": ("--port", "0")}
    stdin = {"chat": b"/share\n", "try": PROMPT.encode()}.get(command, b"")
    cloud = ("--cloud", reader.url, *flags.split())
    done = edgewise(command, *own.get(command, ()), *cloud, stdin=stdin)
    told = [line for line in (done.out + done.err).splitlines() if " asked " in line]
    assert len(told) == 1
    assert asked in told[0]
    assert ("whole" in told[0]) is ("whole" in asked)
    assert "no tokens" not in done.out + done.err


async def ended(_: object) -> None: ...


def test_try_bills_the_cloud_alone_by_its_own_count(edgewise: Edgewise, reader: ChatReader) -> None:
    """Thoughts are billed, and not shown; the day's sum has what the cloud alone cost, too."""
    edgewise.setenv(XDG_STATE_HOME=str(edgewise.folder))
    edgewise.write_lines("prompts.txt", PROMPT)
    told = edgewise.json("try", "prompts.txt", "--cloud", reader.url, "--price", "0,0,1000000")
    edge, pair, cloud = (one["paid"] for one in told["systems"])
    assert (edge, cloud) == (0, 12)
    with closing(sqlite3.connect(edgewise.folder / "edgewise" / "spent.db")) as kept:
        ((amount,),) = kept.execute("SELECT amount FROM spent").fetchall()
    assert float(amount) == pair + cloud


@pytest.mark.parametrize("command", ["run", "chat"])
def test_an_interrupt_says_what_it_cost(
    edgewise: Edgewise, reader: ChatReader, command: str
) -> None:
    async def interrupted() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "A whole answer."

    reader.whole = interrupted
    asked = (command, "--cloud", reader.url, "--cloud-share", "1", "--price", "2,2,8")
    done = edgewise(*asked, stdin=PROMPT.encode(), code=130 if command == "run" else 0)
    (told,) = [line for line in done.err.splitlines() if "interrupted after" in line]
    assert re.search(r"paid (about )?0\.00\d+", told), told


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        # Only a chat API answers whole.
        ("--cloud bundled --escalate 10%", "escalate"),
        ("--cloud none --escalate 10%", "escalate"),
        # Seen: it was taken, and never asked for anything.
        ("--cloud bundled --cloud {url}", "further"),
    ],
)
def test_doctor_says_why(edgewise: Edgewise, reader: ChatReader, flags: str, said: str) -> None:
    words = flags.format(url=reader.url).split()
    assert said in edgewise.refusal("run", PROMPT, *words)
    assert said in edgewise("doctor", *words, code=1).out
    assert not reader.asked


@pytest.mark.parametrize("probed", ["Fine.", '{"stand": 1}'])
def test_no_verdict_is_no_cloud(edgewise: Edgewise, reader: ChatReader, probed: Verdict) -> None:
    reader.probed = probed
    cloud = ("--cloud", reader.url, "--cloud-engine", "openai")
    assert "verdict" in edgewise.refusal("run", PROMPT, *cloud)


@pytest.mark.parametrize(
    ("name", "host", "model"),
    [
        ("gpt-5-mini", "api.openai.com", "gpt-5-mini"),
        ("openai/o4-mini", "api.openai.com", "o4-mini"),
        ("claude-haiku-4-5", "api.anthropic.com", "claude-haiku-4-5"),
        ("gemini-3-flash", "generativelanguage.googleapis.com", "gemini-3-flash"),
        *((name, "", "") for name in ("gpt-oss:20b", "smollm2", "./gpt-5", "o1.gguf", "ollama:o1")),
    ],
)
def test_a_hosted_models_name_is_its_providers_address(name: str, host: str, model: str) -> None:
    if not host:
        assert hosted(name) is None
        return
    url, named = hosted(name) or ("", "")
    assert named == model
    provider = provider_at(url)
    assert host in provider.url
    assert provider_at(url.replace("https", "http")) is None
    assert provider_at(url.replace(host, f"{host}.example")) is None


@pytest.mark.parametrize(
    ("flag", "variables", "of_file", "refused"),
    [
        ("--cloud=gpt-5-mini", {}, "", None),
        ("", {"EDGEWISE_CLOUD": "gpt-5-mini"}, "", None),
        ("", {}, "cloud = 'gpt-5-mini'", ""),
        # Seen: a name was no URL, so the user's key for another host went to the provider.
        ("", {"EDGEWISE_CLOUD_KEY": "sk-secret"}, "cloud = 'gpt-5-mini'", "edgewise.toml"),
        ("", {"EDGEWISE_CLOUD": "gpt-5-mini"}, "cloud-key = 'theirs'", "edgewise.toml"),
        # Seen: the other was asked, and billed, without a word.
        ("--cloud=gpt-5-mini", {"EDGEWISE_CLOUD_MODEL": "gpt-5"}, "", "gpt-5-mini"),
    ],
)
def test_a_providers_key_goes_to_its_host_unless_a_file_names_the_cloud(
    edgewise: Edgewise,
    reader: ChatReader,
    monkeypatch: pytest.MonkeyPatch,
    flag: str,
    variables: dict[str, str],
    of_file: str,
    refused: str | None,
) -> None:
    here = PROVIDERS[0]._replace(url=reader.url)
    monkeypatch.setattr(providers, "PROVIDERS", (here,))
    for module in ("providers", "cli.options", "cloud.connect"):
        monkeypatch.setattr(f"edgewise.{module}.provider_at", lambda url: here)
    edgewise.setenv(OPENAI_API_KEY="sk-secret", **variables)
    reader.key = "sk-secret"
    edgewise.configure(of_file)
    done = edgewise("run", PROMPT, *filter(None, [flag]), code=0 if refused is None else 2)
    asked = {body["model"] for body in reader.bodies}
    assert asked == ({"gpt-5-mini"} if refused is None else set())
    assert not refused or refused in sentence(done)
    assert "sk-secret" not in done.err + done.out


@pytest.mark.deep
@pytest.mark.parametrize(
    "command",
    [
        "tune pocketqa --limit 20",
        "train pocketqa --limit 20 --calibration 5 --out made",
        "eval pocketqa --limit 3 --calibration 1 --systems edge,cloud,static",
        "eval pocketqa --limit 3 --calibration 1 --systems edge,cloud,verify,exact",
        "eval pocketqa --limit 3 --calibration 1 --router entropy",
    ],
)
def test_what_needs_tokens_is_refused(edgewise: Edgewise, reader: ChatReader, command: str) -> None:
    """Seen: thresholds were stored that had been measured on the edge alone."""
    told = edgewise(*command.split(), "--cloud", reader.url, code=2).err
    assert "writes no tokens" in told
    assert not reader.asked


@pytest.mark.deep
def test_an_evaluation_has_a_row_of_what_is_read(edgewise: Edgewise, reader: ChatReader) -> None:
    def systems(*flags: str) -> set[str]:
        told = edgewise.json("eval", "pocketqa", "--limit", "3", "--calibration", "1", *flags)
        return {one["system"] for one in told["systems"]}

    assert "passages, served" in systems("--systems", "edge,cloud,passages")
    assert not reader.asked
    # What nobody named is left out.
    found = systems("--cloud", reader.url, "--router", "auto")
    assert found == {"edge", "cloud", "query-level", "verify, served"}
    assert reader.asked
