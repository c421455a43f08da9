"""`edgewise try`: compare edge, pair and cloud on the user's own models and prompts."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated
from xml.etree.ElementTree import Element, tostring

import msgspec
import typer
from msgspec.structs import asdict
from rich.console import Console

from edgewise.addresses import is_url
from edgewise.cli import options, render
from edgewise.cli.options import ANSWERING, takes
from edgewise.cloud.hosts import is_here
from edgewise.completion import Completion
from edgewise.costs.daily import today
from edgewise.costs.price import BilledTokens
from edgewise.edge.base import Tokenizer
from edgewise.errors import CloudRejected, UsageError
from edgewise.events import Token
from edgewise.loop.decoder import collect
from edgewise.loop.generation import Generation
from edgewise.opening import cloud_address, each_cloud
from edgewise.pair import Pair, open_pair
from edgewise.settings import Settings
from edgewise_lab.commands import shared
from edgewise_lab.evaluation import systems
from edgewise_lab.evaluation.systems import CloudAlone, Outcome
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.named import open_prompts
from edgewise_lab.tables import FigureTable

MAX_TOKENS = 512
"""Default maximum length of an answer, in tokens."""

SYSTEMS = {"edge": "Edge alone", "pair": "Pair", "cloud": "Cloud alone"}

_SHOWN = 300
"""Most characters of a prompt that the terminal shows."""

_LIMITS, _DRAWS = ("max_cost", "max_cost_day"), ("temperature", *options.DRAWS)


class SideAnswer(Outcome, frozen=True, kw_only=True):
    """A system's answer. `tokens` is empty for the cloud alone; `paid` is None without a price."""

    tokens: tuple[Token, ...] = ()
    paid: float | None = None


