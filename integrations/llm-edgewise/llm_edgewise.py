"""Edgewise as a model of `llm`: a small model here, a large one where it counts."""

import sys
from collections.abc import Iterator
from typing import Any

import llm
from msgspec.structs import asdict

from edgewise import Pair, Token, settings
from edgewise.errors import EdgewiseError
from edgewise.events import Finished

MARKS = {"plain": ("", ""), "bold": ("**", "**"), "red": ("\x1b[31m", "\x1b[0m")}


@llm.hookimpl
def register_models(register: Any) -> None:
    """`llm -m edgewise`."""
    register(Edgewise())


class Edgewise(llm.Model):
    """Reads `edgewise.toml` and `EDGEWISE_*`, as the commands do."""

    model_id = "edgewise"
    can_stream = True

    class Options(llm.Options):
        """What one answer may have."""

        edge: str | None = None
        cloud: str | None = None
        cloud_share: float | None = None
        max_tokens: int | None = None
        mark: str = "plain"

    def __init__(self) -> None:
        self._pair: Pair | None = None
        self._opened: object = None

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        """The answer as it is written; then one line on stderr says who wrote how much."""
        options = prompt.options
        if options.mark not in MARKS:
            raise llm.ModelError(f"mark is {', '.join(MARKS)}, not {options.mark!r}.")
        before, after = MARKS[options.mark]
        messages = [
            {
                "role": message.role,
                "content": "".join(getattr(p, "text", "") for p in message.parts),
            }
            for message in prompt.messages
        ]
        limit = {} if options.max_tokens is None else {"max_tokens": options.max_tokens}
        try:
            for event in self._open(options).stream(messages, **limit):
                if isinstance(event, Token):
                    text = event.text
                    marked = event.source == "cloud" and text.strip()
                    yield f"{before}{text}{after}" if marked else text
                elif isinstance(event, Finished):
                    yield event.text
                    self._report(event, response)
        except EdgewiseError as error:
            raise llm.ModelError(str(error)) from error

    def _open(self, options: Any) -> Pair:
        """The pair of these options, loaded once: `llm chat` asks many times."""
        named = ("edge", "cloud", "cloud_share")
        chosen = {
            name: getattr(options, name) for name in named if getattr(options, name) is not None
        }
        if self._pair is None or self._opened != chosen:
            if self._pair is not None:
                self._pair.close()
            loaded, _ = settings.load(chosen)
            fields = {name: value for name, value in asdict(loaded).items() if value is not None}
            self._pair, self._opened = Pair(**fields), chosen
        return self._pair

    def _report(self, end: Finished, response: Any) -> None:
        usage = end.usage
        response.set_usage(
            input=usage.prompt_tokens,
            output=usage.edge_tokens + usage.cloud_tokens,
            details={"cloud_tokens": usage.cloud_tokens},
        )
        cost = f" · {usage.cost.paid:.6f} {usage.cost.currency}".rstrip() if usage.cost else ""
        print(
            f"\n{usage.edge_tokens} edge + {usage.cloud_tokens} cloud tokens{cost}",
            file=sys.stderr,
        )
