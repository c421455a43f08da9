"""Grammars that say which token ids may come next, compiled by the library llguidance."""

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of, common_prefix, ids_of_text, once
from edgewise.errors import UsageError

INSTALL = "pip install 'edgewise[grammar]'"

SECONDS = 10.0
"""Maximum time to compile a grammar, in seconds, the mask of its first token included."""

FUEL = 100_000
"""Maximum work of a grammar's lexer before the first token, in llguidance's units (`fuel`)."""

COMPILING = 2
"""How many grammars are compiled at a time. One that exceeded its time counts until it ends."""

# A small model may repeat a digit for ever. No 64-bit integer has more.
DIGITS = 20
"""Maximum digits in a row in a number, unless its schema requires more; in an exponent, two."""

_FULL = re.compile(rb"(?:\d{%d}|[eE][+-]?\d\d)\Z" % DIGITS)
# As many ids as DIGITS and an exponent can have.
_TAIL = 24
_IN_NUMBERS = b"0123456789+-.eE,]} \t\r\n"
_KEYWORD = re.compile(r"(?<=\")[$\w]+(?=\")|\b(?:format|oneOf)\b")
# The compiler recurses with a schema's depth, and a thread's usual stack overflows by it.
_STACK = 64 << 20
# The compiler may quote the schema, which came from outside.
_LONGEST_REASON = 200
_PLACE = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?")
# Bytes of an id that no text makes begin so, for llguidance.
_SPECIAL = b"\xff"


class Allowed(NamedTuple):
    """The token ids that a grammar allows next.

    `mask` is a bool array with one entry per token of the vocabulary. `forced` is true if only one
    id is allowed, or only ids that end the answer.
    """

    mask: NDArray[np.bool_]
    forced: bool


