"""What a chat model that reads passages is shown, and what becomes of its replacement."""

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.connect import connect
from edgewise.cloud.reader import WRITTEN
from edgewise.cloud.redaction import filter_of
from edgewise.completion import Completion, Outgoing
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import CloudRejected, NothingUsable
from edgewise.prompts import Message, Prompt
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.doubles.chat_reader import Asked, ChatReader, Verdict, all_stand
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
    served = ChatReader(judge)
    cloud = connect(served.url, edge, engine="openai", context_filter=filter_of(redact))
    prompt = Prompt(tuple(said.encode()), (Message("user", said),))

    def read(
        before: Sequence[int], passage: Sequence[int], n: int = 0, sent: Outgoing | None = None
    ) -> Completion:
        ids, sent = [*prompt.ids, *before, *passage], sent or Outgoing()
        asked = ConsultRequest(ids, n, 30, sent=sent, verify=len(passage))
        return cloud.open(prompt).ask(asked).result()

    try:
        yield read, served
    finally:
        cloud.close()
        served.close()


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
    assert shown(served.asked[0]) == ["That is how to do it.", "There is no other way."]


def test_a_whole_answer_sends_nothing_of_the_passage_so_its_words_do_not_matter() -> None:
    with reading(said="Who is it@corp.example?", redact="email") as (read, served):
        assert read(b"", b"That is how to do it.\n\n", 40).ids
    assert len(served.bodies[-1]["messages"]) == 1


@pytest.mark.parametrize(
    ("replacement", "written"),
    [
        # What follows in the passage is dropped, so it closes no link.
        ("<EMAIL_1>) is it.", "<EMAIL_1>) is it."),
        ("foo) it is. Ask <EMAIL_1>.", f"foo) it is. Ask {MAIL}."),
    ],
)
def test_a_replacement_takes_no_private_word_into_a_link_that_is_open(
    replacement: str, written: str
) -> None:
    with reading(lambda asked: (0, replacement), redact="email", said=f"Who is {MAIL}?") as (
        read,
        _,
    ):
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
def test_a_replacement_neither_begins_nor_changes_a_tool_call(
    before: str, passage: str, replacement: str
) -> None:
    with (
        reading(lambda asked: (0, replacement), edge=ToolTokenizer()) as (read, _),
        pytest.raises(NothingUsable),
    ):
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
    with reading(lambda asked: (0, replacement), edge=ToolTokenizer()) as (read, _):
        completion = read(b"", passage.encode())
    assert bytes_of(BYTES, completion.ids).decode() == replacement


def test_one_that_cannot_be_kept_from_reasoning_is_told_to_reason_little() -> None:
    """Gemini declines the request, and names no field."""
    with closing(ChatReader()) as served:
        served.thinks = True
        with closing(connect(served.url, BYTES, engine="openai")):
            efforts = [body.get("reasoning_effort") for body in served.bodies]
    assert efforts == ["none", "low"]


def test_what_is_declined_for_another_reason_is_declined() -> None:
    with closing(ChatReader()) as served:
        served.declines = frozenset({"messages"})
        with pytest.raises(CloudRejected, match="messages"):
            connect(served.url, BYTES, engine="openai")


@pytest.mark.parametrize("n", [33, 5_000])
def test_too_large_a_limit_is_no_field_that_the_api_lacks(n: int) -> None:
    """Seen: from then on no request had a limit."""
    with reading() as (read, served):
        served.most = 32
        with pytest.raises(CloudRejected, match="too large"):
            read(b"", b"Paris.", n)
        assert served.bodies[-1]["max_tokens"] == n
        served.most = 1 << 20
        read(b"", b"It is so.")
    assert served.bodies[-1]["max_tokens"] == WRITTEN


def test_reasoning_that_only_the_total_tells_of_is_billed() -> None:
    with reading() as (read, served):
        served.thoughts = 94
        assert read(b"", b"It is so.").billed == 12 + 94


def test_a_field_that_the_api_declines_is_no_request_that_it_bills() -> None:
    sent = Outgoing(max_requests=1)
    with reading() as (read, served):
        served.declines = frozenset({"response_format"})
        assert read(b"", b"It is so.", sent=sent).stand == len(b"It is so.")
    assert (sent.requests, sent.repeats) == (1, 0)


def test_a_field_that_may_be_left_out_is_whatever_is_wrong_with_it() -> None:
    with reading() as (read, served):
        served.declines, served.why = frozenset({"response_format"}), "More than the maximum depth"
        assert read(b"", b"It is so.").stand == len(b"It is so.")


def test_what_was_declined_meanwhile_is_not_forgotten() -> None:
    """Seen: a request that had left before put it back."""
    with reading() as (read, served), ThreadPoolExecutor(1) as beside:
        served.seconds = lambda number: 0.5 if number == 1 else 0.0
        slow = beside.submit(read, b"", b"It is so.")
        while not served.asked:
            time.sleep(0.01)
        served.declines = frozenset({"response_format"})
        read(b"", b"It is so.")
        slow.result()
        before = len(served.bodies)
        read(b"", b"It is so.")
        assert len(served.bodies) == before + 1
