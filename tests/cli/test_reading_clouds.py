"""Commands beside a chat API that continues nothing: it reads passages."""

import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

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


def test_an_answer_shows_what_was_rewritten(edgewise: Edgewise, reader: ChatReader) -> None:
    done = edgewise("run", PROMPT, "--cloud", reader.url, "--stats")
    assert done.out.startswith("It is in Central America.")
    assert "1 sentence" in done.err
    assert "passages" in done.err


def test_what_it_did_is_counted(edgewise: Edgewise, reader: ChatReader) -> None:
    answer = edgewise.json("run", PROMPT, "--cloud", reader.url, "--price", "1,0.1,8")
    usage = answer["usage"]
    assert usage["cloud_tokens"] == sum(one["source"] == "cloud" for one in answer["tokens"])
    assert usage["cost"]["paid"] <= usage["cost"]["alone"]


def test_doctor_says_what_it_can_do(edgewise: Edgewise, reader: ChatReader) -> None:
    done = edgewise("doctor", "--cloud", reader.url)
    assert "passages" in done.out
    assert not reader.asked


def test_doctor_says_what_it_does_not_measure(edgewise: Edgewise, reader: ChatReader) -> None:
    """Seen: a price was taken, and no line was about it."""
    price = ("--price", "1,0.1,8")
    told = edgewise.json("doctor", "--cloud", reader.url, *price)
    consult = next(one for one in told["checks"] if one["name"] == "consult")
    assert consult["status"] == "ok"
    assert "not measured" in consult["detail"]
    assert "price" in consult["detail"]
    last = edgewise("doctor", "--cloud", reader.url, *price).out.splitlines()[-1]
    assert last.startswith("Next: edgewise try")


@pytest.mark.parametrize("probed", [(2, None), (1, None), (2, "Two and two are four.")])
def test_one_that_cannot_read_corrects_nothing_unless_told_to(
    edgewise: Edgewise, reader: ChatReader, tmp_path: Path, probed: Verdict
) -> None:
    """Seen: Qwen2.5-Coder-1.5B gives the last, mends nothing and spoils a tenth of the answers."""
    reader.probed = probed
    cloud = ("--cloud", reader.url)
    assert "edgewise try" in edgewise.refusal("run", PROMPT, *cloud)
    assert not reader.asked
    assert "edgewise try" in edgewise("doctor", *cloud, code=1).out
    assert edgewise("run", PROMPT, *cloud, "--cloud-share", "1").out == "A whole answer.\n"
    assert edgewise("run", PROMPT, *cloud, "--verify", "on").out
    (tmp_path / "prompts.txt").write_text(PROMPT)
    edgewise("try", str(tmp_path / "prompts.txt"), *cloud, "--verify", "on")
    assert reader.asked


def test_one_miss_is_no_weak_reader(edgewise: Edgewise, reader: ChatReader) -> None:
    reader.misses = 1
    assert edgewise("run", PROMPT, "--cloud", reader.url).out.startswith("It is in Central America")


@pytest.mark.parametrize(
    "flags",
    [
        ("--verify", "off"),
        ("--verify", "exact"),
        ("--threshold", "0.5"),
        ("--router", "max-prob"),
        ("--on-edge-error", "cloud"),
    ],
    ids=" ".join,
)
def test_what_it_cannot_honour_is_refused(
    edgewise: Edgewise, reader: ChatReader, flags: tuple[str, ...]
) -> None:
    edgewise.refusal("run", PROMPT, "--cloud", reader.url, *flags)
    assert not reader.asked


def test_as_a_further_cloud_it_is_refused(edgewise: Edgewise, reader: ChatReader) -> None:
    """Seen: it was taken, and never asked for anything."""
    flags = ("--cloud", "bundled", "--cloud", reader.url)
    edgewise.refusal("run", PROMPT, *flags)
    assert "further" in edgewise("doctor", *flags, code=1).out
    assert not reader.asked


def test_a_whole_answer_is_told(edgewise: Edgewise, reader: ChatReader) -> None:
    done = edgewise("run", PROMPT, "--cloud", reader.url, "--escalate", "100%")
    assert done.out.strip() == "A whole answer."
    assert "whole answer" in done.err


def test_a_share_of_one_answer_is_refused(edgewise: Edgewise, reader: ChatReader) -> None:
    """Seen: it was taken, and no answer was ever the cloud's."""
    told = edgewise.refusal("run", PROMPT, "--cloud", reader.url, "--escalate", "10%")
    assert "--escalate" in told
    assert "chat, serve or try" in told
    assert not reader.bodies
    assert edgewise("run", PROMPT, "--cloud", reader.url, "--escalate", "0%").out


