"""Bad input ends in one sentence on stderr, nothing on stdout, and exit code 2."""

import contextlib
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgewise.addresses import bundled
from edgewise.errors import UsageError
from edgewise.providers import PROVIDERS
from edgewise.routers.card import read_card
from edgewise.settings import Settings, load
from tests import models
from tests.cli.conftest import Edgewise, Result, sentence
from tests.doubles.scripted_engine import ScriptedEngine
from tests.installed import require
from tests.programs import python, run

NOWHERE = "http://127.0.0.1:9"
NOBODY = "~nobody-of-this-name/file"
RUN = f"""
--cloud-share=5 | from 0 to 1 (5% is 0.05), not 5
--threshold=0.5 --cloud-share=0.1 | not both
--max-tokens=0 | max-tokens
--temperature=-1 | temperature must be
--stop= | stop string is empty
--system=Brief. --no-template | --system
--system=\udcff | valid UTF-8
--edge=none.gguf | There is no file 'none.gguf'
--edge=BPE.GGUF | did you mean 'bpe.gguf'?
--edge=http://me:secret@127.0.0.1 | EDGEWISE_EDGE_KEY
--edge=. | is a folder; name a file in it
--edge={NOWHERE}\r | is not a plain http://
--edge=bpe.gguf --cloud-tokenizer=other.gguf | 'none'
--cloud=other.gguf --cloud-tokenizer=other.gguf | 'other.gguf'
--cloud={NOWHERE} --cloud-tokenizer=. | There is no tokenizer.json in '.'
--cloud={NOWHERE} --cloud-tokenizer=broken.txt | is not a GGUF file
--cloud=none --cloud-model=large | 'none'
--edge=bpe.gguf --router=made-for-another | made for an edge model
--router=./requantised | another file
--router=coin | There is no router 'coin'
--router=. | no config.json
--router=constant:7 | constant:0.5
--cloud={NOWHERE} | '{NOWHERE}' cannot be reached (connection refused); check
--cloud=http://no.such.invalid | cannot be reached (its name is not found)
--cloud=http://host..invalid | 'http://host..invalid'
--cloud=ftp://127.0.0.1 | 'ftp://127.0.0.1'
--cloud=http://me:secret@127.0.0.1 | EDGEWISE_CLOUD_KEY
--cloud=http://[127.0.0.1 | Invalid
--cloud={"n" * 300} | 'nnn
--price={"n" * 300} --cloud=none | 'nnn
--price={NOBODY} --cloud=none | {NOBODY}
--sent-file={NOBODY} --cloud=none | {NOBODY}
--redact=on,@{NOBODY} --cloud=none | {NOBODY}
--edge={NOBODY} | {NOBODY}
world | unexpected extra argument(s) (world); put the prompt in quotes.
--cloud | --cloud
"""
OTHERS = f"""
bogus | bogus
--bogus | --bogus
demo --questions=0 | --questions must be
eval {NOBODY} | {NOBODY}
models pull {NOBODY} | {NOBODY}
models pull bundled | 'bundled'
models pull small.gguf | 'small.gguf'
run Hello --max-cost=1 | --price
run Hello --price=2,0.5,8 --max-cost=nan | max-cost in the flags
keys list --keys none.json | none.json
keys list --keys text | 'text'
keys add x --keys keys.json --expires 2026-02-30 | --expires
keys add x --keys keys.json --expires 2020-01-01 | expired
keys add x --keys keys.json --expires 9999-12-31 | --expires
keys add x --keys keys.json --ids-per-second -1 | limits
keys add a\x1b[2J --keys keys.json | printable
keys add {"a" * 65} --keys keys.json | 64
keys add laptop --keys keys.json | already
keys add x --keys none/keys.json | none/keys.json
keys revoke phone --keys keys.json | phone
gateway --port 8400 | needs an engine
gateway --engine bundled --host 0.0.0.0 | give --keys FILE
gateway --engine bundled --keys none.json | edgewise keys add
gateway --engine bundled --certificate c.pem | both --certificate
gateway --engine bundled --origin * | origin
gateway --engine bundled --origin app.example | app.example
gateway --engine bundled --page-model bundled | --page
gateway --engine bundled --page --page-model ./none.gguf | ./none.gguf
gateway --engine bundled --connections 100000000 | open files
gateway --engine bundled --host {"x" * 300} --keys k | 'k'
serve --cors-origin foo | 'foo'
serve --certificate c.pem | --certificate
serve --certificate c.pem --private-key k.pem | c.pem
serve --connections 100000000 | --connections
serve --api-key k --host {"x" * 300} | xxx
serve --api-key k --port 8400 --host=\udcff | 8400
serve --keys none.json | none.json
serve --keys {"n" * 300} | 'nnn
serve --keys none.json --api-key k | --api-key
serve --api-key= | --api-key
serve --api-key=\u043a\u043b\u044e\u0447 | --api-key
serve --api-key=\udcff | --api-key
serve --host 0.0.0.0 | --api-key
serve --host 0.0.0.0 --certificate c.pem --private-key k.pem | give --api-key, or --keys FILE
gateway --engine bundled --engine-kind vllm | bundled
gateway --engine ftp://x | 'ftp://x'
gateway --engine bundeld | 'bundled' (--engine)
gateway --engine bundled --engine {NOWHERE} | 'bundled' runs in the gateway
gateway --engine bundled --ctx 1000000 | lower the context (--ctx)
gateway --engine {NOWHERE} --ctx 512 | ctx applies only to a model in the gateway
gateway --engine localhost:9 | The cloud at 'http://localhost:9' cannot be reached
gateway --engine {NOWHERE} --engine-kind vllm | No engine is ready
gateway --engine {NOWHERE} --engine-kind vlm | 'vlm'; did you mean 'vllm'?
gateway --engine bundled --limits memory | --keys
gateway --engine bundled --keys keys.json --limits http://:s3cret@host | http://
gateway --engine bundled --keys keys.json --limits redis://:s3cret@host:port | redis://
gateway --engine bundled --keys keys.json --limits none/limits | none/limits
gateway --engine bundled --keys keys.json --limits keys.json | keys.json
"""
LABORATORY = f"""
eval mmlu | There is no task 'mmlu'
tune ./nope | The file './nope'
eval pocketqa --limit 0 | limit must be 1 or more
eval pocketqa --systems edge,cloud,nobody | nobody
eval pocketqa --systems verify | --systems
eval pocketqa --cloud-share 0 | between 0 and 1
eval pocketqa --cloud none | name one (--cloud)
eval pocketqa --router ./entropy --router entropy | no router './entropy'
eval mine.jsonl --calibration 5 | calibration
train pocketqa --out r --inputs logits | --inputs can be hidden
train pocketqa --out r --hidden -1 | --hidden 0 or more
train pocketqa --out r --epochs 0 | must be 1 or more
train pocketqa --out r --label magic | no label 'magic'
train pocketqa --out r --kind magic | no router 'magic'
train pocketqa --out r --kind entropy | cannot be trained
train pocketqa --out r --stage calibrate | There is no router
router show max-prob | max-prob
router show ./nothing | ./nothing
bench link --cloud none | needs a cloud
bench link --cloud https://127.0.0.1:1 | plain HTTP
bench link --round-trip -1 | --round-trip
bench link --pace missing.gguf | missing.gguf
bench link --loss 0.9 | --loss
bench link --cloud {bundled("cloud")} | is not a URL
bench link nothing | no task
"""


