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
        +-- CloudProtocolError   the reply was not what the engine promises

The message of each is one sentence that says what is wrong and what to do.
"""

from typing import ClassVar, Literal

Fault = Literal["timeout", "unavailable", "refused", "rejected", "protocol"]
"""The ways a consult fails."""


class EdgewiseError(Exception):
    """Base of all errors raised on purpose.

    `hint` is a further sentence (what to do next), `retryable` says whether the same call can
    succeed later, `request_id` names the engine's request where it gave one.
    """

    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, hint: str | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.request_id = request_id

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} {self.hint}" if self.hint else message


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
    """The cloud model did not answer a consult; `reason` is what a `Token` reports."""

    reason: ClassVar[Fault] = "unavailable"
    retryable = True


class CloudUnavailable(CloudError):
    """No connection could be made or kept."""


class CloudTimeout(CloudError):
    """No answer before the deadline."""

    reason = "timeout"


class CloudRefused(CloudError):
    """The engine refused the key."""

    reason = "refused"
    retryable = False


class CloudRejected(CloudError):
    """The engine declined the request itself, for instance for its length."""

    reason = "rejected"
    retryable = False


class CloudProtocolError(CloudError):
    """The reply was not what the engine promises."""

    reason = "protocol"
    retryable = False
