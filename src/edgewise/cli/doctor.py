"""`edgewise doctor`: checks what works on this machine, and says how to fix what does not."""

import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal

import msgspec
import typer
from msgspec.structs import replace
from rich.table import Table
from rich.text import Text

from edgewise import opening
from edgewise.addresses import is_url
from edgewise.advice import (
    BLOCK,
    CORRECTED,
    DECODED,
    TYPICAL_CHANGED,
    Advice,
    CloudPace,
    MeasuredConditions,
    advise,
    cloud_pace,
    decoded,
    edge_step,
)
from edgewise.cli import options, render
from edgewise.cli.options import ANSWERING, takes
from edgewise.cloud.base import CloudModel
from edgewise.cloud.reader import ReaderCloud
from edgewise.cloud.redaction import redaction_of
from edgewise.costs.price import Price, price_of
from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import library as binding
from edgewise.edge.named import SERVER
from edgewise.engines.base import Engine
from edgewise.errors import EdgewiseError
from edgewise.loop.decoder import Decoder
from edgewise.routers.base import Router
from edgewise.routers.card import RouterCard
from edgewise.routers.thresholds import tuned_thresholds
from edgewise.settings import Settings

# Timeout of a measured request; the first has to prefill the whole long prompt.
_SECONDS = 60.0
# Lines to add to the prompt: 70 (about 1,400 tokens, since caches have blocks of up to 1,024), or
# 12 (about 300) if the engine rejects so many.
_LINES = (70, 12)
_TRAIN = "edgewise train PROMPTS.jsonl, for this pair and your own prompts, makes a better one"
# Measured results of the routers that need no training, from docs/results.md.
_MEASURED = {
    "entropy": "at 5% it recovered none of the gap between two real models",
    "max-prob": "at 5% it recovered 40% (26 to 57) of the gap between two real models",
}

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


