"""What a token costs more in an answer that is held to a form: `python -m benchmarks.form_cost`.

The processor time between two calls of `llama_decode`, as `benchmarks.own_cost` takes it, of plain
answers and of such as a grammar allows: JSON of a schema, and a choice between text and calls of
some tools; greedy and drawn. Also how long a grammar takes to compile. Blocks take turns; medians
over tokens. With the weights of the default, which are random, texts are nonsense in the form.
Prints Markdown.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.edge_speed import gguf
from benchmarks.markdown import line
from benchmarks.own_cost import decodes
from edgewise.edge.llamacpp import LlamaModel
from edgewise.grammar.compiled import Grammar
from edgewise.grammar.form import AnswerForm, grammar_of
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Tool
from edgewise.routers.constant import Constant
from edgewise.sampling import Sampling
from edgewise_lab.bench.speed import random_prompt

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}{% endfor %}{{ tools }}"
)
# Neither ends by itself, so that a block has all its tokens.
WORDS = {"type": "array", "items": {"type": "string"}, "minItems": 100_000}
FIELDS = ("path", "pattern", "command", "description", "limit")


def tools(count: int) -> tuple[Tool, ...]:
    """As an agent has them."""
    arguments = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in FIELDS},
        "required": list(FIELDS[:2]),
        "additionalProperties": False,
    }
    return tuple(Tool(f"tool_{number}", "Does it.", arguments) for number in range(count))


def forms(count: int) -> Mapping[str, AnswerForm]:
    called = tools(count)
    return {
        "JSON": AnswerForm(schema=WORDS),
        f"text or calls of {count} tools": AnswerForm(tools=called),
        f"a call of one of {count} tools": AnswerForm(tools=called, required=True),
    }


def block(
    decoder: Decoder, prompt: Sequence[int], tokens: int, grammar: Grammar | None, drawn: float
) -> list[float]:
    """Seconds beside the decodes, token by token."""
    sampling = Sampling(temperature=drawn, seed=0)
    with decodes() as made:
        decoder.generate(prompt, max_tokens=tokens, grammar=grammar, sampling=sampling)
    # What stands before is the prompt's.
    return [after.begun - before.ended for before, after in pairwise(made[-tokens + 1 :])]


def measured(options: argparse.Namespace, folder: Path) -> list[str]:
    room = options.context + options.tokens + 2
    path = gguf(folder, options.model)
    with LlamaModel(path, context=room, threads=options.threads, gpu_layers=0) as model:
        model.tokenizer.chat_template = TEMPLATE
        decoder = Decoder(model, router=Constant(0.0), policy=Policy())
        prompt = random_prompt(model, options.context)
        grammars: dict[str, Grammar | None] = {"plain": None}
        compiling = {"plain": 0.0}
        grammar_of(model.tokenizer, AnswerForm(schema={}))  # reads the vocabulary, once
        for name, form in forms(options.tools).items():
            begun = time.monotonic()
            grammars[name] = grammar_of(model.tokenizer, form)
            compiling[name] = time.monotonic() - begun
        lines = line(
            ["answer", "greedy, µs a token", "drawn, µs a token", "compiled, ms"], head=True
        )
        spent: dict[tuple[str, float], list[float]] = {}
        for number in range(options.blocks):
            order = list(grammars)
            for name in order if number % 2 else order[::-1]:
                for drawn in (0.0, 0.7):
                    found = block(decoder, prompt, options.tokens, grammars[name], drawn)
                    spent.setdefault((name, drawn), []).append(median(found or [0.0]))
        for name in grammars:
            each = [f"{shown(spent[name, drawn])}" for drawn in (0.0, 0.7)]
            lines += line([name, *each, f"{1000 * compiling[name]:.1f}"])
        size, threads = model.tokenizer.size, options.threads or "as many threads as cores"
        return [
            *lines,
            f"\n{options.model}, {size:,} ids, context {options.context}, {options.blocks} blocks "
            f"of {options.tokens} tokens; medians, lowest to highest; threads: {threads}.",
        ]


def shown(seconds: Sequence[float]) -> str:
    """Microseconds over blocks."""
    found = [1e6 * one for one in seconds]
    return f"{median(found):.0f} ({min(found):.0f} to {max(found):.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="0.5b", help="0.5b, smollm2, or a GGUF's path")
    parser.add_argument("--context", type=int, default=128, help="ids of the prompt")
    parser.add_argument("--tokens", type=int, default=24, help="a block")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--tools", type=int, default=25)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--folder", type=Path, help="where the random model is kept")
    options = parser.parse_args()
    with TemporaryDirectory() as scratch:
        print("\n".join(measured(options, options.folder or Path(scratch))))


if __name__ == "__main__":
    main()
