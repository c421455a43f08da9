"""`edgewise chat`: a conversation in the terminal that shows who wrote what."""

import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import msgspec
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise import pair, settings
from edgewise.cli import options, render
from edgewise.cli.run import MAX_PROMPT, open_decoder, require_unicode, sampling_of
from edgewise.errors import UsageError
from edgewise.events import Candidate, Event, Finished, Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Budget
from edgewise.prompts import Message, prompt_ids
from edgewise.routers.card import RouterCard
from edgewise.settings import Settings

HELP = """\
/share 0.05       the fraction of tokens the cloud may write from now on
/mode pair        who writes: pair, edge or cloud
/why              the last answer's routed tokens, with scores and both models' candidates
/save FILE        write the conversation to FILE as JSON
/new              begin a new conversation
/help, /quit      Ctrl-C interrupts an answer, Ctrl-D leaves"""

_SHOWN = 3


def chat(
    edge: options.Edge = None,
    cloud: options.Cloud = None,
    cloud_engine: options.CloudEngine = None,
    router: options.Router = None,
    cloud_share: options.CloudShare = None,
    threshold: options.Threshold = None,
    max_cloud_tokens: options.MaxCloudTokens = None,
    span: options.Span = None,
    run_ahead: options.RunAhead = None,
    deadline: options.Deadline = None,
    on_cloud_error: options.OnCloudError = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    system: options.System = None,
    ctx: options.Ctx = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = None,
) -> None:
    """Talk to the pair; the cloud's tokens are red. /help lists the commands."""
    flags = {name: value for name, value in locals().items() if name in Settings.__struct_fields__}
    chosen = settings.load(flags)
    require_unicode("The system message", chosen.system or "")
    sampling_of(chosen)  # refused now and not at every question
    with ExitStack() as stack:
        decoder, card = open_decoder(chosen, stack, keep_prefixes=True)
        conversation = Conversation(decoder, card, chosen)
        if sys.stdin.isatty():
            render.note(f"{decoder.edge.name}; /help lists the commands")
        for line in _lines():
            try:
                if not conversation.take(line):
                    break
            except UsageError as error:
                render.note(str(error))


class Turn(msgspec.Struct, frozen=True):
    """A question and what was said to it, whole or interrupted."""

    question: str
    answer: str
    tokens: tuple[Token, ...]
    whole: bool


