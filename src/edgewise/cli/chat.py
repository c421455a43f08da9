"""`edgewise chat`: a conversation in the terminal that shows which model wrote what."""

import math
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise.addresses import from_home, is_url, with_scheme
from edgewise.cli import render
from edgewise.cli.options import ANSWERING, SentFile, System, locate, takes
from edgewise.cloud.redaction import redaction_of
from edgewise.errors import ContextOverflow, EdgewiseError, UsageError
from edgewise.events import Candidate, Token
from edgewise.listening.sockets import is_loopback
from edgewise.opening import cloud_address, each_cloud, make_policy
from edgewise.pair import Pair, open_pair
from edgewise.prompts import MAX_PROMPT, Message, require_text
from edgewise.registry import did_you_mean
from edgewise.sampling import Sampling
from edgewise.settings import Settings, fraction, unmarked

HELP = """\
/share 5%         how many of the tokens the cloud may write from now on; alone: how many now
/mode pair        who writes: pair, edge or cloud
/why              the last answer's routed or corrected tokens, and both models' candidates
/local            from here on only clouds that you trust are sent anything, in later turns too
/save FILE        write the conversation to FILE as JSON
/new              begin a new conversation
/help, /quit      Ctrl-C interrupts an answer, Ctrl-D leaves"""
"""Text of the command /help."""

_COMMAND = re.compile("/[a-z]+", re.IGNORECASE)
# Similarity to a command from which a line counts as a misspelt one (`/shar 0.1`); any other line
# that begins with a slash is a question, such as a path.
_NEARLY = 0.8

_ALONE = frozenset({"/why", "/new", "/help", "/quit", "/exit", "/bye"})

# Reasons of the edge model's tokens that did not call for the cloud model.
_KEPT = ("below_threshold", "verified")

# Candidates that fit on a line with their probabilities.
_SHOWN = 3

# At least a quarter of the context is left for an answer, or `max_tokens` if that is less.
_ROOM = 4


@takes(*ANSWERING, reads=["cloud_key", "edge_key"])
def chat(chosen: Settings, system: System = None, sent_file: SentFile = None) -> None:
    """Talk to the pair; the cloud's tokens are red. /help lists the commands."""
    require_text("The system message", system or "")
    with open_pair(chosen, system=system, keep_prefixes=True, sent_file=sent_file) as pair:
        conversation = Conversation(pair)
        if sys.stdin.isatty():
            render.note(f"{opening(pair)}; /help lists the commands")
        for line in _lines():
            try:
                if not conversation.take(line):
                    break
            # A line that is refused does not end the conversation.
            except EdgewiseError as error:
                locate(error)
                render.note(str(error))


def opening(pair: Pair) -> str:
    """Return the line that opens a chat: the models, their roles, and what leaves the device."""
    chosen, leaves = pair.settings, list[str]()
    # A pair without a cloud has settings of one that is none.
    clouds = list(zip(pair.clouds, each_cloud(chosen), strict=False))
    told = f"{pair.edge.name} here"
    if _elsewhere(chosen.edge):
        told = pair.edge.name
        leaves.append(f"every prompt goes to {chosen.edge}")
    if clouds:
        away = [_elsewhere(cloud_address(one)) for _, one in clouds]
        names = (
            f"{one.name}{'' if far else ' (here)'}"
            for (one, _), far in zip(clouds, away, strict=True)
        )
        told += f", asks {' and '.join(names)} {_dial(pair)}"
        if any(away):
            hidden = ", with placeholders" if str(redaction_of(chosen.redact)) else ""
            leaves.append(f"a consult sends the conversation so far{hidden}")
    if leaves:
        return f"{told}; {' and '.join(leaves)}"
    sooner = "; edgewise doctor says whether the cloud alone is sooner on the same cores"
    return f"{told}; nothing leaves this device{sooner if pair.policy.verifies else ''}"


def _elsewhere(address: str) -> bool:
    """Return whether a model's address is a URL on another machine."""
    url = with_scheme(address)
    return is_url(url) and not is_loopback(urlsplit(url).hostname or "")


class Turn(msgspec.Struct, frozen=True):
    """A question and its answer. `whole`: not interrupted; `local`: for trusted clouds only."""

    question: str
    answer: str
    tokens: tuple[Token, ...]
    whole: bool
    local: bool


