"""`Pair`: an edge model, cloud models, a router, and the rules (`Policy`) for asking the cloud."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypedDict, Unpack

from msgspec.structs import asdict, replace

from edgewise.addresses import each, from_home, is_url, with_scheme
from edgewise.cloud.adapter.ids import adapted
from edgewise.cloud.base import CloudModel
from edgewise.cloud.record import PayloadsFile, SentRecord
from edgewise.edge.base import EdgeAbilities, EdgeModel
from edgewise.errors import UsageError
from edgewise.grammar.calls import call_reader, collected
from edgewise.grammar.compiled import Grammar
from edgewise.grammar.response_format import ResponseFormat, grammar_of, response_format_from
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.generation import Generation
from edgewise.loop.policy import Escalation, Policy, SharedBudget
from edgewise.opening import (
    AUTO,
    FALLBACK_ROUTER,
    NEVER,
    cloud_address,
    context_filter,
    each_cloud,
    make_billing,
    make_policy,
    make_tiers,
    open_cloud,
    open_edge,
    open_router,
    require_one_cloud,
    sampling_of,
    starts_of,
    verification,
)
from edgewise.prompts import Prompt, Prompted, Tool, prompt_from, require_text
from edgewise.prompts.rendering import prepare
from edgewise.routers.base import Router
from edgewise.routers.card import RouterCard
from edgewise.routers.named import checked_router, router_named
from edgewise.sampling import Sampling, drawn_as
from edgewise.settings import Settings, names_in, require_default, settings_of, spelled

Cloud = str | Path | CloudModel
"""A cloud model: its address, or a model object that the caller has already opened."""


class AnswerOptions(TypedDict, total=False):
    """Options of a single answer, which override the settings of its `Pair`.

    With `json_schema` the answer is JSON that fits this schema. With `tools` the model may call
    these tools: `tool_choice` "none" forbids that, "required" or a tool's name demands it.
    """

    max_tokens: int | None
    stop: str | Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    json_schema: Mapping[str, object] | None
    tools: Sequence[Tool | Mapping[str, object]]
    tool_choice: str
    parallel_tool_calls: bool


class Pair:
    """An edge model on this device, cloud models, and the rules by which they answer together.

        with Pair("small.gguf", cloud="https://host:8080", cloud_share=0.05) as pair:
            print(pair.ask("Why is the sky blue?").text)

    `policy` holds the rules (see `Policy`), and may be replaced between two answers. All answers
    with the same cloud share draw on one budget of cloud tokens, so the share holds over all of
    them. Up to `slots` threads may ask at the same time.
    """

    def __init__(
        self,
        edge: str | Path | EdgeModel = "bundled",
        *,
        cloud: Cloud | Sequence[Cloud] | None = None,
        router: str | Path | Router | None = None,
        system: str | None = None,
        slots: int = 1,
        keep_prefixes: bool = False,
        sent_file: str | Path | None = None,
        **settings: object,
    ) -> None:
        """Open the models that are given as addresses; `close` does not close those passed in open.

        Several clouds are asked in order, the next one if one fails or is unsure (see `Tier`).
        `system` is the system message of prompts that have none; up to `slots` answers run at a
        time. With `keep_prefixes` the next turn of a conversation reuses the KV cache of the last
        one; without it a local model's logits never depend on earlier answers. Everything that
        answers send is written to `sent_file` before it leaves, except requests to an edge server
        that the caller opened (use `EdgeOptions.sent` there). `settings` are fields of `Settings`;
        environment and `edgewise.toml` are not read. Raises `UsageError`; `EdgeError` or a
        `CloudError` if a model's server cannot be reached.
        """
        self.system, clouds = system, _listed(cloud)
        own = self.settings = _chosen(
            {"edge": [edge], "cloud": clouds, "router": [router]}, settings, slots
        )
        require_text("The system message", system or "")
        sampling_of(own)
        self.billing = make_billing(own)
        self.record = SentRecord(PayloadsFile(from_home(sent_file)) if sent_file else None)
        options: Any = {"slots": slots, "keep_prefixes": keep_prefixes}
        with ExitStack() as opened:
            if isinstance(edge, str | Path):
                # The process that renders templates starts while the model loads.
                prepare()
                self.edge: EdgeModel = open_edge(own, sent=self.record.edge, **options)
                opened.callback(self.edge.close)
            else:
                self.edge = _open_already(edge)
            # Before the router, for whose thresholds the edge may write for seconds: a cloud that
            # cannot be reached is an error at once.
            tiers = make_tiers(own, self._open_clouds(clouds, opened, **options), self.edge)
            self.clouds = [tier.cloud for tier in tiers]
            self.cloud = self.clouds[0] if tiers else None
            own = self.settings = replace(own, verify=verification(own, self.edge, self.cloud))
            self.router, self.card, self.starts = self._routing(router)
            self.policy = make_policy(own, self.starts)
            self.decoder = Decoder(
                self.edge,
                router=self._scoring(router),
                policy=self.policy,
                tiers=tiers,
                record=self.record,
                billing=self.billing,
                escalation=None if own.escalate is None else Escalation(own.escalate),
            )
            # Nothing fails any more: `close` ends what was opened.
            self._opened = opened.pop_all()
        self._budgets: dict[float, SharedBudget] = {}

    def _routing(
        self, router: str | Path | Router | None
    ) -> tuple[Router, RouterCard | None, Mapping[str, float]]:
        """Return the router, its card or None, and its initial thresholds by cloud share."""
        if router is None or isinstance(router, str | Path):
            made, card = open_router(self.settings, self.edge)
            return made, card, starts_of(self.settings, made, card, self.edge)
        return checked_router(type(router).__name__, router), None, {}

    def _scoring(self, named: object) -> Router:
        """Return the router that scores the steps; `named` is `Pair`'s argument."""
        # Without a cloud scores are only shown, and a trained router would take time.
        unnamed = named is None and self.settings.router in (None, AUTO)
        return router_named(FALLBACK_ROUTER) if unnamed and not self.clouds else self.router

    def _open_clouds(
        self, parts: Sequence[Cloud | None], opened: ExitStack, **options: Any
    ) -> list[CloudModel]:
        """Open the clouds, nearest first; `opened` will close those that are opened here."""
        own, edge = self.settings, self.edge
        addresses = [
            _address(part) if isinstance(part, str | Path) else part.name
            for part in parts
            if part is not None
        ]
        clouds: list[CloudModel] = []
        for part, one in zip(parts, each_cloud(own, addresses), strict=True):
            if part is None or isinstance(part, str | Path):
                model = open_cloud(one, edge, **options)
                if model is None:
                    continue
                opened.callback(model.close)
            else:
                # Unlike those that `open_cloud` opens, it was checked for no edge model yet.
                model = adapted(part, edge.tokenizer, context_filter=context_filter(one))
                model.check_vocabulary(edge.tokenizer)
            clouds.append(model)
        return clouds

    @property
    def chat_sampling(self) -> Sampling | None:
        """The sampling of a chat that sets no temperature; None: that of the settings.

        It is what the model file recommends, else temperature 0.7 with min-p 0.05. It is None if
        the settings have a temperature, or if chats are greedy by default: with the bundled edge
        model, an edge server, or a cloud that is asked by text instead of token ids.
        """
        own = self.settings
        # The API of a cloud that takes text may lack min-p or temperatures.
        others = [one for one in self.clouds if one.own_tokenizer is None]
        by_text = any(one.boundaries or one.reads_passages for one in others)
        # The bundled model knows one wording of each answer; a server would need a request for each
        # drawn token.
        greedy = by_text or own.edge == _DEFAULTS.edge or is_url(with_scheme(own.edge))
        return None if own.temperature is not None or greedy else drawn_as(self.edge.sampling)

    def forget(self) -> None:
        """Start new budgets of cloud tokens, as for a new conversation.

        `record`, of what was sent, is kept. If an earlier conversation goes on, it gets another
        name there, which cannot be linked to the first.
        """
        self._budgets.clear()
        for tier in self.decoder.tiers:
            tier.forget()
        # What is sent from now on must not be linked to what was sent before.
        self.record.forget()

    def both(self) -> tuple[EdgeModel, CloudModel]:
        """Return the edge model and the first cloud model. Raises `UsageError` without a cloud."""
        if self.cloud is None:
            raise UsageError("This needs a cloud model", hint="name one", setting="cloud")
        return self.edge, self.cloud

    def prompt(self, asked: Prompted, *, tools: Sequence[Tool] = ()) -> Prompt:
        """Return the token ids of `asked` and `tools` as a `Prompt` for the edge model.

        Text and messages go through the chat template, with the pair's system message if they have
        none; ids are taken as they are. Raises `UsageError`, in particular `ContextOverflow` for a
        text that is clearly too long for the context, before it is tokenized.
        """
        tokenizer, context = self.edge.tokenizer, self.edge.context
        return prompt_from(tokenizer, asked, context=context, system=self.system, tools=tools)

    def require_able(self, policy: Policy, *, plain: bool) -> None:
        """Raise `UsageError` if the first cloud cannot do what `policy` asks of it.

        `plain`: the answer may be any text, with neither a response format nor tools.
        """
        cloud = self.cloud
        if cloud is None or not policy.asks:
            return
        if policy.verifies and not cloud.verifies:
            raise UsageError(f"{cloud.name!r} cannot verify", hint="give another policy")
        if cloud.reads_passages and not policy.verifies and policy.cloud_share != 1:
            raise UsageError(
                f"{cloud.name!r} reads passages and writes no tokens",
                hint="give a cloud-share",
                setting="threshold",
            )
        if cloud.reads_passages and policy.cloud_share == 1 and not plain:
            raise UsageError(
                f"{cloud.name!r} alone holds to no response format and calls no tools",
                hint="leave these out, or let the edge write, too",
            )

    def ask(self, prompt: Prompted, **options: Unpack[AnswerOptions]) -> Answer:
        """Return the whole answer; tool calls are parsed from its text. Raises as `stream`."""
        with self.stream(prompt, **options) as events:
            answer = collect(events)
        calls = call_reader(self.edge.tokenizer, _response_format(options))
        if calls is None:
            return answer
        text, called = collected(calls, answer.text)
        return replace(answer, text=text, tool_calls=called)

    def stream(
        self,
        prompt: Prompted,
        *,
        pending: bool = False,
        candidates: bool = False,
        policy: Policy | None = None,
        sampling: Sampling | None = None,
        grammar: Grammar | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Generation:
        """Return an iterator over the events of the answer to `prompt`, as they happen.

        Use `with` if it may be abandoned: until it ends it holds a slot, and half of the cloud
        tokens left in the budget. `pending` adds events for draft tokens, `candidates` the edge's
        likeliest ids to each token. `policy` replaces the pair's, `sampling` temperature and so on
        in `options`; a schema or tools in `options` replace `grammar`. Tool calls appear as text.
        Raises `UsageError`; iterating, `EdgeError`, and `CloudError` if on_cloud_error is "raise".
        """
        # Python takes any keyword here, and a misspelt one would be ignored.
        for name in options:
            if name not in AnswerOptions.__annotations__:
                raise UsageError(f"{spelled(name)} is fixed when the Pair is created.")
        format, stop = _response_format(options), options.get("stop", ())
        # Of the sampling's options some are not settings: they have one sensible value.
        drawn = {n: value for n, value in options.items() if n in Sampling.__struct_fields__}
        own = self.settings
        if "max_tokens" in options:
            own = settings_of({**asdict(own), "max_tokens": options["max_tokens"]})
        if format is not None:
            grammar = grammar_of(self.edge.tokenizer, format)
        policy = policy or self.policy
        self.require_able(policy, plain=grammar is None)
        shared = self._shared(policy)
        # Given back in whatever way the answer ends, or each that fails would shrink the share.
        taken = shared.take()
        try:
            return self.decoder.stream(
                self.prompt(prompt, tools=format.tools if format else ()),
                max_tokens=own.max_tokens,
                sampling=sampling or sampling_of(own, drawn),
                stop=(stop,) if isinstance(stop, str) else stop,
                budget=taken,
                grammar=grammar,
                policy=policy,
                pending=pending,
                candidates=candidates,
                follow=shared.follow,
                at_end=lambda left: shared.settle(taken, left),
            )
        except BaseException:
            shared.settle(taken, taken)
            raise

    def _shared(self, policy: Policy) -> SharedBudget:
        """Return the budget of a cloud share, rounded to 3 decimals; without a share, a new one."""
        share = policy.cloud_share
        if share is None:
            return SharedBudget()
        # Rounded: a client may ask for each share of six decimals, and each budget stays.
        return self._budgets.setdefault(round(share, 3), SharedBudget())

    def close(self) -> None:
        """Close the models that this pair opened; models that were passed in open stay open."""
        self._opened.close()

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_pair(settings: Settings, **options: Any) -> Pair:
    """Open the `Pair` of `settings`; `options` are other arguments of `Pair`, such as `slots`."""
    return Pair(**asdict(settings), **options)


def open_models(settings: Settings, *, answers: int = 1) -> Pair:
    """Return a `Pair` whose router never asks the cloud, for callers with routers of their own.

    Up to `answers` answers may run at a time. The models have one slot more, for a session that the
    caller opens meanwhile. Raises `UsageError` if the settings name several clouds.
    """
    require_one_cloud(settings)
    return open_pair(replace(settings, router=NEVER), slots=answers + 1)


_DEFAULTS = Settings()
_OF_EDGE = ("edge_engine", "edge_model", "edge_tokenizer", "edge_hosts", "edge_key")
_OF_CONNECTING = (*names_in("connection", "tokenizer"), "cloud_key")


def _chosen(
    parts: Mapping[str, Sequence[object]], settings: Mapping[str, object], slots: int
) -> Settings:
    """Return a pair's settings; raise `UsageError` for any that an already open model ignores."""
    named = {
        name: ",".join(map(_address, given)) for name, given in parts.items() if None not in given
    }
    chosen = settings_of({**settings, **named})
    # What is impossible is refused before a model is loaded.
    verification(chosen)
    edge_open, cloud_open = _are_open(parts["edge"]), _are_open(parts["cloud"])
    fixed = [*_OF_CONNECTING] if cloud_open else []
    if edge_open:
        fixed += _OF_EDGE
        if cloud_open or cloud_address(chosen) == "none":
            fixed += names_in("machine")
    require_default(chosen, fixed, "applies only to models that Pair opens")
    if "threads" in fixed and slots != 1:
        raise UsageError("slots apply only to models that Pair opens", hint="leave them out")
    return chosen


def _listed(cloud: "Cloud | Sequence[Cloud] | None") -> list["Cloud | None"]:
    if isinstance(cloud, str):
        return list(each(cloud))
    clouds: list[Cloud | None] = [*cloud] if isinstance(cloud, Sequence) else [cloud]
    if not clouds:
        raise UsageError("The list of clouds is empty", hint="give none", setting="cloud")
    return clouds


def _are_open(parts: Sequence[object]) -> bool:
    return not any(part is None or isinstance(part, str | Path) for part in parts)


def _open_already(edge: EdgeModel) -> EdgeModel:
    if not isinstance(getattr(edge, "abilities", None), EdgeAbilities):
        raise UsageError(
            f"{edge!r} is not an edge model", hint="give an address, a Path or an open model"
        )
    if edge.tokenizer.chat_template is not None:
        prepare()
    return edge


def _address(part: object) -> str:
    """Return a model as a setting spells it: its address, or `<name>` if it is open already."""
    if isinstance(part, str):
        return part
    if isinstance(part, Path):
        path = from_home(part)
        # Else it could be taken for a hub repository.
        return str(path) if path.is_absolute() else f"./{path}"
    return f"<{getattr(part, 'name', type(part).__name__)}>"


def _response_format(options: AnswerOptions) -> ResponseFormat | None:
    return response_format_from(
        options.get("json_schema"),
        options.get("tools", ()),
        options.get("tool_choice", "auto"),
        options.get("parallel_tool_calls", True),
    )
