"""The commands' good paths, on the bundled pair."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgewise.addresses import bundled
from edgewise.cli.render import printable
from edgewise.testing.link import Link, Quality
from edgewise_lab.evaluation.tasks.grading import is_right, is_strictly_right
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.cli.conftest import Run
from tests.llama_server_process import llama_server

QUESTION = pocketqa().questions[0].prompt


def output(done: "subprocess.CompletedProcess[str]") -> dict[str, object]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_run_json_has_what_it_promises(cli: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    told = output(cli("run", QUESTION, "--json", "--trace", str(trace), "--threshold", "0.8"))
    tokens = told["tokens"]
    assert isinstance(tokens, list)
    assert {*("index", "id", "text", "source", "score", "logprob", "seconds", "reason")} <= tokens[
        0
    ].keys()
    assert told["finish_reason"] == "stop"
    assert "".join(token["text"] for token in tokens) == told["text"]
    usage = told["usage"]
    assert isinstance(usage, dict)
    assert usage["edge_tokens"] + usage["cloud_tokens"] == len(tokens)
    assert usage["cloud_tokens"] == sum(token["source"] == "cloud" for token in tokens)
    assert {"prompt_tokens", "cloud_share", "cloud_calls"} <= usage.keys()
    assert told["timing"].keys() >= {"ttft", "total"}
    events = [event["args"] for event in json.loads(trace.read_text())]
    assert [event for event in events if event.get("type") == "token"] == tokens


def test_plain_output_is_plain(cli: Run) -> None:
    done = cli("run", QUESTION, "--threshold", "0.5")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert (
        done.stdout.strip() == output(cli("run", QUESTION, "--json", "--threshold", "0.5"))["text"]
    )
    assert "cloud tokens" in done.stderr


def test_a_prompt_may_come_from_stdin(cli: Run) -> None:
    assert cli("run", stdin=QUESTION).stdout == cli("run", QUESTION).stdout


def test_a_document_on_stdin_joins_the_prompt(cli: Run) -> None:
    whole = cli("run", f"{QUESTION}\n\nin short\n").stdout
    assert cli("run", QUESTION, stdin="in short\n").stdout == whole
    assert whole != cli("run", QUESTION).stdout
    assert cli("run", "-", stdin=QUESTION).stdout == cli("run", QUESTION, stdin=" \n").stdout


def test_an_endless_stdin_is_told_of(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "edgewise", "run", QUESTION],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "reading stdin until it ends" in process.stderr.readline()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.strip()
    assert "cloud tokens" in err


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
    with llama_server(bundled("cloud")) as engine:
        link = Link("127.0.0.1", int(engine.rpartition(":")[2]), Quality(round_trip=0.3))
        asks = ("--cloud", link.url, "--router", "constant:1", "--threshold", "0.5")
        command = [sys.executable, "-m", "edgewise", "run", QUESTION, *asks, "--speculate", "0"]
        try:
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=tmp_path,
            ) as process:
                assert process.stdout is not None
                assert process.stdout.read(1)
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=60)
        finally:
            link.close()
    assert process.returncode == 130
    assert re.search(rb"interrupted after \d+ tokens, \d+ by the cloud", err), err


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_says_what_holds_without_a_flag(cli: Run, flag: str) -> None:
    told = " ".join(cli("run", flag).stdout.split())
    assert "Default: bundled." in told
    assert "Default: 16." in told


@pytest.mark.parametrize("cap", [0, 1, 3])
@pytest.mark.parametrize("ahead", [(), ("--speculate", "0")])
def test_the_cap_is_a_promise(cli: Run, cap: int, ahead: tuple[str, ...]) -> None:
    told = output(
        cli("run", QUESTION, "--json", "--threshold", "0", "--max-cloud-tokens", str(cap), *ahead)
    )
    usage: Any = told["usage"]
    spent = usage["cloud_tokens"] + usage["wasted_tokens"]
    assert spent == cap if ahead else spent <= cap


def test_a_seed_repeats_an_answer(cli: Run) -> None:
    def text(seed: int) -> object:
        arguments = ("--json", "--temperature", "1.5", "--cloud", "none", "--seed", str(seed))
        return output(cli("run", QUESTION, *arguments))["text"]

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_flags_beat_the_environment_which_beats_the_file(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "edgewise.toml").write_text('max-tokens = 3\ncloud = "none"\n')

    def count(*arguments: str, **variables: str) -> int:
        tokens = output(cli("run", QUESTION, "--json", *arguments, **variables))["tokens"]
        assert isinstance(tokens, list)
        return len(tokens)

    assert count() == 3
    assert count(EDGEWISE_MAX_TOKENS="4") == 4
    assert count("--max-tokens", "5", EDGEWISE_MAX_TOKENS="4") == 5


def test_a_stop_string_ends_the_answer(cli: Run) -> None:
    told = output(cli("run", QUESTION, "--json", "--stop", "the"))
    assert "the" not in str(told["text"])
    assert told["finish_reason"] == "stop"


@pytest.mark.deep
def test_run_against_a_real_llama_server(cli: Run) -> None:
    local = output(cli("run", QUESTION, "--json", "--threshold", "0"))
    with llama_server(bundled("cloud"), key="sk-right") as url:
        arguments = ("run", QUESTION, "--json", "--threshold", "0", "--cloud", url)
        remote = output(cli(*arguments, EDGEWISE_CLOUD_KEY="sk-right"))
        doctor = output(cli("doctor", "--json", "--cloud", url, EDGEWISE_CLOUD_KEY="sk-right"))
        wrong = cli(*arguments, EDGEWISE_CLOUD_KEY="sk-wrong")
    assert remote["text"] == local["text"]
    assert {t["source"] for t in remote["tokens"]} == {"cloud"}  # type: ignore[attr-defined]
    checks = {check["name"]: check for check in doctor["checks"]}  # type: ignore[attr-defined]
    assert checks["vocabulary"]["status"] == checks["consult"]["status"] == "ok"
    assert checks["what leaves the device"]["status"] == "warn"
    assert wrong.returncode == 2


def test_doctor_on_the_bundled_pair(cli: Run) -> None:
    told = output(cli("doctor", "--json"))
    checks = told["checks"]
    assert isinstance(checks, list)
    assert {"name", "status", "detail", "fix"} <= checks[0].keys()
    assert {check["status"] for check in checks} == {"ok"}


def test_doctor_says_what_to_do_and_exits_with_1(cli: Run) -> None:
    done = cli("doctor", "--json", "--edge", "gone.gguf")
    assert done.returncode == 1
    failed = [check for check in json.loads(done.stdout)["checks"] if check["status"] == "fail"]
    assert failed
    assert failed[0]["fix"]


@pytest.mark.deep
def test_demo_compares_the_three(cli: Run) -> None:
    told = output(cli("demo", "--json", "--questions", "6"))
    assert told["questions"] == 6
    assert told["accuracy"].keys() == {"edge", "pair", "cloud"}  # type: ignore[attr-defined]
    assert told["families"].keys() == {*pocketqa().families}  # type: ignore[attr-defined]
    assert told["strict"]["accuracy"].keys() == {"edge", "pair", "cloud"}  # type: ignore[index]
    assert 0 <= float(str(told["cloud_share"])) <= 1


def test_demo_shows_answers_and_a_table(cli: Run) -> None:
    families = pocketqa().families
    done = cli("demo", "--questions", str(len(families)), COLUMNS="80")
    assert done.returncode == 0
    readings = ("strictly", "by the lenient reading,", "by the strict one")
    costs = ("computed", "cached", "written", "of its work when it writes alone")
    for said in (*families, "recovered", "95% interval", *readings, *costs):
        assert said in done.stdout
    assert max(map(len, done.stdout.partition("held-out questions")[2].splitlines())) <= 80


@pytest.mark.deep
def test_demo_calls_right_only_what_is_right_by_both_readings(cli: Run) -> None:
    task = pocketqa()
    shown = task.questions[: len(task.families)]
    done = cli("demo", "--questions", "1")
    completions = re.findall(r"^((?:right|wrong).*); \d+ edge", done.stdout, re.MULTILINE)
    assert len(completions) == len(shown)
    for question, completion in zip(shown, completions, strict=True):
        said = done.stdout.partition(question.prompt)[2].splitlines()[1]
        right, strict = is_right(question, said), is_strictly_right(question, said)
        assert (completion == "right") == (right and strict)
        assert (completion == "wrong") == (not right and not strict)
        if right != strict:
            assert f"wrong by the {'lenient' if strict else 'strict'} one" in completion


def test_bench_edge_prints_a_ratio(cli: Run) -> None:
    told = output(cli("bench", "edge", "--json", "--context", "16", "--tokens", "8"))
    assert {"native_tokens_per_second", "edgewise_tokens_per_second", "ratio"} <= told.keys()


@pytest.mark.parametrize(
    "command", [[], ["run"], ["demo"], ["doctor"], ["eval"], ["bench"], ["bench", "edge"]]
)
def test_help(cli: Run, command: list[str]) -> None:
    done = cli(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_version(cli: Run) -> None:
    assert cli("--version").stdout.startswith("edgewise 0.")


def test_control_characters_never_reach_the_terminal() -> None:
    assert printable("a\x1b[31m\x07b\n\tc\x9bd") == "a[31mb\n\tcd"


def test_the_shell_is_told_what_completes_a_command(cli: Run) -> None:
    variables = {
        "_EDGEWISE_COMPLETE": "complete_bash",
        "COMP_WORDS": "edgewise do",
        "COMP_CWORD": "1",
    }
    assert cli(**variables).stdout.split() == ["doctor"]
