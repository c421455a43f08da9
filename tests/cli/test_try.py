"""`edgewise try`: prompts answered side by side, on the bundled pair and a scripted API."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from edgewise.addresses import bundled
from edgewise_lab.evaluation.tasks.everyday import Everyday
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.cli.conftest import Edgewise
from tests.doubles.scripted_text import ScriptedText

pytestmark = pytest.mark.deep

HELD_OUT = pocketqa().questions
QUESTIONS = [
    {"prompt": one.prompt, "answer": one.answer, "check": one.check, "choices": one.choices}
    for one in HELD_OUT[:24]
]
HOSTILE = "</style></p><script>alert('&amp;')</script><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """What a browser would make of a page: its tags with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def api() -> Iterator[ScriptedText]:
    """An API that takes text."""
    with closing(ScriptedText("chat", script=lambda messages, answer: "It is five.")) as server:
        yield server


def models(api: ScriptedText) -> tuple[str, ...]:
    cloud = ("--cloud", api.url, "--cloud-engine", "chat")
    return ("--edge", str(bundled("edge")), *cloud, "--max-tokens", "8")


def test_every_system_answers_every_prompt(edgewise: Edgewise) -> None:
    edgewise.write_lines("mine.jsonl", *QUESTIONS, "What is copper?")
    told = edgewise.json("try", "mine.jsonl")
    asked = [one["question"]["prompt"] for one in told["prompts"]]
    assert asked[-2:] == [QUESTIONS[-1]["prompt"], "What is copper?"]
    assert not told["prompts"][-1]["checked"]
    edge, pair, cloud = told["systems"]
    assert [one["system"] for one in told["systems"]] == ["edge", "pair", "cloud"]
    assert {(one["answers"], one["checked"]) for one in told["systems"]} == {(25, 24)}
    assert edge["right"] < pair["right"] <= cloud["right"] + 1
    assert (edge["cloud_share"], cloud["cloud_share"]) == (0, 1)
    assert 0 < pair["cloud_share"] < 0.5
    for system in told["systems"]:
        answers = [one["answers"][system["system"]] for one in told["prompts"]]
        assert system["tokens"] == sum(one["output_tokens"] for one in answers)
        assert system["seconds"] == pytest.approx(sum(one["seconds"] for one in answers) / 25)
        assert system["right"] == sum(one["right"] for one in answers[:-1])
    for one in told["prompts"]:
        pairs = one["answers"]["pair"]
        by_cloud = [token for token in pairs["tokens"] if token["source"] == "cloud"]
        assert len(by_cloud) == pairs["cloud_tokens"]


@pytest.mark.parametrize("flags", [(), ("--router", "max-prob", "--cloud-share", "0.3")])
def test_the_pair_answers_as_run_does(edgewise: Edgewise, flags: tuple[str, ...]) -> None:
    edgewise.write("mine.txt", f"{HELD_OUT[1].prompt}\n")
    (one,) = edgewise.json("try", "mine.txt", *flags)["prompts"]
    run = json.loads(edgewise("run", HELD_OUT[1].prompt, "--json", *flags).out)

    def ids(answer: Any) -> list[tuple[int, str]]:
        return [(token["id"], token["source"]) for token in answer["tokens"]]

    assert ids(one["answers"]["pair"]) == ids(run)
    alone = json.loads(edgewise("run", HELD_OUT[1].prompt, "--json", "--cloud", "none").out)
    assert ids(one["answers"]["edge"]) == ids(alone)


