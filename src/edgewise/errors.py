"""Every error that Edgewise raises on purpose.

    EdgewiseError
    +-- UsageError               something the user gave; exit code 2, HTTP 400
    |   +-- AddressError         a model address that names nothing we can load
    |   +-- ModelError           a file that is not a usable model
    |   +-- ContextOverflow      more tokens than the context holds
    |   +-- VocabularyMismatch   two models that do not share a vocabulary
    |   +-- RouterMismatch       a router made for another edge model
    +-- EdgeError                the server that runs the edge model does not answer
    +-- StaleStepError           a view into the engine read after its next decode (a bug)
    +-- CloudError               the cloud model did not answer a consult
        +-- CloudUnavailable     no connection, or the engine is down
        +-- CloudTimeout         no answer before the deadline
        +-- CloudRefused         the key was refused
        +-- CloudRejected        the engine understood the request and declined it
        |   +-- OtherVocabulary  the cloud model was replaced by one with other ids
        |   +-- NothingUsable    a valid completion of which nothing can be used here
        |   |   +-- BreaksGrammar  the response format does not allow it
        |   +-- Blocked          nothing was sent: it may not leave the device
        +-- CloudProtocolError   the reply was not what the engine promises

Each says what is wrong and, as a hint, what to do. `setting` names the setting that does it; the
command line and the server add the flag or field.
"""

from typing import Any, ClassVar, Literal

Fault = Literal["timeout", "unavailable", "refused", "rejected", "protocol", "grammar"]
"""The ways a consult fails."""


class EdgewiseError(Exception):
    """Base of all errors raised on purpose.

    `hint` says what to do next, `setting` names the setting or parameter that does it, and
    `request_id` the engine's request where it gave one. `where` is how the reader of the sentence
    reaches the setting, such as a flag; the command line and the server say so.
    """

    where: str | None = None

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        setting: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint, self.setting, self.request_id = hint, setting, request_id

    def __str__(self) -> str:
        """The message with its hint and its request, as one sentence."""
        parts = [self.message, *([self.hint] if self.hint else [])]
        said = "; ".join(part.rstrip(".") for part in parts)
        request = self.request_id and f"request {self.request_id}"
        said += "".join(f" ({aside})" for aside in (request, self.where) if aside)
        return said + ("." if parts[-1].endswith(".") or self.hint else "")


class UsageError(EdgewiseError):
    """Bad input; nothing was lost."""


def require(holds: bool, setting: str, bound: str, value: object) -> None:
    """Raise `UsageError` for the value of a setting that is not within its bound."""
    if not holds:
        said = setting.replace("_", "-")
        raise UsageError(f"{said} must be {bound}, not {value}", setting=setting)


def reason_of(error: BaseException) -> str:
    """A library's error message, shortened."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


class AddressError(UsageError):
    """A model address that names nothing we can load."""


class ModelError(UsageError):
    """A file that is not a usable model."""


class ContextOverflow(UsageError):
    """More tokens than the context holds."""


class VocabularyMismatch(UsageError):
    """Two models whose token ids do not mean the same bytes."""


class RouterMismatch(UsageError):
    """A router checkpoint made for another edge model."""


class EdgeError(EdgewiseError):
    """The server that runs the edge model does not answer, or not as it should."""


class StaleStepError(EdgewiseError):
    """A view into the engine was read after the engine's next decode."""


class CloudError(EdgewiseError):
    """The cloud model did not answer a consult; `reason` is what a `Token` reports.

    `declined`: the engine itself replied that it does not answer.
    """

    reason: ClassVar[Fault] = "unavailable"
    declined: bool = False


class CloudUnavailable(CloudError):
    """No connection, or no room now: for `retry_after` seconds, where it said so."""

    retry_after: float | None = None


class CloudTimeout(CloudError):
    """No answer before the deadline."""

    reason = "timeout"


class CloudRefused(CloudError):
    """The engine refused the key."""

    reason = "refused"


class CloudRejected(CloudError):
    """The engine declined the request itself, for instance for its length."""

    reason = "rejected"


class OtherVocabulary(CloudRejected):
    """The cloud model, checked once, was replaced by one whose ids mean other bytes."""


class NothingUsable(CloudRejected):
    """A valid completion of which nothing can be used here: it has no whole word, for example."""

    meter: Any = None  # a `Completion` without ids: what it is billed


class BreaksGrammar(NothingUsable):
    """A valid completion that the response format does not allow here."""

    reason = "grammar"


class Blocked(CloudRejected):
    """Nothing was sent: the context filter forbids it. `open`: only until a word is whole."""

    def __init__(self, message: str, *, open: bool = False) -> None:
        super().__init__(message)
        self.open = open


class CloudProtocolError(CloudError):
    """The reply was not what the engine promises."""

    reason = "protocol"