class Conversation:
    """A chat: the turns so far, and the commands that change how the next ones are answered."""

    def __init__(self, pair: Pair) -> None:
        self.turns: list[Turn] = []
        self._first = 0
        self._local = False
        self._pair = pair
        self._paired = pair.policy
        self._commands: dict[str, Callable[[str], None]] = {
            "/share": self._share,
            "/mode": self._mode,
            "/why": self._why,
            "/local": self._stay,
            "/save": self._save,
            "/new": self._new,
            "/help": lambda _: render.out.print(HELP),
        }

    def take(self, line: str) -> bool:
        """Answer the question or run the command in `line`; return False if that ends the chat.

        An answer is printed. Raises `UsageError` for a command that is unknown, malformed or not
        possible now, and for an answer what `Pair.stream` raises.
        """
        text = line.strip()
        name, _, rest = text.partition(" ")
        name = name.lower()
        if rest and name in _ALONE:
            raise UsageError(f"{name} takes no text; begin the line otherwise to ask it.")
        if name in ("/quit", "/exit", "/bye"):
            return False
        if name in self._commands:
            self._commands[name](rest.strip())
        elif _COMMAND.fullmatch(text) or get_close_matches(name, self._commands, 1, _NEARLY):
            hint = did_you_mean(name, [*self._commands], "/help lists them")
            raise UsageError(f"There is no command {name}", hint=hint)
        elif text:
            self._answer(text)
        return True

    def _since(self, first: int) -> list[Message]:
        """Return the messages of the turns from `first` on, after the system message."""
        messages = [Message("system", self._pair.system)] if self._pair.system else []
        for turn in self.turns[first:]:
            messages += [
                Message("user", turn.question, turn.local),
                Message("assistant", turn.answer, turn.local),
            ]
        return messages

    def _answer(self, question: str) -> None:
        require_text("The question", question)
        local = self._local
        asked = Message("user", question, local)
        render.warn_of_toy(self._pair.settings.edge, question)
        first = self._first_kept(asked)
        try:
            stream = self._pair.stream(
                [*self._since(first), asked], pending=True, sampling=self._sampling()
            )
        except ContextOverflow as error:
            if first < len(self.turns):
                error.hint = "/new begins a new conversation; or raise the context"
            raise
        # Only now: had the question been refused, nothing would have been dropped.
        if first > self._first:
            gone = f"{first - self._first} of {len(self.turns) - self._first}"
            render.note(f"the context is full: dropped the oldest questions and answers, {gone}")
            self._first = first
        with stream as events:
            tokens, end = render.watched(events, self._pair)
        text = "".join(event.text for event in [*tokens, *([end] if end else [])])
        # An answer that was cut before its first word leaves no turn to go on from.
        if text or end:
            self.turns.append(Turn(question, text, tuple(tokens), end is not None, local))
        if end is not None:
            render.note(render.summary(end, tokens, self._pair) + self._cost())
        else:
            render.out.print()
            by_cloud = sum(token.source == "cloud" for token in tokens)
            counts = f"{len(tokens) - by_cloud} edge + {by_cloud} cloud tokens"
            counts += f" · {render.costed(stream.cost)}" if stream.cost else ""
            render.note(f"interrupted after {counts}; the text so far is kept{self._cost()}")

    def _sampling(self) -> Sampling | None:
        """Return a chat's sampling, with a new seed if none is set; None if the settings decide."""
        chosen, drawn = self._pair.settings, self._pair.chat_sampling
        if drawn is None:
            return None
        seed = secrets.randbits(31) if chosen.seed is None else chosen.seed
        top_p = chosen.top_p if chosen.top_p < 1 else drawn.top_p
        return replace(drawn, top_p=top_p, seed=seed)

    def _first_kept(self, asked: Message) -> int:
        """Return the index of the first turn to keep, so that an answer to `asked` has room."""
        context = self._pair.edge.context
        room = min(self._pair.settings.max_tokens or context, context // _ROOM)
        if self._length(self._first, asked) + room <= context:
            return self._first
        kept = range(self._first + 1, len(self.turns) + 1)
        # A question that does not fit alone is refused later.
        if not kept or self._length(kept[-1], asked) >= context:
            return self._first
        # Half is dropped: what is left needs a new prefill, as every turn would if each dropped a
        # little.
        half = (first for first in kept if self._length(first, asked) <= context // 2)
        return next(half, kept[-1])

    def _length(self, first: int, asked: Message) -> int:
        """Return the number of ids of a prompt with the turns from `first` on and `asked`."""
        try:
            return len(self._pair.prompt([*self._since(first), asked]).ids)
        except ContextOverflow:
            # Longer than any context; how long does not matter.
            return sys.maxsize // 2

    def _cost(self) -> str:
        """Return the cost of the conversation so far; "" without a price, or before two answers."""
        billing = self._pair.billing
        if billing is None or billing.sums.answers < 2:
            return ""
        return f"; the conversation: {render.costed(billing.savings())}"

    def _share(self, text: str) -> None:
        self._require_cloud("/share")
        if not text:
            render.note(f"the cloud is asked {_dial(self._pair)}")
            return
        share = fraction(text, "/share")
        wanted = replace(self._pair.settings, cloud_share=share, threshold=None)
        self._paired = self._pair.policy = make_policy(wanted, self._pair.starts)
        # What was saved or owed under the old share says nothing of the new one.
        self._pair.forget()
        render.note(f"the cloud may write {share:.1%} of the tokens")

    def _mode(self, text: str) -> None:
        modes = {
            "pair": self._paired,
            "edge": self._paired.edge_alone(),
            "cloud": self._paired.cloud_alone(),
        }
        if text not in modes:
            raise UsageError("/mode needs pair, edge or cloud.")
        if text != "edge":
            self._require_cloud(f"/mode {text}")
        self._pair.policy = modes[text]
        render.note(f"{text} writes from now on")

    def _require_cloud(self, command: str) -> None:
        """Raise `UsageError` if there is no cloud model, or if the conversation is local."""
        if self._pair.cloud is None:
            raise UsageError(f"{command} needs a cloud model; start with --cloud.")
        if self._local:
            raise UsageError(f"{command} is not possible: the conversation is local; /new ends it.")

    def _stay(self, text: str) -> None:
        if text:
            raise UsageError("/local takes no text; /new starts a conversation that may be sent.")
        self._local = True
        edge, trust = self._pair.settings.edge, self._pair.settings.trust
        told = f"{'only clouds that you trust are' if trust else 'no cloud is'} sent anything"
        if _elsewhere(edge):
            told += f", but every prompt goes to {edge}"
        elif not trust:
            told = "nothing leaves this device"
        render.note(f"from now on {told}; /new ends that")

    def _why(self, _: str) -> None:
        if not self.turns:
            raise UsageError("There is no answer yet; ask something first.")
        routed = [token for token in self.turns[-1].tokens if token.reason not in _KEPT]
        if not routed:
            render.note("none of its tokens called for the cloud's")
            return
        score = "ratio" if any(token.ratio is not None for token in routed) else "score"
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for name in ("#", "token", "by", "reason", score, "wait", "edge", "cloud"):
            table.add_column(name, justify="right" if name in ("#", score, "wait") else "left")
        for token in routed:
            mark = token.score if token.ratio is None else token.ratio
            table.add_row(
                str(token.index),
                self._text(token.id),
                token.source,
                token.reason.replace("_", " "),
                "" if mark is None else f"{mark:.3f}",
                f"{1000 * token.wait:.0f} ms",
                self._candidates(token.edge),
                self._candidates(token.cloud),
                style=render.CLOUD if token.source == "cloud" else None,
            )
        render.show(table)

    def _save(self, name: str) -> None:
        if not name:
            raise UsageError("/save needs a file, such as /save talk.json.")
        saved = {
            "messages": self._since(0),
            "answers": [{"tokens": turn.tokens, "whole": turn.whole} for turn in self.turns],
        }
        try:
            from_home(name).write_bytes(msgspec.json.format(msgspec.json.encode(saved)))
        except (OSError, ValueError) as error:  # a null is a ValueError
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{name!r} cannot be written: {reason}.") from error
        render.note(f"saved to {name}")

    def _new(self, _: str) -> None:
        self.turns.clear()
        self._first = 0
        self._local = False
        self._pair.forget()
        if self._pair.billing is not None:
            self._pair.billing.forget()
        render.note("a new conversation")

    def _text(self, token: int) -> str:
        piece = self._pair.edge.tokenizer.piece(token).decode("utf-8", "replace")
        return repr(render.printable(piece))

    def _candidates(self, candidates: tuple[Candidate, ...]) -> str:
        return ", ".join(
            f"{self._text(one.id)} {math.exp(one.logprob):.1%}" for one in candidates[:_SHOWN]
        )


def _dial(pair: Pair) -> str:
    policy = pair.policy
    if pair.cloud is not None and pair.cloud.reads_passages:
        return render.reads(policy, pair.settings.escalate)
    if policy.verify == "exact":
        return "to verify every token, and write each that is not its own"
    if policy.cloud_share is None:
        return f"where a score reaches {policy.threshold:g}"
    verifies = "to verify every token, and " if policy.verify == "on" else ""
    return f"{verifies}for up to {100 * policy.cloud_share:g}% of the tokens"


def _lines() -> Iterator[str]:
    """Yield the lines that the user types, with editing and history; or those of a piped stdin."""
    if not sys.stdin.isatty():
        # UTF-8 takes at most four bytes a character.
        data = sys.stdin.buffer.read(4 * MAX_PROMPT + 1)
        yield from unmarked(data).decode("utf-8", "surrogateescape").split("\n")
        return
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession("> ")
    while True:
        try:
            yield session.prompt()
        # Ctrl-C gives a line up, as in shells.
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
