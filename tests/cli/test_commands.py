"""The commands' good paths, on the bundled pair."""

import io
import json
import re
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from edgewise.addresses import bundled
from edgewise.cli import render
from edgewise.cli.render import printable
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import Floats
from edgewise.errors import CloudUnavailable
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.pair import Pair
from edgewise.routers.untrained import Constant
from edgewise.testing import ScriptedCloud, ScriptedEdge, replying
from edgewise_lab.commands.demo import SHOWN
from edgewise_lab.evaluation.tasks.grading import is_right
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.cli.conftest import Edgewise, Run
from tests.cli.test_chat_command import Terminal
from tests.documents import ROOT
from tests.llama_server_process import llama_server
from tests.server.serving import far_cloud
from tests.smollm2_file import smollm2_or_skip

PROMPT = "Spell the word cat."
QUESTION = pocketqa().questions[0].prompt
TOKEN = {"index", "id", "text", "source", "score", "logprob", "seconds", "reason"}
USAGE = {"prompt_tokens", "edge_tokens", "cloud_tokens", "cloud_share", "cloud_calls"}


def answer(edgewise: Edgewise, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
    result = edgewise("run", "--json", *arguments, stdin=stdin)
    assert result.err == ""
    return json.loads(result.out)


def ids(found: dict[str, Any]) -> list[int]:
    return [token["id"] for token in found["tokens"]]


def test_json_tells_the_answer_token_by_token(edgewise: Edgewise) -> None:
    found = answer(edgewise, PROMPT)
    assert {"text", "finish_reason", "tokens", "usage", "timing"} <= set(found)
    assert found["finish_reason"] in ("stop", "length")
    assert set(found["usage"]) >= USAGE
    assert found["usage"]["edge_tokens"] + found["usage"]["cloud_tokens"] == len(found["tokens"])
    assert 0 < found["timing"]["ttft"] <= found["timing"]["total"]
    assert [token["index"] for token in found["tokens"]] == list(range(len(found["tokens"])))
    assert all(set(token) >= TOKEN for token in found["tokens"])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_a_file(edgewise: Edgewise, encoding: str) -> None:
    prices = "input = 1.0\r\ncached = 0.1\r\noutput = 2.0\r\n"
    edgewise.write("schema.json", '{"enum": [1]}'.encode(encoding))
    edgewise.write("price.toml", prices.encode(encoding))
    found = answer(edgewise, PROMPT, "--json-schema", "schema.json", "--price", "price.toml")
    assert found["text"].strip() == "1"
    plain, marked = (answer(edgewise, stdin=PROMPT.encode(one)) for one in ("utf-8", encoding))
    assert ids(marked) == ids(plain)
    edgewise("keys", "add", "laptop", "--keys", "keys.json")
    edgewise.write("keys.json", (edgewise.folder / "keys.json").read_text().encode(encoding))
    assert "laptop" in edgewise("keys", "list", "--keys", "keys.json").out


EMPTY = dict.fromkeys(("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN"), "")
NINES = "9" * 5000
POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("command", "variables", "said"),
    [
        *(("models list", {"COLUMNS": n, "LINES": n}, "bundled") for n in ("0", "²", NINES, "")),
        # The hub's empty variables are unset.
        ("models list --json", {**EMPTY, "SSL_CERT_FILE": ""}, "bundled"),
        ("run Hi --edge own/none", {**EMPTY, "HF_HUB_OFFLINE": "1"}, "https://huggingface.co"),
        ("run Écris --max-tokens 2 --cloud none", POSIX, "\n"),
        # Letters that stdout has not are escaped.
        ("keys list --keys keys.json", {"PYTHONIOENCODING": "ascii"}, r"\u043a"),
    ],
)
def test_odd_environments(
    cli: Run, edgewise: Edgewise, command: str, variables: dict[str, str], said: str
) -> None:
    edgewise("keys", "add", "ключ", "--keys", "keys.json")
    done = cli(*command.split(), code=2 if "huggingface" in said else 0, **variables)
    assert said in (done.stderr if done.returncode else done.stdout)