def rows(table: str) -> list[Any]:
    """Arguments, and a word of the sentence that refuses them."""
    found = [line.partition(" | ") for line in table.strip().split("\n")]
    return [pytest.param(given.split(" "), words, id=given) for given, _, words in found]


@pytest.mark.parametrize(("arguments", "words"), rows(RUN))
def test_run_refuses(edgewise: Edgewise, zoo: None, arguments: list[str], words: str) -> None:
    assert words in edgewise.refusal("run", "Hello", *arguments)


@pytest.mark.parametrize(("arguments", "words"), rows(OTHERS))
def test_other_commands_refuse(edgewise: Edgewise, arguments: list[str], words: str) -> None:
    edgewise("keys", "add", "laptop", "--keys", "keys.json")
    keys = edgewise.folder / "keys.json"
    before = keys.read_bytes()
    edgewise.write("text", "hello")
    result = edgewise(*arguments, code=2)
    assert words in sentence(result)
    assert "\x1b" not in result.err
    assert "s3cret" not in result.err
    assert keys.read_bytes() == before


@pytest.mark.deep
@pytest.mark.parametrize(("arguments", "words"), rows(LABORATORY))
def test_the_laboratory_refuses(edgewise: Edgewise, arguments: list[str], words: str) -> None:
    if arguments[0] == "train":
        require("torch")
    asked = ({"prompt": f"Say {i}.", "answer": f"{i}"} for i in range(3))
    edgewise.write_lines("mine.jsonl", *asked)
    assert words in edgewise.refusal(*arguments)