class Check(msgspec.Struct, frozen=True):
    """One line of the report. `detail` says what was found, `fix` what to do if it is not ok."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str | None = None


# The flags of the command that failed, all of them: those of answers change nothing here.
@takes(*ANSWERING, reads=["cloud_key", "edge_key"])
def doctor(chosen: Settings, json: options.Json = False) -> None:
    """Check Python, engine, models, router, cloud and vocabulary; exit code 1 if one fails.

    At the end it says which way is fastest and cheapest for this pair, and what routing buys.
    """
    price = None if chosen.price is None else price_of(chosen.price)
    with ExitStack() as stack:
        examined = _Doctor(chosen, price, stack, quiet=json)
        checks = list(examined.checks())
    if json:
        report = {"version": 1, "checks": checks, "advice": examined.advice}
        print(msgspec.json.encode(report).decode())
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        for check in checks:
            detail = check.detail + (f"\nfix: {check.fix}" if check.fix else "")
            status = Text(check.status, _COLOURS[check.status])
            table.add_row(status, check.name, Text(render.printable(detail)))
        render.show(table)
        if examined.next is not None:
            render.out.print()
            told = examined.advice.sentences if examined.advice else ()
            for name, text in zip(("Speed", "Cost", "Advice"), told, strict=False):
                line = f"{name}: {text}.".replace("..", ".")
                render.out.print(line, soft_wrap=not render.out.is_terminal)
            render.out.print(f"Next: {examined.next}")
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


class _Doctor:
    """Checks a pair of models part by part; `stack` closes what it opens."""

    def __init__(
        self, chosen: Settings, price: Price | None, stack: ExitStack, *, quiet: bool
    ) -> None:
        self._chosen, self._price, self._stack, self._quiet = chosen, price, stack, quiet
        self._router: tuple[Router, RouterCard | None] | None = None
        self._edge: EdgeModel | None = None
        self._cloud: CloudModel | None = None
        self._pace: CloudPace | None = None
        self.advice: Advice | None = None
        self.next: str | None = None

    def checks(self) -> Iterator[Check]:
        """Run the checks in order and yield them; skip those that need a missing part."""
        yield Check("python", "ok", platform.python_version())
        yield self._guarded("engine", _engine)
        yield self._guarded("edge model", self._open_edge)
        if (edge := self._edge) is not None:
            rollback = _change if opening.edge_engine(self._chosen) == SERVER else _rollback
            yield self._guarded("rollback", lambda: rollback(edge))
            nearest, *further = opening.each_cloud(self._chosen)
            yield self._guarded("cloud model", lambda: self._open_cloud(nearest, edge))
            for one in further:
                yield self._guarded("further cloud", lambda one=one: self._further(one, edge))
            if self._cloud is not None:
                yield self._guarded("verification", lambda: self._verification(edge))
            reads = self._cloud is not None and self._cloud.reads_passages
            routed = self._chosen.verify in ("auto", "off") and not reads
            if routed and opening.cloud_address(self._chosen) != "none":
                yield self._guarded("router", lambda: self._open_router(edge))
        if edge is not None and (cloud := self._cloud) is not None:
            kind = "one: " if cloud.boundaries is None else "two, by words of text: "
            kind = "" if cloud.reads_passages else kind
            yield Check("vocabulary", "ok", kind + cloud.vocabulary_check)
            if cloud.id_engine is not None:
                yield _cloud_engine(cloud.id_engine)
            yield self._guarded("consult", lambda: self._measure(cloud, edge))
            if self._pace is not None and is_url(opening.cloud_address(self._chosen)):
                yield _cache(self._pace)
        yield self._guarded("what leaves the device", lambda: _leaves(self._chosen))

    def _guarded(self, name: str, check: Callable[[], Check]) -> Check:
        try:
            return check()
        except EdgewiseError as error:
            options.locate(error)
            where = f" ({error.where})" if error.where else ""
            fix = error.hint + where if error.hint else str(error)
            return Check(name, "fail", error.message.rstrip("."), fix)

    def _open_edge(self) -> Check:
        model = self._edge = opening.open_edge(self._chosen)
        self._stack.callback(model.close)
        engine = f", {model.build}" if model.build else ""
        size = f"{_millions(model.parameters)}, " if model.parameters else ""
        return Check("edge model", "ok", f"{model.name}{engine}, {size}context {model.context}")

    def _open_router(self, edge: EdgeModel) -> Check:
        self._router = opening.open_router(self._chosen, edge)
        return _router(self._chosen, edge, self._router[1])

    def _further(self, chosen: Settings, edge: EdgeModel) -> Check:
        """Check a further cloud model, asked where the one before is unsure: open and close it."""
        cloud = opening.open_cloud(chosen, edge)
        assert cloud is not None
        with closing(cloud):
            if cloud.reads_passages:
                return Check("further cloud", "fail", f"{cloud.name} only reads", "leave it out")
            trusted = " (trusted)" if opening.is_trusted(chosen) else ""
            return Check("further cloud", "ok", f"{cloud.name}{trusted}: {cloud.vocabulary_check}")

    def _open_cloud(self, chosen: Settings, edge: EdgeModel) -> Check:
        cloud = self._cloud = opening.open_cloud(chosen, edge)
        if cloud is None:
            # Raises for what needs one.
            opening.verification(self._chosen, edge)
            return Check("cloud model", "ok", "none: no connection is opened")
        self._stack.callback(cloud.close)
        size, own = cloud.local.parameters if cloud.local else None, edge.parameters
        if size and own and size < own:
            text = f"{cloud.name} is smaller than the edge model: {_millions(size)}"
            return Check("cloud model", "warn", text, "swap the two models")
        return Check("cloud model", "ok", cloud.name + (f", {_millions(size)}" if size else ""))

    def _verification(self, edge: EdgeModel) -> Check:
        """Check whether the cloud model verifies every token; then no router is needed."""
        verify = opening.verification(self._chosen, edge, self._cloud)
        self._chosen = replace(self._chosen, verify=verify)
        if verify == "off":
            able = "could" if self._cloud and self._cloud.verifies else "cannot"
            return Check("verification", "ok", f"off: a router asks; this cloud {able} verify")
        self._router = opening.open_router(self._chosen, edge)
        if isinstance(reader := self._cloud, ReaderCloud):
            asked = render.reads(opening.make_policy(self._chosen, {}), self._chosen.escalate)
            took = f"{reader.seconds:.1f} s for a verdict"
            return Check("verification", "ok", f"it is asked {asked}: {took}")
        return Check("verification", "ok", f"{verify}: the cloud reads every token of the edge's")

    def _measure(self, cloud: CloudModel, edge: EdgeModel) -> Check:
        """Measure consults, unless the cloud reads passages, and derive the advice from them."""
        if cloud.reads_passages:
            self.next = "edgewise try PROMPTS shows on yours what it takes, costs and mends"
            text = "speed, and cost by --price, are not measured for a cloud that reads"
            return Check("consult", "ok", text)
        chosen, local = self._chosen, not is_url(opening.cloud_address(self._chosen))
        share = opening.DEFAULT_SHARE if chosen.cloud_share is None else chosen.cloud_share
        lines = (0,) if local else _LINES
        pace = self._pace = cloud_pace(cloud, edge.tokenizer, _SECONDS, lines=lines)
        engine = pace.consult if pace.engine is None else pace.engine
        conditions = MeasuredConditions(
            step=edge_step(edge),
            round_trip=pace.consult - engine,
            consult=engine,
            cloud_token=pace.token,
            # What a router asks for and changes is only known of answers.
            asked=CORRECTED.get(chosen.verify) or share,
            changed=TYPICAL_CHANGED,
            speculate=chosen.speculate,
            cached=0.0 if pace.computed is None else 1 - pace.computed / pace.prompt,
            verify=None if chosen.verify == "off" else pace.verify,
        )
        # On one machine the models compete for its cores, which no formula tells.
        if local and self._router is not None:
            self.advice = self._decoded(conditions, cloud, edge, *self._router)
        else:
            self.advice = advise(conditions, price=self._price, local=local)
        self.next = "edgewise eval QUESTIONS.jsonl says how right it is on yours"
        first = f"{1000 * pace.first:.1f} ms at first, {pace.prompt} tokens to read"
        warm = f"{1000 * pace.consult:.1f} ms warm"
        if pace.verify is not None:
            warm += f"; {1000 * pace.verify:.1f} ms to verify {BLOCK} tokens"
            warm += f", {1000 * BLOCK * pace.token:.1f} ms to write them" if pace.token else ""
        asked = f"measured by {pace.requests} requests of {pace.tokens} tokens in all"
        text = f"{first}; {warm}; {asked}"
        if chosen.deadline is not None and pace.consult > chosen.deadline:
            return Check(
                "consult", "warn", text, f"give more than {chosen.deadline:g} s (--deadline)"
            )
        return Check("consult", "ok", text)

    def _decoded(
        self,
        at: MeasuredConditions,
        cloud: CloudModel,
        edge: EdgeModel,
        router: Router,
        card: RouterCard | None,
    ) -> Advice:
        """Return advice from the speed of decoding with this pair, set up as for `run`."""
        # A price holds consults back, and one that fails must not count as a fast token.
        one = {"on_cloud_error": "raise", "price": None, "tier_share": None, "tier_threshold": None}
        chosen = replace(self._chosen, **one)
        policy = opening.make_policy(chosen, opening.starts_of(chosen, router, card, edge))
        tiers = opening.make_tiers(chosen, [cloud], edge)
        pair = Decoder(edge, router=router, policy=policy, tiers=tiers)
        with render.progress(hidden=self._quiet) as progress:
            bar = progress.add_task(f"decoding {DECODED} tokens of each", total=6)
            pace = decoded(pair, cloud, lambda: progress.advance(bar))
        return advise(
            replace(at, step=pace.edge),
            price=self._price,
            local=True,
            routing=pace.pair,
            streaming=pace.cloud,
            place=f"over {DECODED} tokens, decoded with their prompts",
        )


def _millions(parameters: int) -> str:
    return f"{parameters / 1e6:.1f} M parameters"


def _engine() -> Check:
    gpu = "with GPU" if binding.llama_cpp.llama_supports_gpu_offload() else "CPU only"
    text = f"llama.cpp ({binding.build()}), {gpu}"
    if binding.package() == binding.PREBUILT:
        gain = "may read prompts faster"
        if binding.beyond_prebuilt():
            gain = "reads prompts 1.4 to 1.6 times as fast (measured with AVX-512)"
        text += f"; {binding.how_to_compile()}, which {gain}"
    return Check("engine", "ok", text)


def _rollback(model: EdgeModel) -> Check:
    """Report how the edge model rolls back when the cloud model rejects a draft token."""
    how = model.abilities.rewinds
    if how == "no":
        text = "none: a rollback reads the sequence again, so each consult is waited for"
        return Check("rollback", "warn", text, "name a GGUF of the model (--edge)")
    if how == "anywhere":
        return Check("rollback", "ok", "anywhere: the KV cache is cut, and nothing read again")
    return Check("rollback", "ok", "to checkpoints; the ids after one are read again")


def _change(edge: EdgeModel) -> Check:
    """Report what a server reads again when the cloud changes a token, and a better setup."""
    from edgewise.edge.served.model import ServedEdge

    assert isinstance(edge, ServedEdge)
    text = "the stream is closed, and what it had written ahead is thrown away"
    if (measured := edge.change()) is None:
        return Check("rollback", "ok", f"{text}; the server does not tell how much it reads again")
    prompt, again, thrown = measured
    text += "" if thrown is None else f" ({thrown} tokens here)"
    text += f"; of {prompt} tokens with another last one {again} were read again"
    if 2 * again <= prompt:
        return Check("rollback", "ok", text)
    fix = f"turn its prompt cache on; if the model cannot roll back, --edge {edge.path or 'FILE'}"
    return Check("rollback", "warn", text, f"{fix} runs it in this process, with checkpoints")


def _router(chosen: Settings, model: EdgeModel, card: RouterCard | None) -> Check:
    """Report the router, why it was chosen, what it gained in measurements, and a better one."""
    name = opening.chosen_router(chosen, model)
    auto = chosen.router in (None, opening.AUTO)
    identity = opening.router_identity(replace(chosen, router=name))
    tuned = tuned_thresholds(model, identity, opening.nearest_cloud(chosen))
    if card is None:
        if tuned:
            return Check("router", "ok", f"{name}, tuned for this pair")
        why = ": no trained one is known for this edge model" if auto else ""
        bought = f"; {_MEASURED[name]}" if name in _MEASURED else ""
        return Check("router", "warn", f"{name}{why}{bought}", _TRAIN)
    if warning := card.build_warning(model):
        text, _, fix = warning.rstrip(".").rpartition("; ")
        return Check("router", "warn", text, fix)
    if warnings := card.warnings():
        return Check("router", "warn", warnings[0], "edgewise router show names all there is")
    shares = ", ".join(card.thresholds)
    text = f"{Path(name).name} ({card.kind}), fits the edge model, "
    done = "tuned for this pair" if tuned else f"calibrated at {shares}" if shares else ""
    text += done or f"not calibrated for this pair: {_TRAIN}"
    return Check("router", "ok", f"{text}; {card.measured}" if card.measured else text)


def _cloud_engine(engine: Engine) -> Check:
    named = f"{engine.dialect}, model {engine.described.model or 'unnamed'}"
    salt = "caches apart by salt" if engine.salted else "no salt"
    return Check("cloud engine", "ok", f"{named}; token ids in and out; {salt}")


def _cache(pace: CloudPace) -> Check:
    """Report how much of a prompt sent twice is computed, and billed, again."""
    fix = "let consults be few and longer (--span 4), or choose one that caches and says so"
    if pace.computed is None:
        text = "it does not tell what it had: each consult may be billed as a whole prompt"
        return Check("prompt cache", "warn", text, fix)
    text = f"of {pace.prompt} prompt tokens sent again {pace.computed} were computed"
    if 2 * pace.computed <= pace.prompt:
        return Check("prompt cache", "ok", text)
    return Check("prompt cache", "warn", f"{text}: each consult costs a whole prompt", fix)


def _leaves(chosen: Settings) -> Check:
    name, told = "what leaves the device", list[str]()
    if opening.edge_engine(chosen) == SERVER:
        told.append(f"every prompt and answer to the edge's server, {chosen.edge}")
    urls = [at for one in opening.each_cloud(chosen) if is_url(at := opening.cloud_address(one))]
    if not urls:
        return Check(name, "ok", "; ".join(told) or "nothing: all runs on this device")
    told.append(
        "each consult sends the prompt and the answer so far, as token ids or text, to "
        f"{', '.join(urls)}; to a gateway they go as they come"
    )
    if rules := str(redaction_of(chosen.redact)):
        told.append(f"redaction: {rules}, which misses some")
    if chosen.trust is not None:
        told.append(f"{chosen.trust} sees what is local")
    fix = "use --cloud none to keep everything here; --sent-file shows what leaves"
    return Check(name, "warn", "; ".join(told), fix)
