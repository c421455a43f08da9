"""A cloud of another vocabulary whose tokenizer nobody named: the one that its engine names.

What an engine says decides nothing. It is where to look, and what lies there must give the ids that
the engine gives for the fixed strings before it is used.
"""

from edgewise.cloud.base import CloudModel
from edgewise.cloud.bridge import bridged
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.view import Viewing
from edgewise.edge.base import Tokenizer
from edgewise.edge.tokenizer import open_repository_tokenizer, open_tokenizer
from edgewise.engines.base import Engine
from edgewise.engines.tokenizer_address import is_repository
from edgewise.errors import CloudError, UsageError, VocabularyMismatch

ASK_SECONDS = 10.0
"""How long an engine may take to say where its tokenizer lies."""


def linked(
    cloud: CloudModel,
    edge: Tokenizer,
    own: Tokenizer | None = None,
    viewing: Viewing | None = None,
) -> tuple[CloudModel, str]:
    """`cloud` once it is checked, behind a bridge where its vocabulary is another; how it was.

    `own` is its tokenizer; without one an engine is asked where its lies. `viewing` is what it gets
    to see. Raises as `CloudModel.check`; `cloud` stays open then.
    """
    link = bridged(cloud, edge, own, viewing)
    try:
        return link, link.check(edge)
    except VocabularyMismatch as error:
        if own is not None or not isinstance(cloud, EngineCloud):
            raise
        address, found = _found(cloud, error)
    link = bridged(cloud, edge, found, viewing)
    return link, f"{link.check(edge)}; its tokenizer is that of {address!r}, which the engine named"


def _found(cloud: EngineCloud, mismatch: VocabularyMismatch) -> tuple[str, Tokenizer]:
    """Where the engine's tokenizer lies, and it; raises `VocabularyMismatch`, with why."""
    if cloud.engine.vocabulary is None:
        raise mismatch
    try:
        address = cloud.submit(cloud.engine.tokenizer_named(), ASK_SECONDS).result()
    except CloudError:
        address = None
    if address is None:
        raise mismatch
    try:
        return address, _proven(address, cloud.engine)
    except UsageError as why:
        raise VocabularyMismatch(
            f"{mismatch.message.rstrip('.')} (the engine names {address!r}, which does not help: "
            f"{why.message.rstrip('.')})",
            hint=mismatch.hint,
            setting=mismatch.setting,
        ) from why


def _proven(address: str, engine: Engine) -> Tokenizer:
    repository = is_repository(address)
    found = open_repository_tokenizer(address) if repository else open_tokenizer(address)
    try:
        engine.prove(found)
    except VocabularyMismatch as error:
        raise VocabularyMismatch("it splits text into other ids than the engine") from error
    return found