def test_the_cloud_alone_answers_whole(edgewise: Edgewise, reader: ChatReader) -> None:
    done = edgewise("run", PROMPT, "--cloud", reader.url, "--cloud-share", "100%")
    assert done.out.strip() == "A whole answer."
    assert not reader.asked


def test_the_cloud_alone_is_held_to_no_response_format(
    edgewise: Edgewise, reader: ChatReader, tmp_path: Path
) -> None:
    """Seen: the edge's answer passed for the cloud's."""
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    form = ("--json-schema", str(tmp_path / "schema.json"), "--cloud-share", "100%")
    assert "response format" in edgewise("run", PROMPT, "--cloud", reader.url, *form, code=2).err
    assert not any(PROMPT in str(body) for body in reader.bodies)


def test_try_shows_what_a_reader_does(
    edgewise: Edgewise, reader: ChatReader, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n")
    told = edgewise.json("try", str(tmp_path / "prompts.txt"), "--cloud", reader.url)
    answers = told["prompts"][0]["answers"]
    texts = {name: one["text"] for name, one in answers.items()}
    assert texts["cloud"] == "A whole answer."
    assert texts["pair"].startswith("It is in Central America.")


def test_try_goes_on_where_the_cloud_alone_writes_nothing(
    edgewise: Edgewise, reader: ChatReader, tmp_path: Path
) -> None:
    """Seen: one refusal, or one limit that reasoning reached, ended all of it."""
    replies = iter(["", "A whole answer."])

    async def answers() -> str:
        return next(replies)

    reader.whole = answers
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n{PROMPT}\n")
    asked = ("try", str(tmp_path / "prompts.txt"), "--cloud", reader.url, "--price", "0,0,1000000")
    told = edgewise.json(*asked)
    first, second = (one["answers"]["cloud"] for one in told["prompts"])
    assert (first["text"], first["failed"], first["paid"]) == ("", 1, 12)
    assert (second["text"], second["failed"]) == ("A whole answer.", 0)
    assert told["systems"][2]["answers"] == 2


def test_a_models_name_and_another_as_its_model_are_refused(
    edgewise: Edgewise, reader: ChatReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the other was asked, and billed, without a word."""
    monkeypatch.setattr(providers, "PROVIDERS", (PROVIDERS[0]._replace(url=reader.url),))
    monkeypatch.setenv("EDGEWISE_CLOUD_MODEL", "gpt-5")
    told = edgewise.refusal("run", PROMPT, "--cloud", "gpt-5-mini")
    assert "gpt-5-mini" in told
    assert not reader.bodies


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


def test_try_bills_the_cloud_alone_by_its_own_count(
    edgewise: Edgewise, reader: ChatReader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Thoughts are billed, and not shown; the day's sum has what the cloud alone cost, too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n")
    asked = ("try", str(tmp_path / "prompts.txt"), "--cloud", reader.url, "--price", "0,0,1000000")
    edge, pair, cloud = (one["paid"] for one in edgewise.json(*asked)["systems"])
    assert (edge, cloud) == (0, 12)
    with closing(sqlite3.connect(tmp_path / "edgewise" / "spent.db")) as kept:
        ((amount,),) = kept.execute("SELECT amount FROM spent").fetchall()
    assert float(amount) == pair + cloud


@pytest.mark.parametrize("command", [("run", PROMPT), ("chat",)], ids=lambda given: given[0])
def test_an_interrupted_answer_says_what_it_cost(
    edgewise: Edgewise, reader: ChatReader, command: tuple[str, ...]
) -> None:
    async def interrupted() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "A whole answer."

    reader.whole = interrupted
    asked = (*command, "--cloud", reader.url, "--cloud-share", "1", "--price", "2,2,8")
    done = edgewise(*asked, stdin=PROMPT.encode(), code=130 if command[0] == "run" else 0)
    (told,) = [line for line in done.err.splitlines() if "interrupted after" in line]
    assert re.search(r"paid (about )?0\.00\d+", told), told


@pytest.mark.parametrize("cloud", ["bundled", "none"])
def test_only_a_chat_api_answers_whole(edgewise: Edgewise, cloud: str) -> None:
    whole = ("--cloud", cloud, "--escalate", "10%")
    assert "escalate" in edgewise.refusal("run", PROMPT, *whole)
    assert "escalate" in edgewise("doctor", *whole, code=1).out


@pytest.mark.parametrize("probed", ["Fine.", '{"stand": 1}'])
def test_one_that_gives_no_verdict_is_no_cloud(
    edgewise: Edgewise, reader: ChatReader, probed: Verdict
) -> None:
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
    ],
)
def test_a_hosted_models_name_is_its_providers_address(name: str, host: str, model: str) -> None:
    found = hosted(name)
    assert found is not None
    url, named = found
    assert named == model
    provider = provider_at(url)
    assert provider is not None
    assert host in provider.url
    assert provider_at(url.replace("https", "http")) is None
    assert provider_at(url.replace(host, f"{host}.example")) is None


@pytest.mark.parametrize("name", ["gpt-oss:20b", "smollm2", "./gpt-5", "o1.gguf", "ollama:gpt-5"])
def test_other_names_are_not_hosted(name: str) -> None:
    assert hosted(name) is None


@pytest.mark.parametrize("named", ["flag", "environment", "file"])
def test_a_providers_key_goes_to_its_host_unless_a_file_names_the_cloud(
    edgewise: Edgewise,
    reader: ChatReader,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    named: str,
) -> None:
    here = PROVIDERS[0]._replace(url=reader.url)
    monkeypatch.setattr(providers, "PROVIDERS", (here,))
    monkeypatch.setattr("edgewise.providers.provider_at", lambda url: here)
    monkeypatch.setattr("edgewise.cli.options.provider_at", lambda url: here)
    monkeypatch.setattr("edgewise.cloud.connect.provider_at", lambda url: here)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    reader.key = "sk-secret"
    flags: tuple[str, ...] = ()
    if named == "flag":
        flags = ("--cloud", "gpt-5-mini")
    elif named == "environment":
        monkeypatch.setenv("EDGEWISE_CLOUD", "gpt-5-mini")
    else:
        (tmp_path / "edgewise.toml").write_text("cloud = 'gpt-5-mini'\n")
        monkeypatch.chdir(tmp_path)
    done = edgewise("run", PROMPT, *flags, code=2 if named == "file" else 0)
    asked = {body["model"] for body in reader.bodies}
    assert asked == (set() if named == "file" else {"gpt-5-mini"})
    assert "sk-secret" not in done.err + done.out


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
def test_what_needs_tokens_of_it_is_refused(
    edgewise: Edgewise, reader: ChatReader, command: str
) -> None:
    """Seen: thresholds were stored that had been measured on the edge alone."""
    told = edgewise(*command.split(), "--cloud", reader.url, code=2).err
    assert "writes no tokens" in told
    assert not reader.asked


def test_an_evaluation_leaves_out_what_nobody_named(edgewise: Edgewise, reader: ChatReader) -> None:
    cloud = ("--cloud", reader.url, "--router", "auto")
    told = edgewise.json("eval", "pocketqa", "--limit", "3", "--calibration", "1", *cloud)
    systems = {one["system"] for one in told["systems"]}
    assert systems == {"edge", "cloud", "query-level", "verify, served"}


@pytest.mark.parametrize("of_file", ["cloud = 'gpt-5-mini'", "cloud-key = 'theirs'"])
def test_a_file_sets_neither_a_name_for_the_users_key_nor_a_key_for_their_name(
    edgewise: Edgewise,
    reader: ChatReader,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    of_file: str,
) -> None:
    """Seen: a name was no URL, so the user's key for another host went to the provider."""
    monkeypatch.setattr(providers, "PROVIDERS", (PROVIDERS[0]._replace(url=reader.url),))
    own = ("CLOUD_KEY", "sk-secret") if "gpt" in of_file else ("CLOUD", "gpt-5-mini")
    monkeypatch.setenv(f"EDGEWISE_{own[0]}", own[1])
    (tmp_path / "edgewise.toml").write_text(f"{of_file}\n")
    refused = edgewise("run", PROMPT, code=2)
    assert "edgewise.toml" in sentence(refused)
    assert "sk-secret" not in refused.err
    assert not reader.bodies


def test_a_hosted_cloud_that_a_file_names_is_told_with_its_host(
    edgewise: Edgewise, tmp_path: Path
) -> None:
    (tmp_path / "edgewise.toml").write_text("cloud = 'gpt-5-mini'\n")
    assert f"edgewise.toml sets the cloud: {PROVIDERS[0].url}\n" in edgewise("config").err


@pytest.mark.parametrize("simulated", [False, True])
def test_an_evaluation_has_a_row_of_what_is_read(
    edgewise: Edgewise, reader: ChatReader, simulated: bool
) -> None:
    flags = ["--systems", "edge,cloud,passages"] if simulated else ["--cloud", reader.url]
    told = edgewise.json("eval", "pocketqa", "--limit", "3", "--calibration", "1", *flags)
    systems = [one["system"] for one in told["systems"]]
    assert ("passages, served" if simulated else "verify, served") in systems
    assert bool(reader.asked) is not simulated