class Constraint:
    """The grammar of one answer. Calls get all ids so far, prompt too; fewer after a rollback."""

    def __init__(self, matcher: Any, tokenizer: Tokenizer, *, start: int) -> None:
        """`start` is the index of the answer's first id in `ids`; no other uses `matcher`."""
        self._matcher, self._start, self._ends = matcher, start, tokenizer.eos_ids
        self._size, self._tokenizer = tokenizer.size, tokenizer
        self._bits = np.zeros((self._size + 31) // 32, np.uint32)
        self._held: list[int] = []

    def allowed(self, ids: Sequence[int], drafts: Sequence[int] = ()) -> Allowed:
        """Return which ids may follow `ids` (prompt and answer) and the draft tokens `drafts`.

        Raises `UsageError` if it does not allow answer or drafts, or exceeds llguidance's limits.
        """
        self._follow(ids, drafts)
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._require_sound()
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._size, bitorder="little")
        mask = self._without_digits(bits.view(np.bool_))
        count = int(mask.sum())
        ending = sum(bool(mask[token]) for token in self._ends)
        return Allowed(mask, count == 1 or count == ending)

    def fitting(self, ids: Sequence[int], more: Sequence[int], *, ends: bool = False) -> int:
        """Return how many ids of `more`, from the first on, the grammar allows after `ids`.

        An end token fits only where the grammar may end; no id after it fits. With `ends` the last
        id of `more` counts as an end token, whatever it is. Raises `UsageError` as `allowed` does.
        """
        self._follow(ids, ())
        last = len(more) - 1
        end = next(
            (at for at, token in enumerate(more) if token in self._ends or (ends and at == last)),
            len(more),
        )
        fit = int(self._matcher.validate_tokens(list(more[:end])))
        self._require_sound()
        for at in range(fit):
            before = [*ids[self._start :], *more[:at]]
            if self._full(before) and not self.allowed(ids, more[:at]).mask[more[at]]:
                return at
        if fit < end or end == len(more):
            return fit
        self._follow(ids, more[:end])
        return end + bool(self._matcher.is_accepting())

    def _full(self, written: Sequence[int]) -> bool:
        """Whether the answer `written` so far ends with as many digits as a number may have."""
        return _FULL.search(bytes_of(self._tokenizer, written[-_TAIL:])) is not None

    def _without_digits(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the mask without further digits, where a number has enough and could end here."""
        if not self._full(self._held):
            return mask
        digits, others = _of_numbers(self._tokenizer)
        left = mask & ~digits
        # In a text, other characters could follow as well.
        return mask if (left & others).any() or not left.any() else left

    def _follow(self, ids: Sequence[int], more: Sequence[int]) -> None:
        """Move the matcher behind the answer in `ids` and then `more`, by a rollback if needed."""
        written = [*ids[self._start :], *more]
        # By the ids alone, so that whoever rolls drafts back has nothing to call.
        same = len(self._held)
        if written[:same] != self._held:
            same = common_prefix(self._held, written)
        if same < len(self._held):
            self._matcher.rollback(len(self._held) - same)
            del self._held[same:]
        if same < len(written):
            self._matcher.consume_tokens(written[same:])
            self._held += written[same:]
        self._require_sound()

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            raise UsageError(
                f"The response format exceeds the limits ({_reason(self._matcher.get_error())})",
                hint="simplify it",
            )


@once
def _of_numbers(tokenizer: Tokenizer) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks: ids that begin with a digit, and ids that cannot come in or after a number."""
    firsts = [tokenizer.piece(token)[:1] for token in range(tokenizer.size)]
    digits = np.array([first.isdigit() for first in firsts])
    return digits, np.array([bool(first) and first not in _IN_NUMBERS for first in firsts])


class Grammar:
    """A compiled grammar over a tokenizer's vocabulary, for any number of answers.

    `shown` maps the ids of control tokens that mark tool calls, such as `[TOOL_CALLS]`, to their
    text in the answer (bytes); other control tokens have no text there. `unheld` lists the keywords
    of JSON schemas that the grammar ignores.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        matcher: Any,
        shown: Mapping[int, bytes],
        *,
        unheld: Sequence[str],
    ) -> None:
        self._matcher, self.shown, self.unheld = matcher, shown, unheld
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    def constraint(self, start: int) -> Constraint:
        """Return a constraint for one answer; `start` is the number of prompt ids before it."""
        with self._lock:
            matcher = self._matcher.deep_copy()
        return Constraint(matcher, self._tokenizer, start=start)


def compiled(
    tokenizer: Tokenizer,
    lark: str,
    shown: Mapping[int, bytes],
    *,
    unheld: Collection[str] = (),
    rules: Mapping[str, str] = MappingProxyType({}),
) -> Grammar:
    """Compile a grammar written in llguidance's dialect of Lark.

    `shown` and `unheld` become attributes of the `Grammar`; to `unheld` are added the keywords that
    llguidance ignores. `rules` maps a rule's name to what errors call that rule. `UsageError`: no
    llguidance, no end token in the tokenizer, an invalid or too large grammar, one that takes over
    `SECONDS` to compile, or `COMPILING` others that are still being compiled after that time.
    """
    library, vocabulary = _library(), _vocabulary(tokenizer)
    # A grammar comes from a client, who may mean harm.
    limits = library.LLParserLimits(initial_lexer_fuel=FUEL, verbose_errors=False)

    def compile() -> Grammar:
        matcher = library.LLMatcher(vocabulary, lark, log_level=0, limits=limits)
        if matcher.is_error():
            reason = _reason(matcher.get_error())
            place = _PLACE.match(reason)
            line = lark.splitlines()[int(place[1]) - 1] if place else ""
            what = rules.get(line.partition(":")[0], "The response format")
            reason = _PLACE.sub("", reason)
            raise UsageError(f"{what} cannot be held to ({reason})", hint="remove that part")
        # Keywords that the library says it does not know, or knows in part.
        warned = "\n".join(matcher.get_grammar_warnings())
        left_out = {*unheld, *_KEYWORD.findall(warned)}
        found = Grammar(tokenizer, matcher, shown, unheld=sorted(left_out))
        # Some are found out only here, such as a schema that nothing fits.
        found.constraint(0).allowed(())
        return found

    return _within(compile)


class _Vocabulary:
    """A tokenizer as llguidance reads it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = tokenizer.special
        self.eos_token_id = min(tokenizer.eos_ids)
        self.special_token_ids: list[int] = []
        self.tokens = [
            _SPECIAL + special[token].encode("utf-8", "surrogatepass")
            if token in special
            else tokenizer.piece(token)
            for token in range(tokenizer.size)
        ]
        # Who holds the tokenizer holds this.
        self._tokenizer = ref(tokenizer)

    def __call__(self, text: str) -> list[int]:
        """Return the ids of text that the grammar forces; called by the library."""
        tokenizer = self._tokenizer()
        found = None if tokenizer is None else ids_of_text(tokenizer, (), text)
        return found or []


@once
def _vocabulary(tokenizer: Tokenizer) -> Any:
    """Return the tokenizer in llguidance's form, cached (takes a second). Raises `UsageError`."""
    if not tokenizer.eos_ids:
        raise UsageError("The edge model has no end token, so it supports no response format")
    library, vocabulary = _library(), _Vocabulary(tokenizer)
    found = library.LLTokenizer(vocabulary, eos_token=sorted(tokenizer.eos_ids))
    vocabulary.tokens.clear()  # it has them now
    return found


def _library() -> Any:
    try:
        return import_module("llguidance")
    except ImportError as error:
        raise UsageError("Answers in a response format need llguidance", hint=INSTALL) from error


_places = threading.Semaphore(COMPILING)
_starting = threading.Lock()


def _within(work: Callable[[], Grammar]) -> Grammar:
    """Run `work` in a thread with a deep stack. Raises `UsageError` if that takes too long."""
    if not _places.acquire(timeout=SECONDS):
        raise UsageError("Too many response formats are being compiled", hint="try again later")
    done: Future[Grammar] = Future()

    def run() -> None:
        try:
            grammar = work()
        except BaseException as error:
            _places.release()
            done.set_exception(error)
        else:
            # First, so that whoever waited can ask again at once.
            _places.release()
            done.set_result(grammar)

    # The stack's size is the process's own: no other thread may start with it.
    with _starting:
        before = threading.stack_size(_STACK)
        try:
            # A compilation cannot be ended, and must not keep the process alive.
            threading.Thread(target=run, name="grammar", daemon=True).start()
        finally:
            threading.stack_size(before)
    try:
        return done.result(SECONDS)
    except TimeoutError as error:
        raise UsageError(
            f"The response format takes more than {SECONDS:g} s to compile", hint="simplify it"
        ) from error


def _reason(words: str) -> str:
    lines = [line.strip() for line in words[: 10 * _LONGEST_REASON].splitlines() if line.strip()]
    return (lines[0] if lines else "no reason given")[:_LONGEST_REASON].rstrip(".")
