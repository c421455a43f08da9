"""The room that a context leaves for an answer."""

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel


def room(prompt: int, max_tokens: int, *contexts: int) -> int:
    """The longest answer after `prompt` ids, tokens: as the decoder's, it ends at a context's end.

    Its last token may stand behind the context, since nothing is computed after it.
    """
    return min([max_tokens, *(context - prompt + 1 for context in contexts)])


def contexts_of(edge: EdgeModel, cloud: CloudModel | None) -> tuple[int, ...]:
    """Longest sequences, ids; that of a cloud elsewhere is not known here."""
    local = None if cloud is None else cloud.local
    return (edge.context,) if local is None else (edge.context, local.context)