@pytest.mark.deep
def test_flags_reach_the_answer(edgewise: Edgewise, bpe_path: Path) -> None:
    whole = answer(edgewise, PROMPT)
    assert ids(answer(edgewise, PROMPT, "--max-tokens", "2")) == ids(whole)[:2]
    stop = whole["text"][3:5]
    cut = answer(edgewise, PROMPT, "--stop", stop)
    assert cut["text"] == whole["text"].partition(stop)[0]
    assert cut["finish_reason"] == "stop"
    bare = answer(edgewise, PROMPT, "--no-template", "--max-tokens", "2")
    more = answer(edgewise, PROMPT, "--system", "Be brief.", "--max-tokens", "2")
    lengths = [found["usage"]["prompt_tokens"] for found in (bare, whole, more)]
    assert lengths == sorted(set(lengths))
    # The cap is never exceeded.
    eager = ("--router", "constant:1", "--threshold", "0.5", PROMPT)
    assert answer(edgewise, *eager)["usage"]["cloud_tokens"] > 1
    for span in ("1", "4"):
        capped = answer(edgewise, *eager, "--max-cloud-tokens", "1", "--span", span)
        sources = [token["source"] for token in capped["tokens"]]
        assert sources.count("cloud") == capped["usage"]["cloud_tokens"] == 1
        assert capped["usage"]["cloud_calls"] == 1
    assert answer(edgewise, *eager, "--max-cloud-tokens", "0")["usage"]["cloud_calls"] == 0
    # A seed reproduces what is drawn.
    drawn = ("--edge", str(bpe_path), "--temperature", "1", "--max-tokens", "16", "Hello")
    first, again, other = (ids(answer(edgewise, *drawn, "--seed", seed)) for seed in "778")
    assert first == again != other


@pytest.mark.deep
def test_plain_output_is_the_text_and_a_summary(edgewise: Edgewise) -> None:
    text = answer(edgewise, PROMPT)["text"]
    result = edgewise("run", PROMPT)
    assert result.out == text + "\n"
    summary = result.err.splitlines()[-1]
    *before, consults, vocabulary = edgewise("run", PROMPT, "--stats").err.splitlines()
    assert len(before) + 2 > len(result.err.splitlines())
    assert re.search(r"[1-9]\d* consults", consults)
    assert "vocabulary" in vocabulary
    share = r"(used|cloud share) [\d.]+%.* 10%.*"
    verified = rf"verified by cloud: \d+ of \d+ tokens corrected \({share}\).* · [\d.]+ s"
    assert re.fullmatch(verified, summary)
    routed = edgewise("run", PROMPT, "--cloud-share", "10%", "--verify", "off").err.splitlines()[-1]
    assert re.fullmatch(rf"\d+ edge \+ \d+ cloud tokens · [\d.]+ s · {share}", routed)
    # The router of a constant wants the cloud nowhere, or everywhere: then the bucket is empty.
    little = ("run", PROMPT, "--cloud-share", "0.5%", "--router")
    unused = "used 0.0% of the 0.5% allowed: the router"
    assert unused in edgewise(*little, "constant:0").err
    assert ": 0.5% are allowed" in edgewise(*little, "constant:1").err
    capped = ("--router", "constant:1", "--cloud-share", "90%", "--max-cloud-tokens", "1")
    assert "of the 90% allowed: the answer's cap" in edgewise("run", PROMPT, *capped).err
    alone = edgewise("run", PROMPT, "--cloud", "none").err.splitlines()[-1]
    assert re.fullmatch(r"\d+ tokens · \d+ tokens/s", alone)


@pytest.mark.parametrize("prompt", ["Tell me about oxygen.", "Why is the sky blue?"])
def test_the_bundled_pair_says_first_that_it_is_a_toy(edgewise: Edgewise, prompt: str) -> None:
    told = edgewise("run", prompt).err
    assert "--edge smollm2" in told.splitlines()[0]
    taught = "What are wine, horse and spaghetti? Come to the point."
    asked = f"Question: {taught} Answer and Reasoning:"
    assert "smollm2" not in edgewise("run", asked).err