class Conversation:
    """Turns so far, and the dial."""

    def __init__(self, decoder: Decoder, card: RouterCard | None, chosen: Settings) -> None:
        self.turns: list[Turn] = []
        self._decoder, self._card, self._chosen = decoder, card, chosen
        self._pair = decoder.policy
        self._budget = Budget()
        self._commands: dict[str, Callable[[str], None]] = {
            "/share": self._share,
            "/mode": self._mode,
            "/why": self._why,
            "/save": self._save,
            "/new": self._new,
            "/help": lambda _: render.out.print(HELP),
        }

    def take(self, line: str) -> bool:
        """A question or a command; False to leave. Raises `UsageError`, with nothing changed."""
        text = line.strip()
        if text == "/quit":
            return False
        if text.startswith("/"):
            name, _, rest = text.partition(" ")
            if name not in self._commands:
                raise UsageError(f"There is no command {name}; /help lists them.")
            self._commands[name](rest.strip())
        elif text:
            self._answer(text)
        return True

    @property
    def messages(self) -> list[Message]:
        """The conversation as the chat template takes it."""
        found = [Message("system", self._chosen.system)] if self._chosen.system else []
        for turn in self.turns:
            found += [Message("user", turn.question), Message("assistant", turn.answer)]
        return found

    def _answer(self, question: str) -> None:
        require_unicode("The question", question)
        if len(question) > MAX_PROMPT:
            raise UsageError(f"The question has more than {MAX_PROMPT} characters; shorten it.")
        ids = prompt_ids(self._decoder.edge.tokenizer, [*self.messages, Message("user", question)])
        generation = self._decoder.stream(
            ids,
            max_tokens=self._chosen.max_tokens,
            sampling=sampling_of(self._chosen),
            budget=self._budget,
            pending=True,
        )
        with generation, _interruptible() as interrupted:
            said = list(_until(interrupted, render.painted(generation)))
            self._budget = generation.budget
        tokens = tuple(event for event in said if isinstance(event, Token))
        ends = [event for event in said if isinstance(event, Finished)]
        text = "".join(event.text for event in [*tokens, *ends])
        if text or ends:
            self.turns.append(Turn(question, text, tokens, bool(ends)))
        if not ends:
            render.out.print()
            render.note("interrupted; what was said is kept")
            return
        usage = ends[0].usage
        render.note(
            f"{len(tokens)} tokens, {usage.cloud_tokens} by the cloud ({usage.cloud_share:.1%}), "
            f"{len(tokens) / ends[0].timing.total:.1f} tokens/s"
        )

    def _share(self, text: str) -> None:
        try:
            share = float(text)
        except ValueError:
            raise UsageError("/share needs a number from 0 to 1, such as /share 0.05.") from None
        wanted = replace(self._chosen, cloud_share=share, threshold=None)
        self._pair = self._decoder.policy = pair.make_policy(wanted, self._card)
        self._budget = Budget()
        render.note(f"the cloud may write {share:.1%} of the tokens")

    def _mode(self, text: str) -> None:
        modes = {
            "pair": self._pair,
            "edge": self._pair.edge_alone(),
            "cloud": self._pair.cloud_alone(),
        }
        if text not in modes:
            raise UsageError("/mode needs pair, edge or cloud.")
        if text != "edge" and self._decoder.cloud is None:
            raise UsageError(f"/mode {text} needs a cloud model; start with --cloud.")
        self._decoder.policy = modes[text]
        render.note(f"{text} writes from now on")

    def _why(self, _: str) -> None:
        if not self.turns:
            raise UsageError("There is no answer yet; ask something first.")
        routed = [token for token in self.turns[-1].tokens if token.reason != "below_threshold"]
        if not routed:
            render.note("the router sent none of its tokens to the cloud")
            return
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for name in ("#", "token", "by", "reason", "score", "wait", "edge", "cloud"):
            table.add_column(name, justify="right" if name in ("#", "score", "wait") else "left")
        for token in routed:
            table.add_row(
                str(token.index),
                self._text(token.id),
                token.source,
                token.reason.replace("_", " "),
                "" if token.score is None else f"{token.score:.3f}",
                f"{1000 * token.wait:.0f} ms",
                self._candidates(token.edge),
                self._candidates(token.cloud),
                style=render.CLOUD if token.source == "cloud" else None,
            )
        render.out.print(table)

    def _save(self, name: str) -> None:
        if not name:
            raise UsageError("/save needs a file, such as /save talk.json.")
        saved = {
            "messages": self.messages,
            "answers": [{"tokens": turn.tokens, "whole": turn.whole} for turn in self.turns],
        }
        try:
            Path(name).expanduser().write_bytes(msgspec.json.format(msgspec.json.encode(saved)))
        except OSError as error:
            raise UsageError(f"{name!r} cannot be written: {error.strerror}.") from error
        render.note(f"saved to {name}")

    def _new(self, _: str) -> None:
        self.turns.clear()
        self._budget = Budget()
        render.note("a new conversation")

    def _text(self, token: int) -> str:
        piece = self._decoder.edge.tokenizer.piece(token).decode("utf-8", "replace")
        return repr(render.printable(piece))

    def _candidates(self, found: tuple[Candidate, ...]) -> str:
        return ", ".join(f"{self._text(one.id)} {one.logprob:.1f}" for one in found[:_SHOWN])


def _lines() -> Iterator[str]:
    """What is typed, with editing and history; or the lines of stdin where that is no terminal."""
    if not sys.stdin.isatty():
        data = sys.stdin.buffer.read(4 * MAX_PROMPT + 1)
        yield from data.decode("utf-8", "surrogateescape").splitlines()
        return
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession("> ")
    while True:
        try:
            yield session.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def _until(interrupted: Callable[[], bool], events: Iterator[Event]) -> Iterator[Event]:
    for event in events:
        yield event
        if interrupted():
            return


@contextmanager
def _interruptible() -> Generator[Callable[[], bool]]:
    """The first Ctrl-C lets a step end, as no decode can be left half done; the next one raises."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
