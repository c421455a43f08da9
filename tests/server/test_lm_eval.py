"""The LM Evaluation Harness against the server: answers of a pair, numbers of its edge model.

Its packages need not be those of Edgewise, so it may live in a place of its own.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.programs import run

HERE = sys.executable if importlib.util.find_spec("lm_eval") else None
PYTHON = os.environ.get("LMEVAL_PYTHON", HERE)

ASKED = "<|user|>Tell me about {}.<|end|><|assistant|>"
WORDS = ("copper", "iron", "a rose")
LINES = [
    {
        "text": ASKED.format(word),
        "choices": ["Copper is a metal.", "A rose is a flower.", "nothing"],
        "right": number % 2,
    }
    for number, word in enumerate(WORDS)
]
TASKS = {
    "chosen": (
        'output_type: multiple_choice\ndoc_to_choice: "{{choices}}"\ndoc_to_target: right\n'
        "metric_list: [{metric: acc}]\n"
    ),
    "written": (
        "output_type: generate_until\ndoc_to_target: '{{choices[right]}}'\n"
        'generation_kwargs: {until: ["\\n", " is"], max_gen_toks: 24}\n'
        "metric_list: [{metric: exact_match}]\n"
    ),
    "rolled": (
        "output_type: loglikelihood_rolling\ndoc_to_target: '{{text}}'\n"
        "metric_list: [{metric: byte_perplexity}]\n"
    ),
}


class Ran(NamedTuple):
    """What both runs said: by run, by task, question by question; and their logs."""

    said: dict[str, dict[str, list[Any]]]
    log: str


def write_tasks(folder: Path) -> None:
    """The tasks and their data."""
    data = folder / "lines.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    for name, rest in TASKS.items():
        shown = "" if name == "rolled" else "{{text}}"
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ntest_split: test\n"
            f"dataset_kwargs: {{data_files: {{test: {str(data)!r}}}}}\n"
            f"doc_to_text: {shown!r}\n"
            # Else a blank stands between question and answer.
            f'target_delimiter: ""\n{rest}'
        )


def runs(url: str) -> dict[str, list[str]]:
    """Arguments by name."""
    return {
        "text": [
            *("--model", "local-completions", "--tasks", "chosen,written,rolled"),
            *("--model_args", f"model=edgewise:edge,base_url={url}/v1/completions"),
        ],
        "chat": [
            *("--model", "local-chat-completions", "--tasks", "written", "--apply_chat_template"),
            *("--model_args", f"model=edgewise:t0.3,base_url={url}/v1/chat/completions"),
        ],
    }


@pytest.fixture(scope="module")
def ran(url: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Both, with no host to ask but the server."""
    if PYTHON is None:
        pytest.skip("needs LMEVAL_PYTHON, an interpreter with lm_eval; see make test-lmeval")
    folder = tmp_path_factory.mktemp("lm_eval")
    write_tasks(folder)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "NO_PROXY": "*"}
    log = ""
    for name, arguments in runs(url).items():
        out = ("--include_path", str(folder), "--output_path", str(folder / name), "--log_samples")
        here = {**offline, "HF_HOME": str(folder / "cache")}
        log += run(PYTHON, "-m", "lm_eval", "run", *arguments, *out, folder=folder, **here).stderr
    return Ran({name: samples(folder / name) for name in runs(url)}, log)


def samples(folder: Path) -> dict[str, list[Any]]:
    """What a run wrote of each task."""
    found: dict[str, list[Any]] = {}
    for file in folder.rglob("samples_*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        name = file.name.removeprefix("samples_").split("_")[0]
        found[name] = [line["resps"] for line in sorted(lines, key=lambda line: line["doc_id"])]
    return found


def numbers(found: list[Any]) -> list[float]:
    """The log-likelihoods, in whatever lists they come."""
    if not isinstance(found, list):
        return [float(found)] if not isinstance(found, str) or "." in found else []
    return [number for one in found for number in numbers(one)]


def test_texts_are_written_and_scored(ran: Ran) -> None:
    found = ran.said["text"]
    assert set(found) == set(TASKS), ran.log
    assert all(one[0][0] for one in found["written"])
    assert len(numbers(found["chosen"])) == 3 * len(WORDS)
    assert len(numbers(found["rolled"])) == len(WORDS)
    assert all(number < 0 for name in ("chosen", "rolled") for number in numbers(found[name]))


def test_chats_are_answered_by_the_pair(ran: Ran) -> None:
    assert all(one[0][0] for one in ran.said["chat"]["written"]), ran.log
