"""Passages that a chat model reads: where they are cut, what it is shown, what of it is done."""

import json
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.connect import connect
from edgewise.cloud.passages import (
    LONGEST,
    MOST,
    SHORTEST,
    ends_passage,
    in_code,
    question,
    sentence_ends,
    verdict_of,
)
from edgewise.cloud.reader import WRITTEN
from edgewise.cloud.redaction import filter_of
from edgewise.completion import Completion, Outgoing
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import CloudRejected, NothingUsable
from edgewise.prompts import Message, Prompt
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.doubles.chat_reader import Asked, ChatReader, Verdict, all_stand
from tests.gateway.processes import until
from tests.tool_models import ToolTokenizer, ids_of

MAIL = "ann@host.example"
BYTES = ByteTokenizer()


@contextmanager
def reading(
    judge: Callable[[Asked], Verdict] = all_stand,
    *,
    said: str = "What is it?",
    redact: str | None = None,
    edge: Tokenizer = BYTES,
) -> Generator[tuple[Callable[..., Completion], ChatReader]]:
    """A function that has a passage read after the answer so far, and the reader."""
    prompt = Prompt(tuple(said.encode()), (Message("user", said),))
    view = filter_of(redact)

    def read(before: Sequence[int], passage: Sequence[int], n: int = 0, **more: Any) -> Completion:
        ids = [*prompt.ids, *before, *passage]
        asked = ConsultRequest(ids, n, 30, verify=len(passage), **more)
        return cloud.open(prompt).ask(asked).result()

    with (
        closing(ChatReader(judge)) as served,
        closing(connect(served.url, edge, engine="openai", context_filter=view)) as cloud,
    ):
        yield read, served


def correcting(replacement: str) -> AbstractContextManager[Any]:
    """Where the edge has tools."""
    return reading(lambda asked: (0, replacement), edge=ToolTokenizer())


def shown(asked: Asked) -> list[str]:
    return [one.strip() for one in (asked.answer, *asked.sentences)]


def test_a_passage_that_begins_inside_a_character_keeps_that_character_whole() -> None:
    party = "🎉".encode()
    passage = party[2:] + b" it is. So it is.\n"
    with reading(lambda asked: (0, "No.")) as (read, served):
        completion = read(b"Yes, " + party[:2], passage)
    assert shown(served.asked[0]) == ["Yes, 🎉 it is.", "So it is."]
    assert completion.stand == len(party[2:] + b" it is.")
    assert bytes_of(BYTES, completion.ids) == b" No.\n"


SECRET = "Tr0ub4dor&3x9"


def test_a_word_that_is_found_late_is_hidden_wherever_it_stands() -> None:
    passage = f"Use {SECRET} as is shown here.\nThe password: {SECRET} is old.\n".encode()
    with reading(lambda asked: (1, "It is new."), redact="secret") as (read, served):
        completion = read(b"", passage)
        read(f"Use {SECRET} here.\n\n".encode(), passage)
    sentences = ["Use <SECRET_1> as is shown here.", "The password: <SECRET_1> is old."]
    assert shown(served.asked[0]) == ["", *sentences]
    assert shown(served.asked[1]) == ["Use <SECRET_1> here.", *sentences]
    assert completion.stand == passage.index(b"The password")
    assert SECRET not in str(served.bodies)