class SideBySide(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and its answers by system (fewer if interrupted); code graded them if `checked`."""

    question: Question
    checked: bool
    answers: dict[str, SideAnswer]


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """A system's figures over the prompts that all systems answered; `answers` is their number.

    Code graded `checked` of them; `right` of these are right. `tokens` counts output tokens in all;
    `cloud_share` is the cloud's tokens, wasted ones too, over these; `seconds` is an answer's mean
    time. `paid` is what all cost together, in `Tried.currency`; None without a price.
    """

    system: str
    answers: int
    checked: int
    right: int
    tokens: int
    cloud_share: float
    seconds: float
    tokens_per_second: float
    paid: float | None


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints: edge and cloud by name, prompts with their answers, and totals.

    `currency`: of the price, None without one. `systems` is empty if no prompt has all answers.
    """

    edge: str
    cloud: str
    currency: str | None
    prompts: list[SideBySide]
    systems: list[Total]


# Answers are greedy. The cloud alone is held to no limit of costs, so none is taken.
@takes(
    *(name for name in ANSWERING if name not in (*_DRAWS, *_LIMITS)),
    reads=["cloud_key", "edge_key"],
    unaffected=options.DRAWS,
)
def try_(
    prompts: Annotated[
        str | None,
        typer.Argument(metavar="PROMPTS", help="A prompt a line, or JSON Lines; -: stdin."),
    ] = None,
    *,
    chosen: Settings,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the first N prompts.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page that one can send to FILE.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Compare edge, pair and cloud side by side on your own prompts.

    Without PROMPTS, twenty everyday ones are asked. A line of JSON Lines has a prompt (or
    messages), and may have a check and an answer. Answers have at most 512 tokens, or --max-tokens.
    """
    task = open_prompts(prompts).first(limit)
    _require_writable(html)
    shared.tell_of_code([task])
    _tell_where(chosen, len(task.questions))
    with open_pair(chosen) as pair:
        edge, cloud = pair.both()
        if not json:
            render.note_of_reading(pair)
        systems.require_room(task, edge, cloud)
        price = pair.billing and pair.billing.price
        found: list[SideBySide] = []
        try:
            _answer(pair, task, chosen.max_tokens or MAX_TOKENS, found, shown=not json)
        finally:
            # Also after an interruption, or when a cloud fails.
            whole = [one for one in found if len(one.answers) == len(SYSTEMS)]
            tried = Tried(
                edge=edge.name,
                cloud=pair.clouds[-1].name,
                currency=price.currency if price else None,
                prompts=[one for one in found if one.answers],
                systems=[_total(system, whole) for system in SYSTEMS] if whole else [],
            )
            if json:
                print(msgspec.json.encode(tried).decode())
            elif tried.systems:
                render.show(shared.drawn(_figures(tried)))
            if html and tried.prompts:
                try:
                    html.write_text(_page(tried, edge.tokenizer), encoding="utf-8")
                except OSError as error:
                    why = f"{str(html)!r} cannot be written: {error.strerror}."
                    raise UsageError(why) from error


def _tell_where(chosen: Settings, prompts: int) -> None:
    urls = [cloud_address(one) for one in each_cloud(chosen)]
    far, last = [url for url in urls if is_url(url) and not is_here(url)], urls[-1]
    if far:
        to = f" to {last}" if len(urls) > 1 else ""
        twice = f", each twice{to}, for the pair and for the cloud alone" if last in far else ""
        render.note(f"prompts that go to {', '.join(far)}: {prompts}{twice}; --limit N asks fewer")


def _answer(
    pair: Pair, task: Task, max_tokens: int, found: list[SideBySide], *, shown: bool
) -> None:
    """Answer all prompts; each is in `found` first, then its answers come one by one."""
    answering, count = _systems(pair, max_tokens, shown=shown), len(task.questions)
    say = (render.out if shown else Console(quiet=True)).print
    if shown:
        render.warn_of_toy(pair.settings.edge, task.questions[0].prompt)
    with render.progress(hidden=shown) as progress:
        # A token first of what is here, so that no answer's time includes loading.
        systems.edge_alone(pair.edge, 1).ask(task.questions[0])
        if pair.clouds[-1].local is not None:
            CloudAlone(pair.clouds[-1], pair.edge.tokenizer, 1).answer(task.questions[0])
        bar = progress.add_task("answers", total=len(answering) * count)
        for number, question in enumerate(task.questions, 1):
            checked = question.known and question.check != "read"
            found.append(one := SideBySide(question=question, checked=checked, answers={}))
            asked = render.printable(" ".join(question.prompt.split()))[:_SHOWN]
            say(f"\n{number} of {count}: {asked}", style="dim")
            for system, answer in answering.items():
                say(f"{system}: ", style="bold", end="")
                one.answers[system] = answer(question)
                if system == "cloud":
                    say(render.printable(one.answers[system].text))
                verdict = f" · {_verdict(one, system)}" if checked else ""
                say(f"      {_told(one, system)}{verdict}", style="dim")
                progress.advance(bar)
            if wanted := _wanted(question):
                say(render.printable(wanted), style="dim")


def _systems(
    pair: Pair, max_tokens: int, *, shown: bool
) -> dict[str, Callable[[Question], SideAnswer]]:
    """Return the systems; if `shown`, edge and pair print their tokens as they come."""
    edge = pair.edge
    alone = systems.edge_alone(edge, max_tokens)
    whole = CloudAlone(pair.clouds[-1], edge.tokenizer, max_tokens)

    def decoded(stream: Callable[[Question], Generation]) -> Callable[[Question], SideAnswer]:
        def answer(question: Question) -> SideAnswer:
            with systems.asking(question), stream(question) as events:
                found = collect(render.painted(events) if shown else events)
            cost = found.usage.cost
            paid = cost.paid if cost else None if pair.billing is None else 0.0
            graded = asdict(systems.outcome_of(question, found))
            return SideAnswer(**graded, tokens=found.tokens, paid=paid)

        return answer

    def by_cloud(question: Question) -> SideAnswer:
        begun = time.monotonic()
        try:
            found = whole.answer(question)
        except CloudRejected as error:
            # Of this prompt alone: a refusal, or a limit that the model's reasoning reached.
            render.note(str(error))
            meter = getattr(error, "meter", None) or Completion(ids=(), logprobs=())
            found = systems.written(
                question,
                "",
                0,
                failed=1,
                written=meter.billed,
                cached=meter.cached,
                computed=0 if error.declined else meter.computed,
                seconds=time.monotonic() - begun,
            )
        return SideAnswer(**asdict(found), paid=_paid(pair, question, found))

    by_pair = decoded(lambda one: pair.stream(one.messages, max_tokens=max_tokens))
    return {"edge": decoded(alone.stream), "pair": by_pair, "cloud": by_cloud}


def _paid(pair: Pair, question: Question, found: Outcome) -> float | None:
    """Return what the cloud alone's answer costs, and add it to the day's."""
    if pair.billing is None:
        return None
    price, daily = pair.billing.price, pair.billing.daily
    cached, computed = found.cached or 0, found.computed
    if computed is None:  # not reported: counted in the edge's tokens
        computed = max(0, len(systems.question_ids(pair.edge.tokenizer, question)) - cached)
    output = found.written or found.output_tokens
    paid = price.of(BilledTokens(input=computed, cached=cached, output=output))
    if daily is not None:
        daily.add(today(), price.currency, paid)
    return float(paid)


def _told(one: SideBySide, system: str) -> str:
    answer = one.answers[system]
    wrote = f"{answer.output_tokens} tokens"
    if system == "pair":
        by_edge = answer.output_tokens - answer.cloud_tokens
        share = f"{systems.cloud_share([answer]):.1%}"
        wrote = f"{by_edge} edge + {answer.cloud_tokens} cloud tokens ({share})"
    failed = f" · {answer.failed} consults failed" if answer.failed else ""
    return f"{wrote} · {answer.seconds:.2f} s{failed}"


def _verdict(one: SideBySide, system: str) -> str:
    return ("right" if one.answers[system].right else "wrong") if one.checked else ""


def _wanted(question: Question) -> str:
    if question.check == "read":
        return f"to be read: {question.answer}"
    return f"wanted: {question.reference or question.answer}" if question.known else ""


def _total(system: str, whole: Sequence[SideBySide]) -> Total:
    answers = [one.answers[system] for one in whole]
    checked = [one.answers[system].right for one in whole if one.checked]
    tokens, seconds = sum(a.output_tokens for a in answers), sum(a.seconds for a in answers)
    paid = [a.paid for a in answers if a.paid is not None]
    return Total(
        system=system,
        answers=len(answers),
        checked=len(checked),
        right=sum(checked),
        tokens=tokens,
        cloud_share=systems.cloud_share(answers),
        seconds=seconds / len(answers),
        tokens_per_second=tokens / seconds if seconds else 0.0,
        paid=sum(paid) if paid else None,
    )


def _figures(tried: Tried) -> FigureTable:
    """Return the table of totals, without columns for which nothing is known."""

    def columns(one: Total) -> Iterator[tuple[str, str]]:
        yield "system", one.system
        if one.checked:
            yield "right", f"{one.right} of {one.checked}"
        yield "tokens", f"{one.tokens}"
        yield "cloud\nshare", f"{one.cloud_share:.1%}"
        yield "seconds\nan answer", f"{one.seconds:.2f}"
        yield "tokens/s", f"{one.tokens_per_second:.1f}"
        if one.paid is not None:
            yield f"paid\n{tried.currency}".rstrip(), render.money(one.paid)

    rows = [dict(columns(one)) for one in tried.systems]
    title = f"prompts: {tried.systems[0].answers}" if rows else ""
    return FigureTable(title, [*rows[0]] if rows else [], [[*row.values()] for row in rows])


def _page(tried: Tried, tokenizer: Tokenizer) -> str:
    """Return an HTML page of all answers, which loads and runs nothing; styled as the server's."""
    table, style = _figures(tried), files("edgewise") / "server/page/page.css"
    policy = {"http-equiv": "Content-Security-Policy"}
    rows = (_el("tr", *(_el("td", cell) for cell in row)) for row in (table.head, *table.lines))
    page = _el(
        "html",
        _el("meta", charset="utf-8"),
        _el("meta", **policy, content="default-src 'none'; style-src 'unsafe-inline'"),
        _el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _el("meta", name="color-scheme", content="light dark"),
        _el("title", "Edge, pair and cloud, by Edgewise"),
        _el("style", style.read_text(encoding="utf-8")),
        _el(
            "body.shared",
            _el("h1", "Edgewise: edge, pair and cloud"),
            _el("p.note", f"Edge model: {tried.edge}. Cloud model: {tried.cloud}. {table.title}"),
            _el("div.text scroll", _el("table", *rows)),
            _el("p.note", _mark("cloud"), " agreed, ", _mark("cloud", "edge"), " changed it"),
            *(_turn(one, tokenizer) for one in tried.prompts),
        ),
    )
    return "<!doctype html>\n" + tostring(page, "unicode", method="html")


def _turn(one: SideBySide, tokenizer: Tokenizer) -> Element:
    question = one.question
    answers = (
        _el(
            "article.answer",
            _el("h3", f"{SYSTEMS[system]} ", _el(f"span.{verdict}", verdict)),
            _el("div.text", _el("p", *_written(answer, tokenizer)), dir="auto"),
            _el("p.meters", _told(one, system)),
        )
        for system, answer in one.answers.items()
        for verdict in [_verdict(one, system)]
    )
    return _el(
        "section.turn several",
        _el("div.question", _el("h2", question.text, dir="auto")),
        _el("p.note", _wanted(question), dir="auto"),
        _el("div.answers", *answers),
    )


def _written(answer: SideAnswer, tokenizer: Tokenizer) -> Iterator[Element | str]:
    for token in answer.tokens:
        ends = token.id in tokenizer.eos_ids
        if token.source == "edge" or not (token.text or ends):
            yield token.text
        elif token.draft in (None, token.id):
            yield _mark(token.text)
        else:
            yield _mark(token.text or "∎", systems.text_of(tokenizer, [token.draft]) or "∎")
    yield answer.text[sum(len(token.text) for token in answer.tokens) :]


def _mark(text: str, instead_of: str | None = None) -> Element:
    """Return the marked text of a cloud token, with the edge's that it replaced struck out."""
    bare = text.lstrip() or text
    space = text.removesuffix(bare)
    if instead_of is None:
        return _el("span.token cloud confirmed", space, _el("mark", bare))
    struck = _el("ruby", bare, _el("rt", _el("del", instead_of)))
    return _el("span.token cloud changed", space, _el("mark", struck))


def _el(tag: str, *children: Element | str, **attributes: str) -> Element:
    """Return an HTML element for `tag`, "NAME" or "NAME.CLASSES"."""
    name, _, its_class = tag.partition(".")
    node = Element(name, attributes | ({"class": its_class} if its_class else {}))
    for child in children:
        if isinstance(child, Element):
            node.append(child)
        elif len(node):
            node[-1].tail = (node[-1].tail or "") + render.printable(child)
        else:
            node.text = (node.text or "") + render.printable(child)
    return node


def _require_writable(path: Path | None) -> None:
    if path and path.is_dir():
        raise UsageError(f"{str(path)!r} cannot be written: it is a folder.")
    if path and not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "there is no such folder, or it is write-protected"
        raise UsageError(f"{str(path)!r} cannot be written: {why}.")