@pytest.mark.parametrize("seed", "01")
def test_control_characters_reach_no_terminal(
    edgewise: Edgewise, bpe_path: Path, seed: str
) -> None:
    drawn = ("run", "Hello", "--edge", str(bpe_path), "--temperature", "3", "--seed", seed)
    text = edgewise.json(*drawn)["text"]
    assert printable(text) != text, "the model wrote no control character: nothing was tested"
    assert edgewise(*drawn).out == printable(text) + "\n"


@given(st.text())
def test_printable_drops_controls_and_keeps_the_rest(text: str) -> None:
    shown = printable(text + "\x1b]0;title\x07\u202eevil\x9b2J\r")
    assert not any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in shown)
    assert "\u202e" not in shown
    kept = "".join(c for c in text if c.isalnum() or c in " \n\t")
    assert "".join(c for c in shown if c.isalnum() or c in " \n\t").startswith(kept)


@pytest.mark.deep
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}])
def test_the_clouds_tokens_have_colour(tmp_path: Path, variables: dict[str, str]) -> None:
    with closing(Terminal(tmp_path, "run", PROMPT, "--router", "constant:1", **variables)) as shown:
        text = shown.wait_for("cloud tokens")
    assert ("\x1b[1;4m" if variables else "\x1b[1;4;31m") in text
    assert ("31m" in text) is not bool(variables)


@pytest.mark.deep
def test_a_cloud_of_another_vocabulary(edgewise: Edgewise, other_path: Path) -> None:
    pair = ("--edge", str(other_path), "--cloud", "bundled", "--threshold", "0.1")
    told = edgewise("doctor", *pair[:4])
    assert re.search(r"ok +vocabulary +two, by words of text", told.out)
    found = answer(edgewise, "Tell me about the heron.", *pair)
    assert "critical" in {token["reason"] for token in found["tokens"]}
    assert found["usage"]["cloud_completion_tokens"]


@pytest.mark.parametrize(
    "command", ["", "run", "chat", "doctor", "models list", "bench", "router show"]
)
def test_help_is_a_flag_a_command_and_the_default(edgewise: Edgewise, command: str) -> None:
    words = command.split()
    shown = [edgewise(*words, flag) for flag in ("-h", "--help", "--help-all")]
    for one in shown:
        found = re.findall(r"^ *-h.*?(?=  )", one.out, re.MULTILINE)
        assert [name.strip() for name in found] == ["-h, --help"]
    assert edgewise("help", *words) == shown[1]
    if command in ("run", "chat", "doctor"):
        # It fits a screen, and the rest is asked for.
        common = shown[1].out.splitlines()
        assert len(common) <= 45
        assert max(map(len, common)) <= 80
        assert any("--edge MODEL" in line for line in common)
        assert "--cloud-engine" not in shown[1].out
    if command in ("", "bench"):
        told = edgewise(*words, code=2)
        assert (told.out, told.err) == ("", shown[1].out)
    assert edgewise("--version").out.startswith("edgewise 0.")


@pytest.mark.deep
def test_a_document_on_stdin_joins_the_prompt(cli: Run, edgewise: Edgewise) -> None:
    asked = ("run", "--cloud", "none")
    whole, alone = (edgewise(*asked, said).out for said in (f"{QUESTION}\n\nin short\n", QUESTION))
    assert cli(*asked, QUESTION, stdin="in short\n").stdout == whole != alone
    assert edgewise(*asked, "-", stdin=QUESTION.encode()).out == alone


RUN = (sys.executable, "-m", "edgewise", "run", QUESTION)
PIPES: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.mark.deep
def test_an_endless_stdin_is_told_of(tmp_path: Path) -> None:
    with subprocess.Popen(RUN, cwd=tmp_path, stdin=subprocess.PIPE, **PIPES) as process:
        assert b"reading stdin until it ends" in process.stderr.readline()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.strip()
    assert b"verified by" in err


