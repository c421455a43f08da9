"""The LM Evaluation Harness against the server: answers of a pair, numbers of its edge model.

Its packages need not be those of Edgewise, so it may live in a place of its own.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

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


RUNS = {
    "text": (
        *("--model", "local-completions", "--tasks", "chosen,written,rolled"),
        *("--model_args", "model=edgewise:edge,base_url={}/v1/completions"),
    ),
    "chat": (
        *("--model", "local-chat-completions", "--tasks", "written", "--apply_chat_template"),
        *("--model_args", "model=edgewise:t0.3,base_url={}/v1/chat/completions"),
    ),
}


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


def samples(folder: Path) -> dict[str, list[Any]]:
    """What a run wrote of each task, question by question."""
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


@pytest.mark.skipif(
    PYTHON is None, reason="needs LMEVAL_PYTHON, with lm_eval; see make test-lmeval"
)
@pytest.mark.parametrize("name", RUNS)
def test_texts_are_written_and_scored_with_no_host_but_the_server(
    url: str, tmp_path: Path, name: str
) -> None:
    """Questions by the edge model; chats by the pair."""
    write_tasks(tmp_path)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "NO_PROXY": "*"}
    asked = [word.format(url) for word in RUNS[name]]
    asked += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
    here = {**offline, "HF_HOME": str(tmp_path / "cache")}
    told = run(
        str(PYTHON), "-m", "lm_eval", "run", *asked, "--log_samples", folder=tmp_path, **here
    )
    found = samples(tmp_path / "out")
    assert set(found) == ({"written"} if name == "chat" else set(TASKS)), told.stderr
    assert all(one[0][0] for one in found["written"]), told.stderr
    if name == "text":
        assert len(numbers(found["chosen"])) == 3 * len(WORDS)
        assert len(numbers(found["rolled"])) == len(WORDS)
        assert all(one < 0 for task in ("chosen", "rolled") for one in numbers(found[task]))
