"""The room that a context leaves for an answer."""

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.errors import ContextOverflow
from edgewise.evaluation.systems import question_ids
from edgewise.evaluation.tasks.base import Task


def room(prompt: int, max_tokens: int, *contexts: int) -> int:
    """The longest answer after `prompt` ids, tokens: as the decoder's, it ends at a context's end.

    Its last token may stand behind the context, since nothing is computed after it.
    """
    return min([max_tokens, *(context - prompt + 1 for context in contexts)])


def contexts_of(edge: EdgeModel, cloud: CloudModel) -> tuple[int, ...]:
    """Longest sequences, ids; that of a cloud elsewhere is not known here."""
    return (edge.context,) if cloud.local is None else (edge.context, cloud.local.context)


def require_room(task: Task, edge: EdgeModel, cloud: CloudModel) -> None:
    """Raise `ContextOverflow` for a question that leaves no room for an answer."""
    context = min(contexts_of(edge, cloud))
    for question in task.questions:
        size = len(question_ids(edge.tokenizer, question))
        if size > context:
            raise ContextOverflow(
                f"Question {question.id!r} of {task.name} has {size} tokens and the context holds "
                f"{context}",
                hint="leave it out, or raise the context",
                setting="ctx",
            )
