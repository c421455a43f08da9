"""The errors that Edgewise raises on purpose; modules add subclasses.

    EdgewiseError
    +-- UsageError               something the user gave; exit code 2, HTTP 400
    |   +-- AddressError         a model address that names nothing we can load
    |   +-- ModelError           a file that is not a usable model
    |   +-- ContextOverflow      more tokens than the context holds
    |   +-- VocabularyMismatch   two models that do not share a vocabulary
    |   +-- RouterMismatch       a router made for another edge model
    +-- EdgeError                the server that runs the edge model does not answer
    +-- StaleStepError           a part of an edge step was read that is gone (a bug)
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

Each says what is wrong. `hint`, if set, says what to do about it, and `setting` names the setting
to change; the command line and the server add its flag or field.
"""

from typing import Any, ClassVar, Literal

Fault = Literal["timeout", "unavailable", "refused", "rejected", "protocol", "grammar"]
"""The ways in which a consult (one question to the cloud) fails, as `Token.reason` reports them."""


class EdgewiseError(Exception):
    """Base of all errors that Edgewise raises on purpose.

    `hint` says what to do about the problem; `setting` names the setting or parameter to change for
    that; `request_id` names the failed request in the engine's log, None if there is no such name.
    `where` says how the user reaches the setting, for example by a flag; the command line and the
    server fill it in.
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
        """Return message, hint, `request_id` and `where`, those that are set, as one sentence."""
        parts = [self.message, *([self.hint] if self.hint else [])]
        said = "; ".join(part.rstrip(".") for part in parts)
        request = self.request_id and f"request {self.request_id}"
        said += "".join(f" ({aside})" for aside in (request, self.where) if aside)
        return said + ("." if parts[-1].endswith(".") or self.hint else "")


class UsageError(EdgewiseError):
    """Something that the user gave is wrong, such as a setting, a request or a file."""


def require(holds: bool, setting: str, bound: str, value: object) -> None:
    """Raise `UsageError` unless `holds`, saying "`setting` must be `bound`, not `value`"."""
    if not holds:
        said = setting.replace("_", "-")
        raise UsageError(f"{said} must be {bound}, not {value}", setting=setting)


def reason_of(error: BaseException) -> str:
    """Return a library error's message, or else its type, in one line of up to 200 characters."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


class AddressError(UsageError):
    """A model address that names nothing that can be loaded."""


class ModelError(UsageError):
    """A file or folder that is not a usable model, or a chat template that cannot be used."""


class ContextOverflow(UsageError):
    """A prompt with more tokens than the context holds, or a text too long for any prompt."""


class VocabularyMismatch(UsageError):
    """Two models whose token ids do not mean the same bytes."""


class RouterMismatch(UsageError):
    """A router checkpoint made for another edge model."""


class EdgeError(EdgewiseError):
    """The server that runs the edge model does not answer, or not as it should."""


class StaleStepError(EdgewiseError):
    """A part of a `Step` (the edge model's prediction) was read that is not, or no longer, there.

    The next decode overwrites all that the session was not opened to keep (see `Needs`).
    """


class CloudError(EdgewiseError):
    """The cloud model did not answer a consult (one question to the cloud model).

    `reason` is the failure's name, such as "timeout" (see `Fault`); it becomes the `Token.reason`
    of the token that the edge model then writes. `declined` is True if the engine itself replied,
    with an error.
    """

    reason: ClassVar[Fault] = "unavailable"
    declined: bool = False


class CloudUnavailable(CloudError):
    """No connection to the cloud, or no room there; `retry_after`: seconds to wait, if known."""

    retry_after: float | None = None


class CloudTimeout(CloudError):
    """The cloud did not answer before the deadline."""

    reason = "timeout"


class CloudRefused(CloudError):
    """The cloud's engine refused the API key."""

    reason = "refused"


class CloudRejected(CloudError):
    """The cloud's engine declined the request itself, for instance for its length.

    `own` is True if this request's messages or sampling are why; other requests may be accepted.
    """

    reason = "rejected"

    def __init__(self, message: str, *, own: bool = False, **options: Any) -> None:
        super().__init__(message, **options)
        self.own = own


class OtherVocabulary(CloudRejected):
    """The cloud model was replaced after its check, and the new one's ids mean other bytes."""


class NothingUsable(CloudRejected):
    """A valid completion of which nothing can be written into the answer.

    For example, a cloud with another vocabulary wrote no whole word. `meter` is a `Completion`
    without ids that holds what the provider bills for it.
    """

    meter: Any = None  # a `Completion` without ids: what it is billed


class BreaksGrammar(NothingUsable):
    """A valid completion that the response format does not allow here."""

    reason = "grammar"


class Blocked(CloudRejected):
    """Nothing was sent, since the context filter (which hides private words) forbids it.

    `open` is True if the only reason is that the text ends inside a word, which may turn out to be
    private; the cloud can be asked again once the word is complete.
    """

    def __init__(self, message: str, *, open: bool = False) -> None:
        super().__init__(message)
        self.open = open


class CloudProtocolError(CloudError):
    """The reply was not what the engine promises, for instance more tokens than were asked for.

    In a gateway, also: a message of a device that breaks the protocol.
    """

    reason = "protocol"
