"""From messages to the ids that the edge model is given, by the chat template in its file."""

from edgewise.prompts.messages import (
    MAX_PROMPT,
    Message,
    Prompt,
    Prompted,
    Tool,
    ToolCall,
    require_text,
)
from edgewise.prompts.prompt import last_turn, message_of, prompt_from, prompt_ids, prompt_of
from edgewise.prompts.rendering import MAX_TEMPLATE, Renderer, prepare, render

__all__ = [
    "MAX_PROMPT",
    "MAX_TEMPLATE",
    "Message",
    "Prompt",
    "Prompted",
    "Renderer",
    "Tool",
    "ToolCall",
    "last_turn",
    "message_of",
    "prepare",
    "prompt_from",
    "prompt_ids",
    "prompt_of",
    "render",
    "require_text",
]