def test_a_table_and_a_page(edgewise: Edgewise) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
    chat["messages"].append({"role": "user", "content": "What is 2 + 3?"})
    lines = [json.dumps({**chat, "answer": 5, "check": "number"}), json.dumps(QUESTIONS[0])]
    asked = "\n".join([*lines, "", "not asked"]).encode()
    done = edgewise("try", "-", "--limit", "2", "--html", "page.html", stdin=asked)
    assert "not asked" not in done.out
    for system in ("edge", "pair", "cloud"):
        assert re.search(rf"^{system} +[012] of 2 ", done.out, re.MULTILINE)
    page = (edgewise.folder / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    shown = Tags(page)
    assert "assistant: Ho" in shown.text
    assert "2 of 2" in shown.text or "1 of 2" in shown.text
    assert ("meta", {"http-equiv": "Content-Security-Policy"}.keys()) in [
        (tag, attributes.keys() - {"content"}) for tag, attributes in shown.tags
    ]
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_page_that_cannot_be_written_leaves_the_table(edgewise: Edgewise) -> None:
    edgewise.write("mine.txt", "one\n")
    asked = ("try", "mine.txt", "--max-tokens", "2", "--html", "/dev/full")
    done = edgewise(*asked, code=2)
    assert "/dev/full" in done.err
    assert "prompts: 1" in done.out
    assert '"systems"' in edgewise(*asked, "--json", code=2).out


def test_a_hostile_answer_stays_text(edgewise: Edgewise, api: ScriptedText) -> None:
    api.script = lambda messages, answer: f"\x1b]0;x\x07{HOSTILE}"
    edgewise.write_lines("mine.jsonl", {"prompt": HOSTILE, "answer": HOSTILE})
    many = ("--max-tokens", "64", "--cloud-share", "0.9", "--router", "entropy")
    done = edgewise("try", "mine.jsonl", "--html", "page.html", *models(api), *many)
    assert "\x1b" not in done.out
    shown = Tags((edgewise.folder / "page.html").read_text())
    assert {tag for tag, _ in shown.tags}.isdisjoint({"script", "img", "link", "iframe", "a"})
    assert [tag for tag, _ in shown.tags].count("style") == 1
    names = {name for _, attributes in shown.tags for name in attributes}
    assert names <= {"class", "dir", "charset", "http-equiv", "content", "name"}
    # The prompt, what was expected, and the cloud's answer.
    assert shown.text.count(HOSTILE) == 3


def test_a_cloud_that_dies_leaves_what_was_answered(edgewise: Edgewise, api: ScriptedText) -> None:
    def dies(number: int) -> Any:
        return "reset" if "second" in api.asked[number].messages[-1].content else None

    api.fault = dies
    edgewise.write("mine.txt", "the first\nthe second\nthe third\n")
    done = edgewise("try", "mine.txt", "--html", "page.html", *models(api), code=2)
    assert "Question '2'" in done.err.splitlines()[-1]
    assert "prompts: 1" in done.out
    assert "It is five." in done.out
    shown = Tags((edgewise.folder / "page.html").read_text()).text
    assert "the second" in shown
    assert "the third" not in shown
    told = edgewise("try", "mine.txt", "--json", *models(api), code=2)
    assert [len(one["answers"]) for one in json.loads(told.out)["prompts"]] == [3, 2]


def test_interrupted_it_shows_the_table_so_far(edgewise: Edgewise, api: ScriptedText) -> None:
    def interrupts(number: int) -> Any:
        if "second" not in api.asked[number].messages[-1].content:
            return None
        os.kill(os.getpid(), signal.SIGINT)
        return "hang"

    api.fault = interrupts
    edgewise.write("mine.txt", "the first\nthe second\n")
    done = edgewise("try", "mine.txt", *models(api), code=130)
    assert "prompts: 1" in done.out


def test_without_prompts_twenty_everyday_ones_are_tried(edgewise: Edgewise) -> None:
    told = edgewise.json("try", "--max-tokens", "2")
    asked = [one["question"] for one in told["prompts"]]
    every = [one.id for one in Everyday().open("test").questions if one.check != "code"]
    assert [one["id"] for one in asked] == every[:20]


def test_it_is_said_that_code_in_replies_is_run(edgewise: Edgewise) -> None:
    asked = {"prompt": "Say one.", "answer": "assert one() == 1", "check": "code"}
    edgewise.write_lines("mine.jsonl", asked)
    edgewise.write_lines("plain.jsonl", QUESTIONS[0])
    assert "is run on this machine" in edgewise("try", "mine.jsonl", "--max-tokens", "2").err
    assert "is run" not in edgewise("try", "plain.jsonl", "--max-tokens", "2").err


def test_an_answer_that_a_person_has_to_read_is_neither(edgewise: Edgewise) -> None:
    rubric = "It is polite."
    read = {"prompt": "Write to Ana.", "answer": rubric, "check": "read"}
    edgewise.write_lines("mine.jsonl", read, QUESTIONS[0])
    done = edgewise("try", "mine.jsonl", "--html", "page.html")
    assert re.search(r"^edge +[01] of 1 ", done.out, re.MULTILINE)
    assert rubric in done.out
    assert rubric in Tags((edgewise.folder / "page.html").read_text()).text


def test_a_price_is_shown(edgewise: Edgewise) -> None:
    edgewise.write_lines("mine.jsonl", *QUESTIONS[:4])
    priced = ("try", "mine.jsonl", "--price", "2,0.5,8", "--cloud-share", "0.3")
    edge, pair, cloud = (one["paid"] for one in edgewise.json(*priced)["systems"])
    assert edge == 0 < pair <= cloud
    assert "paid" in edgewise(*priced).out
    assert "paid" not in edgewise(*priced[:2]).out


def test_where_prompts_go_is_said_before_they_do(edgewise: Edgewise) -> None:
    edgewise.write("mine.txt", "one\ntwo\nthree\n")
    far = ("--edge", str(bundled("edge")), "--cloud", "https://far.example:8080")
    done = edgewise("try", "mine.txt", "--limit", "2", *far, code=2)
    said, problem = done.err.splitlines()
    assert "https://far.example:8080: 2, " in said
    assert "--limit" in said
    assert "far.example" in problem


@pytest.mark.parametrize(
    ("clouds", "said"),
    [
        (["gpt-5-mini"], "https://api.openai.com/v1: 1, each twice,"),
        (
            ["https://a.example", "https://b.example"],
            "https://b.example: 1, each twice to https://b",
        ),
        (["https://a.example", "bundled"], "https://a.example: 1; --limit"),
    ],
)
def test_which_clouds_are_asked_twice(edgewise: Edgewise, clouds: list[str], said: str) -> None:
    """The cloud alone is the last one; a hosted model's name stands for its provider's host."""
    edgewise.write("mine.txt", "one\n")
    far = [part for one in clouds for part in ("--cloud", one)]
    assert said in edgewise("try", "mine.txt", "--cloud-hosts", "no.example", *far, code=2).err


@pytest.mark.parametrize(
    ("content", "flags", "word"),
    [
        (None, "", "mine.txt"),
        (b"", "", "no questions"),
        (b"\n \n", "", "no questions"),
        (b"caf\xe9\n", "", "UTF-8"),
        (b'good\n{"prompt": 5}\n', "", "Line 2"),
        (b'{"prompt": "a"\n', "", "Line 1"),
        (b'{"prompt": "a", "answer": "b", "check": "magic"}\n', "", "magic"),
        (b'{"prompt": "a", "check": "exact"}\n', "", "check"),
        (b'{"messages": []}\n', "", "Line 1"),
        (b"word " * 2000, "", "Question '1'"),
        (b"good\n", "--html no/page.html", "no/page.html"),
        (b"good\n", "--html .", "folder"),
        (b"good\n", "--cloud none", "--cloud"),
        (b"good\n", "--limit 0", "--limit"),
    ],
)
def test_bad_questions(edgewise: Edgewise, content: bytes | None, flags: str, word: str) -> None:
    if content is not None:
        edgewise.write("mine.txt", content)
    assert word in edgewise.refusal("try", "mine.txt", *flags.split())
