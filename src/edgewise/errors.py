"""Every error that Edgewise raises on purpose.

    EdgewiseError
    +-- UsageError               something the user gave; exit code 2, HTTP 400
    |   +-- AddressError         a model address that names nothing we can load
    |   +-- ModelError           a file that is no usable model
    |   +-- ContextOverflow      more tokens than the context holds
    |   +-- VocabularyMismatch   two models that do not share a vocabulary
    |   +-- RouterMismatch       a router made for another edge model
    +-- StaleStepError           a view into the engine read after its next decode (a bug)
    +-- CloudError               the cloud model did not answer a consult
        +-- CloudUnavailable     no connection, or the engine is down
        +-- CloudTimeout         no answer before the deadline
        +-- CloudRefused         the key was refused
        +-- CloudRejected        the engine understood the request and declined it
        |   +-- OtherVocabulary  the cloud model was replaced by one with other ids
        |   +-- NothingUsable    it answered well, but with nothing for this place
        |   |   +-- BreaksGrammar  not with what the answer's form allows
        |   +-- Withheld         nothing was sent: it may not leave the device
        +-- CloudProtocolError   the reply was not what the engine promises

Each says what is wrong and, as a hint, what to do, in words that hold wherever it is read. Which
flag or field that is, is for the command line and the server to say: `setting` names it.
"""

from typing import ClassVar, Literal

Fault = Literal["timeout", "unavailable", "refused", "rejected", "protocol", "grammar"]
"""The ways a consult fails."""


class EdgewiseError(Exception):
    """Base of all errors raised on purpose.

    `hint` says what to do next, `setting` names the setting or parameter that does it, and
    `request_id` the engine's request where it gave one.
    """

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
        return self.told()

    def told(self, where: str | None = None) -> str:
        """One sentence; `where` is how its reader reaches the setting, such as a flag."""
        parts = [self.message, *([self.hint] if self.hint else [])]
        said = "; ".join(part.rstrip(".") for part in parts)
        asides = [f"request {self.request_id}"] if self.request_id else []
        said += "".join(f" ({aside})" for aside in [*asides, *([where] if where else [])])
        return said + ("." if parts[-1].endswith(".") or self.hint else "")


class UsageError(EdgewiseError):
    """Bad input; nothing was lost."""


class AddressError(UsageError):
    """A model address that names nothing we can load."""


class ModelError(UsageError):
    """A file that is no usable model."""


class ContextOverflow(UsageError):
    """More tokens than the context holds."""


class VocabularyMismatch(UsageError):
    """Two models whose token ids do not mean the same bytes."""


class RouterMismatch(UsageError):
    """A router checkpoint made for another edge model."""


class StaleStepError(EdgewiseError):
    """A view into the engine was read after the engine's next decode."""


class CloudError(EdgewiseError):
    """The cloud model did not answer a consult; `reason` is what a `Token` reports.

    `declined`: what was asked said no by itself, so it wrote nothing and bills nothing. `status` is
    the HTTP status of the answer, None where there was none or it said so otherwise.
    """

    reason: ClassVar[Fault] = "unavailable"
    declined: bool = False
    status: int | None = None


class CloudUnavailable(CloudError):
    """No connection could be made or kept, or the engine has no room now.

    `retry_after` is in how many seconds it wants to be asked again, None where it did not say.
    """

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
    """The cloud model, proven once, was replaced by one whose ids mean other bytes."""


class NothingUsable(CloudRejected):
    """The cloud answered well, and nothing of it can be taken at this place: no whole word, say."""


class BreaksGrammar(NothingUsable):
    """The cloud answered well, but not with what the answer's form allows at this place."""

    reason = "grammar"


class Withheld(CloudRejected):
    """Nothing was sent, since what would have been may not leave the device.

    With `open` it is the answer's end, which may yet become a word that is shown otherwise: a
    little later it may be sent.
    """

    def __init__(self, message: str, *, open: bool = False) -> None:
        super().__init__(message)
        self.open = open


class CloudProtocolError(CloudError):
    """The reply was not what the engine promises."""

    reason = "protocol"