@pytest.mark.deep
def test_an_answer_goes_on_until_the_context_is_full_and_a_cut_is_told(cli: Run) -> None:
    endless = ("--cloud", "none", "--no-template", "--temperature", "4", "--seed", "1")
    cut = cli("run", "a", *endless, "--ctx", "64")
    assert re.search(r"cut at 6\d tokens", cut.stderr), cut.stderr
    asked = cli("run", QUESTION, "--max-tokens", "3")
    assert "cut at 3 tokens" in asked.stderr
    assert "cut" not in cli("run", QUESTION).stderr


@pytest.mark.deep
def test_an_interrupted_answer_leaves_what_it_came_to(tmp_path: Path) -> None:
    asks = ("--router", "constant:1", "--threshold", "0.5", "--speculate", "0")
    pipes: Any = {"stdin": subprocess.DEVNULL, **PIPES}
    with (
        far_cloud(0.3) as link,
        subprocess.Popen([*RUN, *asks, "--cloud", link.url], cwd=tmp_path, **pipes) as process,
    ):
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(rb"interrupted after \d+ tokens, \d+ by the cloud", err), err


@pytest.mark.deep
def test_run_against_a_real_llama_server(cli: Run) -> None:
    local = json.loads(cli("run", QUESTION, "--json", "--threshold", "0").stdout)
    with llama_server(bundled("cloud"), key="sk-right") as url:
        late = ("--deadline", "60")  # seconds: every consult is to be answered, whatever else runs
        arguments = ("run", QUESTION, "--json", "--threshold", "0", "--cloud", url, *late)
        right = {"EDGEWISE_CLOUD_KEY": "sk-right"}
        remote = json.loads(cli(*arguments, **right).stdout)
        doctor = json.loads(cli("doctor", "--json", "--cloud", url, **right).stdout)
        cli(*arguments, EDGEWISE_CLOUD_KEY="sk-wrong", code=2)
    assert remote["text"] == local["text"]
    assert {t["source"] for t in remote["tokens"]} == {"cloud"}
    checks = {check["name"]: check for check in doctor["checks"]}
    assert checks["vocabulary"]["status"] == checks["consult"]["status"] == "ok"
    assert checks["what leaves the device"]["status"] == "warn"


@pytest.mark.deep
def test_demo_compares_the_three_as_the_readme_shows(edgewise: Edgewise) -> None:
    told = edgewise.json("demo", "--questions", "6")
    edge, cloud, pair = told["systems"]
    assert [one["system"] for one in (edge, cloud, pair)] == ["edge", "cloud", "pair, served"]
    assert pair["questions"] == 6
    assert pair["families"].keys() == {*pocketqa().families}
    assert 0 <= pair["cloud_share"] <= 1
    shown = (ROOT / "README.md").read_text().partition("```text\n")[2].partition("```")[0]
    printed = edgewise("demo").out
    assert [line for line in shown.splitlines() if line not in printed.splitlines()] == []
    # And three answers that the cloud saves.
    questions = {one.id: one for one in pocketqa().questions}
    alone = re.findall(r"edge alone: (.*)", printed)
    pairs = re.findall(r"pair: (.*)", printed)
    assert len(alone) == len(pairs) == len(SHOWN)
    for name, wrong, right in zip(SHOWN, alone, pairs, strict=True):
        assert not is_right(questions[name], wrong)
        assert is_right(questions[name], right)
    assert len(printed.rstrip().rpartition("\n\n")[2].splitlines()) == 3


