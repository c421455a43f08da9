"""What requests may say of an answer's form, in OpenAI's terms: JSON, and calls of tools."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from edgewise.grammar.form import MAX_TOOLS
from edgewise.server.strict import Strict

MAX_CALLS = 128
MAX_ARGUMENTS = 1 << 20

FormName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Description = Annotated[str, Field(max_length=1 << 16)]
CallId = Annotated[str, Field(min_length=1, max_length=200)]


class TextFormat(Strict):
    """Answers are plain text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Answers are a JSON object."""

    type: Literal["json_object"]


class JsonSchemaText(Strict):
    """A schema and what it is called. Answers are held to it, `strict` or not."""

    name: FormName
    description: Description | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    """Answers are JSON that a schema allows."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaText


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class FunctionDefinition(Strict):
    """A function; its arguments are held to `parameters`.

    What of these no grammar can be made of is refused where it is `strict`, and said otherwise.
    """

    name: FormName
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Strict):
    """A tool is a function."""

    type: Literal["function"]
    function: FunctionDefinition


class OtherTool(BaseModel):
    """A tool that is not ours to run, such as a provider's search: no answer calls it."""

    type: Annotated[str, Field(min_length=1, max_length=200)]


class FunctionName(Strict):
    """Which of them."""

    name: FormName


class NamedTool(Strict):
    """The tool that has to be called."""

    type: Literal["function"]
    function: FunctionName


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


class FunctionCall(Strict):
    """A call; `arguments` is JSON text."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: Annotated[str, Field(max_length=MAX_ARGUMENTS)]


class MessageToolCall(Strict):
    """A call that an assistant's message made."""

    id: CallId
    type: Literal["function"] = "function"
    function: FunctionCall


MessageToolCalls = Annotated[list[MessageToolCall], Field(max_length=MAX_CALLS)]


class CalledFunction(BaseModel):
    """Which function an answer calls, and with what: JSON text."""

    name: str
    arguments: str


class AnswerToolCall(BaseModel):
    """A call that an answer makes."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
