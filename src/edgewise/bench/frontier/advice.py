"""Two sentences on a user's own pair: what is fastest and cheapest, and what routing buys here.

They say what was measured and what was not: no formula knows how right answers are.
"""

from typing import Literal

import msgspec
from msgspec.structs import replace

from edgewise.bench.frontier.formulas import (
    MeasuredConditions,
    Money,
    bill_cloud,
    bill_pair,
    break_even,
    per_token,
)
from edgewise.bench.frontier.paces import CloudPace
from edgewise.bench.link import LinkRow

PROMPT, ANSWER = 500, 300
"""Tokens of the conversation that is reckoned with."""

TYPICAL_CHANGED = 0.5
"""d where it was not measured: 0.44 to 0.60 in docs/results.md."""

System = Literal["edge", "routing", "streaming"]

_NAMES: dict[System, str] = {
    "edge": "the edge alone",
    "routing": "routing",
    "streaming": "streaming from the cloud",
}


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What is advised, and what it follows from; seconds a token.

    `streaming` is None where it could not be measured, `bill` (routing over streaming) without a
    price. Up to `break_even`, a share, routing is no slower than streaming.
    """

    fastest: System
    cheapest: System | None
    edge: float
    routing: float
    streaming: float | None
    break_even: float | None
    bill: float | None
    sentences: tuple[str, str]


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pair: speeds as in `Advice`, and where they come from.

    `share` is p, of which `changed` is d; `assumed` where these were not measured. `free` says why
    nothing is billed, where that is so, `place` of what the speeds are.
    """

    edge: float
    routing: float
    streaming: float | None
    share: float
    changed: float
    assumed: bool
    break_even: float | None
    bill: float | None = None
    free: str | None = None
    place: str = ""


def outlook(
    at: MeasuredConditions,
    *,
    streams: bool,
    assumed: bool,
    price: Money | None = None,
    local: bool = False,
) -> Outlook:
    """By the formulas, over answers of `ANSWER` tokens whose prompt both have read.

    `streams` is False where `cloud_token` could not be measured.
    """
    usual = replace(at, prompt=PROMPT, answer=ANSWER, edge_prompt=at.step, cloud_prompt=at.consult)
    billed = None if price is None else bill_cloud(usual, price)
    free = "the cloud model runs on this device" if local and price is None else None
    free = "its price is nothing" if billed == 0 else free
    return Outlook(
        edge=per_token("edge", usual),
        routing=per_token("ahead", usual),
        streaming=per_token("cloud", usual) if streams else None,
        share=at.asked,
        changed=at.changed,
        assumed=assumed,
        break_even=break_even(usual, "ahead") if streams else None,
        bill=bill_pair(usual, price) / billed if price and billed else None,
        free=free,
        place=f"over an answer of {ANSWER} tokens, once the prompt is read",
    )


def outlook_over(row: LinkRow, cloud: CloudPace, engine: float) -> Outlook:
    """As a link's row has it; what the cloud streams at is by the formula.

    `cloud` was measured without the link, and each of its tokens is `engine` seconds slower on it.
    """
    at = MeasuredConditions(
        step=row.step,
        round_trip=row.round_trip,
        consult=cloud.consult + engine,
        cloud_token=(cloud.token or 0.0) + engine,
        edge_prompt=row.step,
        cloud_prompt=cloud.consult + engine,
        prompt=PROMPT,
        answer=ANSWER,
        asked=row.consults,
        changed=row.changed,
    )
    streams = cloud.token is not None
    slower = f", the cloud {_ms(engine)} a token slower than it is" if engine else ""
    return Outlook(
        edge=row.step,
        routing=row.step * row.ahead.value,
        streaming=per_token("cloud", at) if streams else None,
        share=row.consults,
        changed=row.changed,
        assumed=False,
        break_even=break_even(at, "ahead") if streams else None,
        place=f"over a round trip of {_ms(row.round_trip)}{slower}",
    )


def advise(found: Outlook) -> Advice:
    """What follows from it."""
    speeds: dict[System, float] = {"edge": found.edge, "routing": found.routing}
    if found.streaming is not None:
        speeds["streaming"] = found.streaming
    order = sorted(speeds, key=lambda system: speeds[system])
    first = f"{_speeds(order, speeds, found)}; {_cost(found)}."
    return Advice(
        fastest=order[0],
        cheapest=None if found.bill is None else "edge",
        edge=found.edge,
        routing=found.routing,
        streaming=found.streaming,
        break_even=found.break_even,
        bill=found.bill,
        sentences=(first, f"{_bought(found)}; {_unknown(found)}."),
    )


def _speeds(order: list[System], speeds: dict[System, float], found: Outlook) -> str:
    best, *others = order
    rest = " and ".join(f"{_NAMES[system]} ({_ms(speeds[system])})" for system in others)
    told = f"Fastest is {_NAMES[best]}, about {_ms(speeds[best])} a token, then {rest}"
    told += f", {found.place}" if found.place else ""
    if found.streaming is None:
        told += "; how fast the cloud streams could not be measured"
    return told


def _cost(found: Outlook) -> str:
    if found.free is not None:
        return f"nothing is billed, since {found.free}"
    if found.bill is None:
        return "what is cheapest is not known without a price"
    ratio = f"{found.bill:.1f} times" if found.bill >= 0.1 else "less than a tenth of"
    cheaper = "routing" if found.bill < 1 else "streaming"
    held = "" if cheaper == "routing" else ", or would if they were not held back"
    return (
        f"cheapest is the edge alone, which bills nothing, and of the two that ask the cloud "
        f"{cheaper}: behind a prompt of {PROMPT} tokens the consults bill {ratio} what streaming "
        f"does{held}"
    )


def _bought(found: Outlook) -> str:
    if not found.share:
        return "Routing at a share of 0% asks for nothing and buys nothing"
    asks = f"Routing at a share of {found.share:.1%}".replace(".0%", "%")
    if found.streaming is None:
        later = _ms(found.routing - found.edge)
        return f"{asks} buys the cloud's word where the edge is unsure, for {later} a token"
    if found.routing <= found.streaming:
        sooner = 1 - found.routing / found.streaming
        return (
            f"{asks} buys the cloud's word where the edge is unsure, in {sooner:.0%} less time "
            "than streaming all of it"
        )
    even = "at no share would it be as fast"
    if found.break_even:
        even = f"it would be as fast up to a share of {found.break_even:.1%}"
    slower = found.routing / found.streaming
    return (
        f"{asks} buys no time here, where it takes {slower:.2g} times as long as streaming "
        f"({even}): it buys that {1 - found.share:.0%} of the words are written on this device "
        "and that answers go on without a link"
    )


def _unknown(found: Outlook) -> str:
    if not found.share:
        return "what a larger one would buy on your questions only `edgewise eval` tells"
    each = f"{found.changed:.0%} of the consults change the token"
    basis = f"that {each} is assumed" if found.assumed else f"{each}, as measured"
    return f"{basis}, and how right it is on your questions only `edgewise eval` tells"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