@pytest.fixture
def zoo(edgewise: Edgewise, tmp_path: Path, bpe_path: Path, other_path: Path) -> None:
    """Good and bad models, and a router of the bundled edge model, in the working folder."""
    for path, name in ((bpe_path, "bpe"), (other_path, "other")):
        (tmp_path / f"{name}.gguf").symlink_to(path)
    edgewise.write("broken.txt", "Once upon a time")
    shutil.copytree(bundled("router"), tmp_path / "made-for-another")
    card = read_card(bundled("router"))
    card = msgspec.structs.replace(card, edge_fingerprint="0" * 64, behaviour=())
    (tmp_path / "requantised").mkdir()
    edgewise.write("requantised/config.json", msgspec.json.encode(card))


def test_a_price_list_of_a_folders_file_must_be_a_file(edgewise: Edgewise) -> None:
    for price in ("/dev/zero", "a\\u0000b", ".", "prices.toml"):
        edgewise.configure(f'price = "{price}"')
        assert "neither three numbers nor a file" in edgewise.refusal("run", "Hello")


@pytest.mark.parametrize(
    ("prompt", "stdin", "words"),
    [
        ([""], b"", "prompt is empty"),
        ([" \n"], b"", "prompt is empty"),
        ([], b"", "prompt is empty"),
        ([], b"\n", "prompt is empty"),
        ([], b"caf\xe9", "valid UTF-8"),
        (["caf\udce9"], b"", "valid UTF-8"),
        (["word " * 200, "--ctx", "64"], b"", "context of 64; shorten the prompt"),
        ([], b"a" * ((4 << 20) + 1), "more than 4194304 characters"),
        (["--cloud", "none"], b"a" * (4 << 20), "at least.*the context holds 512; shorten it"),
        (
            ["--cloud", "none", "--no-template"],
            b"a" * (4 << 20),
            "at least.*the context holds 512; shorten it",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_bad_prompt(edgewise: Edgewise, prompt: list[str], stdin: bytes, words: str) -> None:
    assert re.search(words, edgewise.refusal("run", *prompt, stdin=stdin))


def test_a_template_that_refuses_says_what_to_do(edgewise: Edgewise) -> None:
    stubborn = replace(models.byte_level(), template="{{ raise_exception('No!') }}")
    models.write_transformer(edgewise.folder / "stubborn.gguf", stubborn)
    own = ("--edge", "stubborn.gguf", "--max-tokens", "2")
    assert "--no-template" in edgewise.refusal("run", "Hello", *own)
    edgewise("run", "Hello", *own, "--no-template")
    assert "(No!)" in edgewise("chat", *own, stdin=b"Hello\n").err


def test_a_folders_file_runs_no_code_and_is_told_who_may(edgewise: Edgewise) -> None:
    mark = edgewise.folder / "mark"
    edgewise.write("own.py", f"open({str(mark)!r}, 'w').close()\nclass Own: score = 1\n")
    card = msgspec.structs.replace(read_card(bundled("router")), kind="../own.py:Own")
    (edgewise.folder / "folder").mkdir()
    edgewise.write("folder/config.json", msgspec.json.encode(card))
    for router in ("./folder", "own:Own", "./own.py:Own"):
        edgewise.configure(f"router = '{router}'")
        said = edgewise.refusal("run", "Hello")
        assert not mark.exists(), router
    assert re.search(r"edgewise\.toml.*--router", said)
    edgewise.setenv(EDGEWISE_ROUTER="./own.py:Own")
    assert "code" not in edgewise("run", "Hello", code=None).err
    assert mark.exists()


def test_a_folders_file_says_where_text_goes(edgewise: Edgewise) -> None:
    edgewise.configure("cloud = 'http://127.0.0.1:9'")
    told = "edgewise.toml sets the cloud: http://127.0.0.1:9\n"
    assert told in edgewise("run", "Hello", code=2).err
    assert told not in edgewise("run", "Hello", "--cloud", "none").err
    edgewise.configure("cloud = 'gpt-5-mini'")
    assert f"edgewise.toml sets the cloud: {PROVIDERS[0].url}\n" in edgewise("config").err


HERE, ELSEWHERE = "cloud = '{url}'\n", f"{{role}} = '{NOWHERE}'\n{{role}}-key = 'secret-1'\n"
OWN = {"EDGEWISE_CLOUD_KEY": "secret-1"}


@pytest.mark.parametrize("command", [("run", "Hello"), ("chat",), ("doctor",), ("serve",)])
@pytest.mark.parametrize(
    ("of_file", "variables", "flags"),
    [
        # Whoever made the folder may be anybody: the host that a key goes to is not theirs to name.
        (HERE, OWN, ""),
        (f"{HERE}cloud-key = 'theirs'\n", OWN, ""),
        # Nor does the key of their file go to a host that the user named.
        *((ELSEWHERE.format(role=role), {}, f"--{role} {{url}}") for role in ("cloud", "edge")),
        (ELSEWHERE.format(role="cloud"), {"EDGEWISE_CLOUD": "{url}"}, ""),
        (ELSEWHERE.format(role="edge"), {"EDGEWISE_EDGE": "{url}"}, ""),
    ],
)
def test_a_key_goes_to_no_host_that_somebody_else_named(
    edgewise: Edgewise,
    engine: ScriptedEngine,
    command: tuple[str, ...],
    of_file: str,
    variables: dict[str, str],
    flags: str,
) -> None:
    edgewise.configure(of_file.format(url=engine.url))
    edgewise.setenv(**{name: said.format(url=engine.url) for name, said in variables.items()})
    refused = edgewise(*command, *flags.format(url=engine.url).split(), code=2)
    assert "edgewise.toml" in sentence(refused)
    assert "secret-1" not in refused.err
    assert (engine.looks, engine.strays.total()) == (0, 0)


@pytest.mark.parametrize("flag", [True, False])
def test_a_key_goes_where_it_may(edgewise: Edgewise, engine: ScriptedEngine, flag: bool) -> None:
    if flag:
        edgewise.setenv(**OWN)
    else:
        edgewise.configure(f"{HERE.format(url=engine.url)}cloud-key = 'k'")
    asked = edgewise("run", "Hello", *(("--cloud", engine.url) if flag else ()), code=None)
    assert engine.looks + engine.strays.total() > 0, asked.err


class Swapped(type(Path())):
    """A file of one's own that another user replaces after so many looks at it."""

    looks, theirs = 0, Path()

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        found = super().stat(follow_symlinks=follow_symlinks)
        self.looks -= 1
        if self.looks == 0:
            os.replace(self.theirs, self)
        return found


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs another user")
def test_a_file_of_another_user_is_not_read(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch
) -> None:
    for looks in range(1, 6):
        (edgewise.folder / "edgewise.toml").unlink(missing_ok=True)
        edgewise.configure("span = 1")
        theirs = edgewise.write("theirs.toml", "cloud = 'http://evil.example'\n")
        os.chown(theirs, 12345, -1)
        monkeypatch.setattr(Swapped, "looks", looks)
        monkeypatch.setattr(Swapped, "theirs", theirs)
        chosen = Settings()
        with contextlib.suppress(UsageError):
            chosen, _ = load({}, environment={}, folder=Swapped(edgewise.folder))
        assert chosen.cloud is None, looks
    os.chown(edgewise.write("edgewise.toml", "span = 1\n"), 12345, -1)
    assert "belongs to another user" in edgewise.refusal("run", "Hello", "--cloud", "none")


@pytest.mark.parametrize("key", [None, "wrong", "right"])
def test_an_unfit_engine(edgewise: Edgewise, engine: ScriptedEngine, key: str | None) -> None:
    engine.key = "right"
    edgewise.setenv(**({"EDGEWISE_CLOUD_KEY": key} if key else {}))
    asked = ("run", "Hello", "--cloud", engine.url, "--cloud-engine", "llama-server")
    result, other = edgewise(*asked, code=2), r"two models of one family.*\(--cloud-tokenizer\)"
    words = other if key == "right" else "refused the key.*EDGEWISE_CLOUD_KEY"
    assert re.search(words, sentence(result))
    assert "Bearer" not in result.err
    assert key is None or key not in result.err


@pytest.mark.parametrize(
    "command", [["train", "pocketqa", "--out", "router", "--stage", "calibrate"], ["bench", "link"]]
)
def test_no_hint_is_refused(edgewise: Edgewise, engine: ScriptedEngine, command: list[str]) -> None:
    said = edgewise.refusal(*command, "--cloud", engine.url, "--cloud-engine", "llama-server")
    assert "choose two models of one family (--cloud)" in said


def piped(script: str, *arguments: str, folder: Path) -> Result:
    """`edgewise` as a shell runs it, where `script` says "$@"."""
    command = ("sh", "-c", script, "sh", sys.executable, "-m", "edgewise")
    done = run(*command, *arguments, code=None, folder=folder)
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    done = piped('exec "$@" >/dev/full', "run", "Hello", "--json", folder=tmp_path)
    assert done.code in (1, 2)
    assert done.err.splitlines()[-1].startswith("edgewise: ")
    assert "Traceback" not in done.err
    assert "No space left" in done.err


def test_a_reader_that_leaves_early_is_no_failure_to_report(tmp_path: Path) -> None:
    left = '{ "$@"; echo "code $?" >&2; } | true'
    assert piped(left, "run", "Hello", "--json", folder=tmp_path).err == "code 1\n"


@pytest.mark.deep
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_ends_nothing(tmp_path: Path, closed: str) -> None:
    asked = ("run", "Hello", "--max-tokens", "2")
    done = piped(f'exec "$@" {closed}', *asked, folder=tmp_path)
    assert done.code == 0
    assert bool(done.out) == (">&-" not in closed.replace("2>&-", ""))
    assert "Traceback" not in done.err


def test_a_closed_stdin_holds_no_prompt(tmp_path: Path) -> None:
    done = piped('exec "$@" <&-', "run", "--cloud", "none", folder=tmp_path)
    assert "prompt is empty" in sentence(done)


def test_doctor_reports_what_run_refuses(edgewise: Edgewise) -> None:
    result = edgewise("doctor", "--edge", "none.gguf", "--json", code=1)
    failed = [c for c in json.loads(result.out)["checks"] if c["status"] == "fail"]
    assert [check["name"] for check in failed] == ["edge model"]
    assert "none.gguf" in failed[0]["detail"]
    assert failed[0]["fix"].startswith("name a path")
    assert failed[0]["fix"].endswith("(--edge)")


@pytest.mark.parametrize(
    "text", ["[" * 30_000, "[" * 30_000 + "]" * 30_000, "{a=" * 15_000, "#" * (1 << 17)]
)
@pytest.mark.parametrize("command", ["run Hello", "config"])
def test_a_deep_or_large_folders_file(edgewise: Edgewise, command: str, text: str) -> None:
    edgewise.configure(f"edge = {text}")
    assert "edgewise.toml" in edgewise.refusal(*command.split())


@pytest.mark.parametrize("command", ["--version", "doctor"])
def test_an_interrupt_at_any_time_is_no_traceback(tmp_path: Path, command: str) -> None:
    """The first at the first import of ours, the others later and later."""
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from edgewise.cli.main import main\n"
        "sys.argv = ['edgewise', sys.argv[2]]\n"
        "left = int(LATER)\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        global left\n"
        "        left -= name.startswith('edgewise.')\n"
        "        if left == 0:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "main()\n"
    )
    for later in (1, 3, 20):
        code = script.replace("LATER", str(later))
        done = python("-c", code, "-", command, code=None, folder=tmp_path)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in (0, 1, 130)
        assert later != 1 or done.returncode == 130