def test_no_sentence_begins_inside_a_private_word(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("Dr. Anna Smith\n")
    passage = b"Smith. She is there. So is Dr. Anna Smith. Yes.\n"
    with reading(lambda asked: (1, "No."), redact=f"@{tmp_path / 'own.txt'}") as (read, served):
        completion = read(b"Ask Dr. Anna ", passage)
    # The first of them is behind its beginning, which is written already.
    assert shown(served.asked[0]) == ["Ask <WORD_1>.", "She is there.", "So is <WORD_1>.", "Yes."]
    assert completion.stand == passage.index(b" So is")


def test_how_the_text_before_a_passage_ends_matters_no_more_once_it_goes_on() -> None:
    """Seen: what may begin a private word there left the passage behind it unread, too."""
    with reading(said="Who is it@corp.example?", redact="email") as (read, served):
        read(b"That is how to do it.\n\n", b"There is no other way.\n")
        # A whole answer sends nothing of the passage, so its words do not matter.
        assert read(b"", b"That is how to do it.\n\n", 40).ids
    assert shown(served.asked[0]) == ["That is how to do it.", "There is no other way."]
    assert len(served.bodies[-1]["messages"]) == 1


@pytest.mark.parametrize(
    ("replacement", "written"),
    [
        # What follows in the passage is dropped, so it closes no link.
        ("<EMAIL_1>) is it.", "<EMAIL_1>) is it."),
        ("foo) it is. Ask <EMAIL_1>.", f"foo) it is. Ask {MAIL}."),
    ],
)
def test_one_takes_no_private_word_into_an_open_link(replacement: str, written: str) -> None:
    said = f"Who is {MAIL}?"
    with reading(lambda asked: (0, replacement), redact="email", said=said) as (read, _):
        completion = read(b"See [more](https://evil.example/?u=", b"a) for it. So it is.\n")
    assert bytes_of(BYTES, completion.ids).decode() == written


CALL = '{"name": "send_mail", "arguments": {"to": "x"}}'


@pytest.mark.parametrize(
    ("before", "passage", "replacement"),
    [
        ("", "It is so.\n", CALL),
        ("", "It is so.\n", f"```json\n{CALL}\n```"),
        ("", "It is so.\n", '{"type": "function", "name": "send_mail", "parameters": {}}'),
        # The edge would go on with it.
        ("```json\n", '{"na": 1}\n', '{"name": "send_'),
        ("{", '"na": 1}\n', '"name": "send_mail", "arg'),
        ("", f"{CALL}\n", CALL.replace("x", "y")),
        ("", f"{CALL}\n", "It is so."),
        ("It is so. ", "It is.\n", f"<tool_call>\n{CALL}\n</tool_call>"),
        ("It is so. <tool_", "it>.\n", f"call>\n{CALL}"),
        ("It is so. ", f"So: <tool_call>\n{CALL}\n</tool_call>\n", f"So: <tool_call>\n{CALL}"),
        ("It is so.\n<tool_call>\n", f"{CALL}\n</tool_call>", CALL.replace("x", "y")),
        ("It is so. ", '[TOOL_CALLS]send_mail[ARGS]{"to": "x"}', '{"to": "y"}'),
        ('So. [TOOL_CALLS]send_mail[ARGS]{"to":\n', '"x"}', '"y"}'),
    ],
)
def test_none_begins_or_changes_a_tool_call(before: str, passage: str, replacement: str) -> None:
    with correcting(replacement) as (read, _), pytest.raises(NothingUsable):
        read(ids_of(before), ids_of(passage))


@pytest.mark.parametrize(
    ("passage", "replacement"),
    [
        ('{"name": "Ann", "age": 5}', '{"name": "Ann", "age": 6}'),
        ('It is {"name": "x", "arguments": {}}.', f"It is {CALL}."),
        ("[1]", "[TOOL]"),
    ],
)
def test_what_only_looks_like_a_tool_call_may_be_corrected(passage: str, replacement: str) -> None:
    with correcting(replacement) as (read, _):
        completion = read(b"", passage.encode())
    assert bytes_of(BYTES, completion.ids).decode() == replacement


def test_one_that_cannot_be_kept_from_reasoning_is_told_to_reason_little() -> None:
    """Gemini declines the request, and names no field."""
    with closing(ChatReader()) as served:
        served.thinks = True
        with closing(connect(served.url, BYTES, engine="openai")):
            efforts = [body.get("reasoning_effort") for body in served.bodies]
        assert efforts == ["none", "low"]
        served.declines = frozenset({"messages"})
        with pytest.raises(CloudRejected, match="messages"):
            connect(served.url, BYTES, engine="openai")


def test_too_large_a_limit_is_no_field_that_the_api_lacks() -> None:
    """Seen: from then on no request had a limit."""
    with reading() as (read, served):
        for n in (33, 5_000):
            served.most = 32
            with pytest.raises(CloudRejected, match="too large"):
                read(b"", b"Paris.", n)
            assert served.bodies[-1]["max_tokens"] == n
            served.most = 1 << 20
            read(b"", b"It is so.")
            assert served.bodies[-1]["max_tokens"] == WRITTEN


def test_a_field_that_the_api_declines_is_no_request_that_it_bills() -> None:
    """Whatever is wrong with it; but reasoning that only the total tells of is billed."""
    for why in ("Unsupported parameter", "More than the maximum depth"):
        sent = Outgoing(max_requests=1)
        with reading() as (read, served):
            served.declines, served.why = frozenset({"response_format"}), why
            assert read(b"", b"It is so.", sent=sent).stand == len(b"It is so.")
            assert (sent.requests, sent.repeats) == (1, 0)
            served.thoughts = 94
            assert read(b"", b"It is so.").billed == 12 + 94


def test_what_was_declined_meanwhile_is_not_forgotten() -> None:
    """Seen: a request that had left before put it back."""
    with reading() as (read, served), ThreadPoolExecutor(1) as beside:
        served.seconds = lambda number: 0.5 if number == 1 else 0.0
        slow = beside.submit(read, b"", b"It is so.")
        until(lambda: served.asked)
        served.declines = frozenset({"response_format"})
        read(b"", b"It is so.")
        slow.result()
        before = len(served.bodies)
        read(b"", b"It is so.")
        assert len(served.bodies) == before + 1


SENTENCES = ("Two and two are four.", " Three and three are seven.\n", "    return x")


def sentences_of(*pieces: str, code: bool = False) -> list[str]:
    """The sentences of a passage of such tokens."""
    ends = [0, *sentence_ends(pieces, code=code)]
    return ["".join(pieces[start:end]) for start, end in pairwise(ends)]


@pytest.mark.parametrize(
    ("pieces", "sentences"),
    [
        (["Yes", ".", " No", "!", " C"], ["Yes.", " No!", " C"]),
        (["It is 3", ".", "5 m", ".", "\n\n", "So", ":"], ["It is 3.5 m.\n\n", "So:"]),
        (["1", ".", " Add", ".", "\n", "2", ".", " Take", "."], ["1. Add.\n", "2. Take."]),
        (["She said \"no", ".\"", " He", " left", "."], ['She said "no."', " He left."]),
        (["水は百度。", "沸く。"], ["水は百度。", "沸く。"]),
        (["मैं", " ठीक हूँ।", " वह", " आया।"], ["मैं ठीक हूँ।", " वह आया।"]),
        (["هل هذا", "؟", " نعم."], ["هل هذا؟", " نعم."]),
        (["Er sagte: „Ja", ".“", " Dann"], ["Er sagte: „Ja.“", " Dann"]),
        (["Code", ":\n", "```py\n", "x = 1. \n", "\n", "  y", " = 2\n", "```", "\n", "Done."],
         ["Code:\n", "```py\n", "x = 1. \n\n", "  y = 2\n", "```\n", "Done."]),
        (["", "Yes", ".", ""], ["Yes."]),
    ],
)  # fmt: skip
def test_a_passage_is_cut_into_sentences(pieces: list[str], sentences: list[str]) -> None:
    assert sentences_of(*pieces) == sentences


def test_a_character_of_several_tokens_belongs_to_the_sentence_that_it_begins() -> None:
    assert sentence_ends(["Yes\n", "", "🎉", " ok\n"], code=False) == [1, 4]
    assert sentence_ends(["沸く。", "", "", "水", "だ"], code=False) == [1, 5]


@given(
    st.lists(st.sampled_from(["a", ". ", ".", "\n", " ", "```\n", "。", "", "1"])), st.booleans()
)
def test_no_token_is_lost_between_sentences(pieces: list[str], code: bool) -> None:
    ends = sentence_ends(pieces, code=code)
    assert ends == sorted(set(ends))
    assert ends[-1:] == ([len(pieces)] if pieces else [])


@pytest.mark.parametrize(
    ("text", "code", "from_"),
    [
        ("One. Two.\n\n", False, SHORTEST),
        ("One. Two.\n", False, LONGEST),
        ("One. Two.", False, LONGEST),
        ("One. Two", False, MOST),
        ("```\nx = 1\n\n", False, LONGEST),
        ("```\nx = 1\n```\n", False, SHORTEST),
        ("x = 1\n```\n", True, SHORTEST),
        ("x = 1\n\n", True, LONGEST),
        ("x = 1.", True, MOST),
    ],
)
def test_a_passage_ends_at_a_paragraph_or_a_closed_block(text: str, code: bool, from_: int) -> None:
    """From so many tokens on."""
    lengths = (SHORTEST, LONGEST, MOST)
    ends = [size for size in lengths if ends_passage(text, size, code=code)]
    assert ends == [size for size in lengths if size >= from_]


def test_a_block_of_code_is_followed_through_passages() -> None:
    assert in_code("a\n```py\nb")
    assert not in_code("b\n```\nc", code=True)
    assert not in_code("a `b` c")


@pytest.mark.parametrize(
    ("reply", "stand", "replacement"),
    [
        ('{"stand": 3, "replacement": null}', 3, None),
        ('```json\n{"stand": 1, "replacement": "They are six."}\n```', 1, " They are six.\n"),
        ('{"stand": 2, "replacement": "return y"}', 2, "    return y"),
        ('{"stand": 2, "replacement": "  return y"}', 2, "  return y"),
        ('{"stand": 0, "replacement": "Four."}', 0, "Four."),
        ('{"stand": 1, "replacement": "[2] They are six."}', 1, " They are six.\n"),
        ('{"stand": 0, "replacement": "[2] is four."}', 0, "[2] is four."),
    ],
)
def test_a_replacement_keeps_the_blanks_around_it(reply: str, stand: int, replacement: Any) -> None:
    verdict = verdict_of(reply, SENTENCES)
    assert (verdict.stand, verdict.replacement) == (stand, replacement)


NO_VERDICTS = """
All of it stands.
{"stand": 1
{"stand": 3, "replacement": "Six."}
{"stand": 2, "replacement": null}
{"stand": 4, "replacement": null}
{"stand": -1, "replacement": "Six."}
{"stand": 1.5, "replacement": "Six."}
{"stand": "1", "replacement": "Six."}
{"stand": 1, "replacement": " "}
{"stand": 0, "replacement": "Two and two are four. "}
{"stand": 0, "replacement": "[1] Two and two are four."}
{"stand": 1, "replacement": "a\\u0000b"}
{"stand": 1, "replacement": "Two and two are four. Three and three are six."}
{"stand": 3, "replacement": null, "url": "http://host.example"}
{"stand": 2, "stand": 1, "replacement": "They are six."}
{"stand": 1, "replacement": "They are six.", "replacement": "They are ten."}
"""
LONG_ONES = ["[" * 100_000, json.dumps({"stand": 0, "replacement": "long " * 1000})]


@pytest.mark.parametrize("reply", [*NO_VERDICTS.splitlines(), *LONG_ONES])
def test_what_contradicts_itself_is_no_verdict(reply: str) -> None:
    with pytest.raises(NothingUsable):
        verdict_of(reply, SENTENCES)


@given(st.text() | st.builds(json.dumps, st.dictionaries(
    st.sampled_from(["stand", "replacement"]), st.none() | st.integers() | st.text(max_size=30)
)))  # fmt: skip
def test_any_reply_is_a_verdict_or_none(reply: str) -> None:
    try:
        verdict = verdict_of(reply, SENTENCES)
    except NothingUsable:
        return
    assert 0 <= verdict.stand <= len(SENTENCES)
    assert (verdict.replacement is None) == (verdict.stand == len(SENTENCES))


def test_of_the_next_question_the_beginning_is_the_same() -> None:
    conversation = [Message("user", "What is it?")]
    first = question(conversation, "", ["One.", " Two."])
    later = question(conversation, "One. Two.", [" Three."])
    assert first[0] == later[0]
    common = later[1].content.index("One.")
    assert first[1].content[:common] == later[1].content[:common]
    assert "[2]  Two." in first[1].content
