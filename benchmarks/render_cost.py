"""What rendering in another process costs a request: `python -m benchmarks.render_cost`.

The same conversations with the same template, in alternating blocks: compiled and rendered in this
process (what the other one does, less the way there and back), and by `Renderer`. Then the start
of such a process, and what guarding control tokens adds to `prompt_ids` of a text with angle
brackets, which is rendered twice. Prints Markdown.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from statistics import median

import numpy as np

from benchmarks.markdown import line
from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.prompts import MAX_PROMPT, Message, Renderer, prompt_ids
from edgewise.prompts.worker import render as render_here

# In the shape of published ones: roles, tools that are not there, a default system message.
TEMPLATE = (
    "{%- if tools %}{{- tools | tojson }}{%- endif %}"
    "{%- if messages[0].role != 'system' %}"
    "{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role == 'assistant' %}"
    "{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}"
    "{%- else %}{%- set content = message.content | trim %}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
TALKS = {"1 turn, 100 characters": (1, 100), "9 turns, 5,000": (9, 555), "1 turn, 1 MB": (1, 10**6)}


def variables(turns: int, characters: int) -> dict[str, object]:
    """A conversation as a template sees it."""
    text = ("The quick brown fox jumps. " * (characters // 27 + 1))[:characters]
    roles = ["user" if at % 2 == 0 else "assistant" for at in range(turns)]
    messages = [{"role": role, "content": text} for role in roles]
    return {"messages": messages, "add_generation_prompt": True, "bos_token": "", "eos_token": ""}


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Seconds of each call."""
    found: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return found


def alternating(
    here: Callable[[], object], there: Callable[[], object], blocks: int, times: int
) -> tuple[list[float], list[float]]:
    """Seconds of each call of both, in turns of `times`."""
    ones: list[float] = []
    others: list[float] = []
    for _ in range(blocks):
        ones += timed(here, times)
        others += timed(there, times)
    return ones, others


def cell(seconds: Sequence[float]) -> str:
    """Median, and the first and the ninth decile, in microseconds."""
    low, middle, high = 1e6 * np.quantile(seconds, [0.1, 0.5, 0.9])
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def compared(ones: Sequence[float], others: Sequence[float]) -> list[str]:
    """Cells of a row."""
    low, high = median(ones), median(others)
    more = [f"{1e6 * (high - low):.0f}", f"{high / low:.1f}"]
    return [cell(ones), cell(others), *more, f"{len(ones)}"]


def starts(count: int) -> list[float]:
    """Seconds from nothing to the first text."""
    found: list[float] = []
    for _ in range(count):
        with closing(Renderer()) as renderer:
            found += timed(partial(renderer.render, TEMPLATE, variables(1, 100)), 1)
    return found


def guarded(blocks: int, times: int) -> tuple[list[float], list[float]]:
    """Seconds of `prompt_ids` for a text, and for one of the same length in angle brackets."""
    with LlamaModel(bundled("edge"), threads=1) as model:
        plain, code = ([Message("user", f"{a}b{c}" * 100)] for a, c in (("a", "d"), ("<", ">")))
        return alternating(
            lambda: prompt_ids(model.tokenizer, plain),
            lambda: prompt_ids(model.tokenizer, code),
            blocks,
            times,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--starts", type=int, default=20)
    options = parser.parse_args()
    renderer = Renderer()
    head = ["conversation", "here, us", "other process, us", "more, us", "ratio", "n each"]
    lines = line(head, head=True)
    for name, (turns, characters) in TALKS.items():
        talk = variables(turns, characters)
        assert render_here(TEMPLATE, talk, MAX_PROMPT) == renderer.render(TEMPLATE, talk)
        here, there = alternating(
            partial(render_here, TEMPLATE, talk, MAX_PROMPT),
            partial(renderer.render, TEMPLATE, talk),
            options.blocks,
            options.times,
        )
        lines += line([name, *compared(here, there)])
    renderer.close()
    plain, code = guarded(options.blocks, options.times)
    lines += line(["ids: plain, angle brackets", *compared(plain, code)])
    begun = starts(options.starts)
    lines += line(["start to first text", "", cell(begun), "", "", f"{len(begun)}"])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
