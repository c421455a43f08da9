"""How long speculative decoding takes: in closed form, and replayed over measured agreement.

`expected` takes agreement as independent from token to token, as Leviathan et al. (2023, arXiv
2211.17192, section 3.1) do; real agreement comes in runs. `computed_time` replays the very tokens
of an answer on which the edge agreed with the cloud, so it stands for a run where an engine cannot
verify; a figure from it is computed, not measured.
"""

import math
from collections.abc import Sequence

from edgewise.errors import UsageError


def expected(
    acceptance: float,
    draft: int,
    edge_step: float,
    round_trip: float,
    verify: float,
    *,
    pipelined: bool = False,
    edge_pair: float | None = None,
) -> float:
    """Seconds a token, in the long run.

    A token is accepted with the probability `acceptance`, the edge makes one in `edge_step`, a
    draft of `draft` tokens is verified in `verify` behind a `round_trip`. A pass over two ids takes
    `edge_pair` (None: as long as one): whole drafts end with a token that the edge has not read.

    Plain: a round brings (1 - a^(k + 1)) / (1 - a) tokens. Pipelined: the edge never waits, but a
    rejected token is known of only when the reply to the draft before it, or to its own, is here:
    (1 - a) (k t (a / (1 - a^k) + 1 - a) + W), where W is round trip and verification in whole
    steps, since a pass that was begun is ended.
    """
    _require(acceptance, draft, edge_step, round_trip + verify)
    a, k = acceptance, draft
    if pipelined:
        late = math.ceil((round_trip + verify) / edge_step - 1e-9) * edge_step
        drafts = 1 / k if a == 1 else (1 - a) * (a / (1 - a**k) + 1 - a)
        return k * edge_step * drafts + (1 - a) * late
    second = (edge_step if edge_pair is None else edge_pair) - edge_step
    tokens = k + 1 if a == 1 else (1 - a ** (k + 1)) / (1 - a)
    return (k * edge_step + a**k * second + round_trip + verify) / tokens


def computed_time(
    matches: Sequence[bool],
    *,
    draft: int,
    pipelined: bool,
    edge_step: float,
    round_trip: float,
    verify: float,
    edge_prompt: float = 0.0,
    verify_prompt: float | None = None,
    edge_pair: float | None = None,
) -> float:
    """Seconds of one answer, replayed as `Speculative` works.

    `matches` says for each token of the cloud's answer whether the edge, given the cloud's tokens
    before it, would have written it. The edge reads the prompt in `edge_prompt`, the cloud in
    `verify_prompt` (None: as a draft), at the same time.
    """
    if not matches:
        raise UsageError("An answer has at least 1 token.")
    _require(0.0, draft, edge_step, round_trip + verify)
    first = round_trip + (verify if verify_prompt is None else verify_prompt)
    late = round_trip + verify
    if pipelined:
        return _pipelined(matches, draft, edge_step, first, late, edge_prompt)
    second = (edge_step if edge_pair is None else edge_pair) - edge_step
    return _plain(matches, draft, edge_step, first, late, edge_prompt, second)


def _plain(
    matches: Sequence[bool],
    draft: int,
    step: float,
    first: float,
    late: float,
    prompt: float,
    second: float,
) -> float:
    """The edge waits for every reply; `second` is what another id adds to a pass."""
    # The cloud writes the first token while the edge reads the prompt.
    at = 1
    seconds = first if len(matches) == 1 else max(first, prompt)
    whole = False
    while at < len(matches):
        size = _drafted(matches, at, draft)
        accepted = _run(matches, at, size)
        seconds += size * step + whole * second + late
        whole = accepted == size
        at += accepted + 1
    return seconds


def _pipelined(
    matches: Sequence[bool], draft: int, step: float, first: float, late: float, prompt: float
) -> float:
    """From one rejected token to the next: that which tells of it was sent a while before."""
    if len(matches) == 1:
        return first
    at, begun, read = 0, 0.0, prompt
    while True:
        left = len(matches) - at
        run = _run(matches, at, left)
        # The draft whose reply tells of the run's end, and how many tokens were made by then: the
        # edge ends it early only where it ends the answer.
        told = draft * max(1, math.ceil(min(run, left - 1) / draft))
        made = min(told, left) if run == left else told
        # The first time, the pass that makes a run's first token reads the prompt.
        known = begun + read + (made - 1) * step + late
        if at == 0:
            known = first if run == 0 else max(known, first)
        if run >= left - 1:
            return known
        # A pass that was begun is ended.
        passes = max(0, math.ceil((known - begun - read) / step - 1e-9))
        begun = begun + read + passes * step
        at, read = at + run + 1, step


def _drafted(matches: Sequence[bool], at: int, draft: int) -> int:
    """Tokens of a draft: it ends with the answer where the edge goes that way."""
    left = len(matches) - at
    return left if left < draft and _run(matches, at, left) == left else draft


def _run(matches: Sequence[bool], at: int, most: int) -> int:
    """How many from `at` on agree, at most so many."""
    end = min(len(matches), at + most)
    return next((i for i in range(at, end) if not matches[i]), end) - at


def _require(acceptance: float, draft: int, step: float, wait: float) -> None:
    if not 0 <= acceptance <= 1 or draft < 1 or step <= 0 or wait < 0:
        raise UsageError(
            "An acceptance is from 0 to 1, a draft has at least 1 token, a step of the edge takes "
            "more than no time, a verification at least none."
        )