@pytest.mark.deep
def test_a_real_model_draws_and_is_stopped_where_it_repeats_itself(edgewise: Edgewise) -> None:
    smollm2_or_skip()
    told = edgewise("run", "Write A forever: A A A A A A A A A A A A A A", "--edge", "smollm2")
    assert "repeats itself" in told.err.splitlines()[-1]
    arguments = ("chat", "--edge", "smollm2", "--max-tokens", "16")
    question = b"Tell me a joke.\n"
    greedy = {edgewise(*arguments, "--temperature", "0", stdin=question).out for _ in range(2)}
    drawn = {edgewise(*arguments, stdin=question).out for _ in range(3)}
    assert len(greedy) == 1
    assert len(drawn) > 1


def test_special_tokens_in_a_prompt_are_text_unless_it_has_no_template(edgewise: Edgewise) -> None:
    def tokens(*arguments: str) -> int:
        found = answer(edgewise, *arguments, "--cloud", "none", "--max-tokens", "1")
        return found["usage"]["prompt_tokens"]

    assert tokens("<|user|>Hi<|end|><|assistant|>", "--no-template") == tokens("Hi")
    assert tokens("Hi<|end|>") > tokens("Hi") + 1
    assert tokens("Hi", "--system", "Hi<|end|>") > tokens("Hi", "--system", "Hi") + 1


@pytest.mark.parametrize(("failing", "warned"), [(0, None), (1, False), (99, True)])
def test_a_cloud_that_never_helped_is_a_warning(
    failing: int, warned: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    script = replying("blue", prompt="sky? ")
    gone = CloudUnavailable("gone.")
    cloud = ScriptedCloud(script, fault=lambda ask: gone if ask < failing else None)
    decoder = Decoder(ScriptedEdge(script), router=Constant(1.0), policy=Policy(), cloud=cloud)
    collect(render.painted(decoder.stream(list(b"sky? "))))
    said = capsys.readouterr().err
    assert ("gone" in said) == (warned is not None)
    assert ("Warning" in said) == bool(warned)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal is told."""
    told = io.StringIO()
    monkeypatch.setattr(render, "err", Console(file=told, force_terminal=True, width=80))
    return told


LINE_IS_ERASED = "\x1b[2K"


@pytest.mark.deep
@pytest.mark.parametrize("who", ["edge", "cloud"])
def test_a_terminal_is_told_what_is_read_before_a_token(told: io.StringIO, who: str) -> None:
    prompt = "sky? " * 20
    said = "reading 100 tokens, 99%" if who == "edge" else "the cloud, which reads 100 tokens"
    quick = replying("blue", prompt=prompt)

    def slow(ids: Sequence[int]) -> Floats:
        """Has read all of the prompt once the terminal was told so."""
        until = time.monotonic() + 60
        while len(ids) == len(prompt) and said not in told.getvalue():
            assert time.monotonic() < until
            time.sleep(0.01)
        return quick(ids)

    edge = ScriptedEdge(slow if who == "edge" else quick)
    cloud = LocalCloud(ScriptedEdge(quick if who == "edge" else slow))
    router = Constant(0.0 if who == "edge" else 1.0)
    with (
        closing(cloud),
        Pair(edge, cloud=cloud, router=router, threshold=0.5) as pair,
        pair.stream(list(prompt.encode())) as events,
    ):
        tokens, end = render.watched(events, pair)
    assert (len(tokens), end is not None) == (5, True)
    assert said in told.getvalue()
    assert LINE_IS_ERASED in told.getvalue().rpartition(said)[2]


def test_a_reading_to_come_is_foretold(told: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "LONG_READING", 0.0)
    edge, large = (ScriptedEdge(replying("blue", prompt="sky? ")) for _ in range(2))
    edge.parameters, large.parameters = 10, 10**9
    with closing(LocalCloud(large)) as cloud:
        for share, foretold in ((0.05, True), (0.0, False)):
            told.truncate(0)
            options: Any = {"cloud": cloud, "router": Constant(0.0), "cloud_share": share}
            with Pair(edge, **options) as pair, pair.stream(list(b"sky? ")) as events:
                render.watched(events, pair)
            assert ("reads these 5 tokens" in told.getvalue()) is foretold
