"""The LM Evaluation Harness, through the URL and by the class: the same answers and numbers.

Its packages need not be those of Edgewise, so it may live in a place of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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
    """What all runs said: by run, by task, question by question; exit codes; what was told."""

    said: dict[str, dict[str, list[Any]]]
    codes: dict[str, int]
    told: str


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
    """Command lines by name."""
    pair, whole = "edge=bundled,cloud=bundled,threshold=0.3", "chosen,written,rolled"
    listed = {
        "url": (
            *("lm_eval.__main__", "local-completions", whole),
            f"model=edgewise:edge,base_url={url}/v1/completions",
        ),
        "chat": (
            *("lm_eval.__main__", "local-chat-completions", "written"),
            f"model=edgewise:t0.3,base_url={url}/v1/chat/completions",
        ),
        "class": ("edgewise_lab.lm_eval", "edgewise", whole, "edge=bundled,cloud=none"),
        "pair": ("edgewise_lab.lm_eval", "edgewise", "chosen,written", f"{pair},logprobs=cloud"),
        "edge": ("edgewise_lab.lm_eval", "edgewise", "chosen", f"{pair},logprobs=edge"),
        "refused": ("edgewise_lab.lm_eval", "edgewise", "chosen", pair),
    }
    return {
        name: [module, "--model", model, "--tasks", tasks, "--model_args", arguments]
        + (["--apply_chat_template"] if name == "chat" else [])
        for name, (module, model, tasks, arguments) in listed.items()
    }


@pytest.fixture(scope="module")
def ran(url: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All of them, with no host to ask but the server."""
    if PYTHON is None:
        pytest.skip("needs LMEVAL_PYTHON, an interpreter with lm_eval; see make test-lmeval")
    folder = tmp_path_factory.mktemp("lm_eval")
    write_tasks(folder)
    command = [PYTHON, str(Path(__file__).with_name("lm_eval_runs.py"))]
    asked = runs(url)
    for name, arguments in asked.items():
        out = ("--include_path", str(folder), "--output_path", str(folder / name), "--log_samples")
        command += ["--"] * (len(command) > 2) + [*arguments, *out]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "NO_PROXY": "*"}
    place = {"HF_HOME": str(folder / "cache")}
    done = subprocess.run(
        command,
        env=os.environ | offline | place,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    codes = [int(code) for code in done.stdout.splitlines()[-1].split()]
    return Ran(
        {name: samples(folder / name) for name in asked},
        dict(zip(asked, codes, strict=True)),
        done.stderr,
    )


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


def test_url_and_class_say_the_same(ran: Ran) -> None:
    by_url, by_class = ran.said["url"], ran.said["class"]
    assert (ran.codes["url"], ran.codes["class"]) == (0, 0), ran.told
    assert set(by_url) == set(by_class) == set(TASKS)
    assert by_url["written"] == by_class["written"]
    assert all(one[0][0] for one in by_class["written"])
    for name in ("chosen", "rolled"):
        assert numbers(by_class[name])
        assert numbers(by_url[name]) == pytest.approx(numbers(by_class[name]), abs=0.05)


def test_chats_through_the_url(ran: Ran) -> None:
    assert ran.codes["chat"] == 0, ran.told
    assert all(one[0][0] for one in ran.said["chat"]["written"])


def test_a_pair_answers_and_scores_as_told(ran: Ran) -> None:
    assert ran.codes["pair"] == 0, ran.told
    found = ran.said["pair"]
    assert len(found["written"]) == len(numbers(found["chosen"])) / 3 == len(WORDS)
    assert ran.said["edge"]["chosen"] == ran.said["class"]["chosen"]
    assert ran.codes["refused"] == 2
    assert "logprobs=edge" in ran.told
    assert "Traceback" not in ran.told
