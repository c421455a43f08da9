"""Functions that open the parts of a pair (edge, clouds, router, policy, costs) from settings."""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from edgewise.addresses import (
    bundled,
    checkpoint,
    each,
    is_path,
    is_url,
    resolve,
    user_path,
    with_scheme,
)
from edgewise.cloud.adapter.ids import Adapter, checked
from edgewise.cloud.base import CloudModel
from edgewise.cloud.hosts import bearer, hosts_of, is_at, require_allowed, require_near
from edgewise.cloud.redaction import ContextFilter, filter_of
from edgewise.costs.daily import DailyTotal
from edgewise.costs.meter import Billing, Limits
from edgewise.costs.price import price_of
from edgewise.edge.base import EdgeModel, EdgeOptions
from edgewise.edge.named import EDGES, SERVER, engine_at
from edgewise.errors import EdgeError, ModelError, RouterMismatch, UsageError
from edgewise.loop.one_cloud import TIER_SHARE, TIER_THRESHOLD, Tier
from edgewise.loop.policy import Policy
from edgewise.providers import api_url, hosted
from edgewise.registry import is_code
from edgewise.routers.base import Router
from edgewise.routers.card import CONFIG, RouterCard, read_card, start_at
from edgewise.routers.named import (
    ROUTERS,
    identity_named,
    identity_of,
    is_router,
    router_named,
    router_of,
)
from edgewise.routers.thresholds import TIERS, own_thresholds, tuned_thresholds
from edgewise.sampling import Sampling
from edgewise.settings import NAMES, Settings, for_each, fractions, require_default, spelled

_log = logging.getLogger(__name__)

AUTO, FALLBACK_ROUTER, NEVER = "auto", "max-prob", "constant:0"
DEFAULT_SHARE, VERIFY_SHARE = 0.05, 0.10
"""The default cloud shares: where a router asks, and where the cloud verifies."""

_GGUF = "llamacpp"
_DEFAULTS = Settings()
_VERIFIES = ("on", "exact")
_OF_ROUTERS = ("router", "threshold", "span", "speculate")
_NO_WAY_BACK = "the edge model cannot roll back to every token"
_OF_A_CLOUD = ("cloud_engine", "cloud_model", "cloud_key", "cloud_tokenizer")


def open_edge(
    settings: Settings,
    *,
    slots: int = 1,
    keep_prefixes: bool = False,
    sent: Callable[[str, bytes], None] | None = None,
) -> EdgeModel:
    """Load the edge model of the settings, for `slots` sessions at once. The caller closes it.

    The rest: see `EdgeOptions`. Raises `UsageError`, or `EdgeError` if its server does not answer.
    """
    options = _options(settings, slots, keep_prefixes)
    engine = edge_engine(settings)
    if engine == SERVER:
        # It gets every prompt.
        require_near(with_scheme(settings.edge), hosts_of(settings.edge_hosts, "edge_hosts"))
        options = replace(
            options,
            model=settings.edge_model,
            tokenizer=settings.edge_tokenizer,
            key=bearer(settings, "edge_key"),
            sent=sent,
        )
    else:
        why = f"applies only to an edge model at a URL, not to {engine}"
        require_default(settings, ("edge_model", "edge_tokenizer"), why)
    with _named_by("edge"):
        return EDGES.load(engine)(settings.edge, options)


@contextmanager
def _named_by(setting: str) -> Generator[None]:
    """Set `setting` on a `ModelError` that the `with` block raises, unless it has one already."""
    try:
        yield
    except ModelError as error:
        error.setting = error.setting or setting
        raise


def edge_engine(settings: Settings) -> str:
    """Return the setting `edge_engine`; for "auto" the name of the engine that can open `edge`."""
    named = settings.edge_engine
    return engine_at(settings.edge) if named == "auto" else EDGES.spelled(named)


def cloud_address(settings: Settings) -> str:
    """Return the first cloud's address; of a hosted model, such as gpt-5-mini, its API's URL.

    Without the setting `cloud` it is "bundled" if the edge model is the bundled one, else "none".
    """
    if settings.cloud is not None:
        return api_url(each(settings.cloud)[0])
    return "bundled" if settings.edge == "bundled" else "none"


def nearest_cloud(settings: Settings) -> str:
    """Return "ADDRESS MODEL" of the first cloud: the key of its stored tuned thresholds."""
    return f"{cloud_address(settings)} {each_cloud(settings)[0].cloud_model or ''}"


def each_cloud(settings: Settings, clouds: Sequence[str] | None = None) -> list[Settings]:
    """Return the settings of each cloud, in the order of `clouds`.

    `clouds` are their addresses, by default those in `settings`. With several clouds each setting
    of a connection, such as `cloud_key`, lists one value per cloud, separated by commas. `redact`
    is None for trusted clouds. With the cloud "none" the list has one item. Raises `UsageError`.
    """
    clouds = clouds or each(settings.cloud or cloud_address(settings))
    own = [{"cloud": one} for one in clouds] if len(clouds) > 1 else [{}]
    for name in _OF_A_CLOUD if len(clouds) > 1 else ():
        for one, value in zip(own, for_each(settings, name, len(clouds)), strict=True):
            one[name] = value or getattr(_DEFAULTS, name)
    made = [replace(settings, **one) for one in own]
    if len(clouds) > 1 and "none" in clouds:
        raise UsageError("none excludes all other clouds", hint="leave it out", setting="cloud")
    return [
        replace(one, redact=None) if is_trusted(one, at) else one
        for one, at in zip(made, clouds, strict=True)
    ]


def require_one_cloud(settings: Settings) -> None:
    """Raise `UsageError` if the settings name several clouds."""
    if settings.cloud is not None and len(each(settings.cloud)) > 1:
        raise UsageError("This command takes one cloud", hint="give the nearest", setting="cloud")


def is_trusted(settings: Settings, name: str | None = None) -> bool:
    """Whether the setting `trust` lists the host in the address `name` (None: the first cloud)."""
    hosts = hosts_of(settings.trust, "trust")
    at = name or cloud_address(settings)
    return hosts is not None and is_at(at if "://" in at else f"http://{at}", hosts)


def make_tiers(settings: Settings, clouds: Sequence[CloudModel], edge: EdgeModel) -> list[Tier]:
    """Return a `Tier` (threshold, share, trust) for each of the open `clouds`, in their order.

    A cloud after one that is asked only at word boundaries is asked only there, too; if the edge's
    server takes text, all are. Of several, those in this process are trusted. Raises `UsageError`.
    """
    further = max(0, len(clouds) - 1)
    shares = fractions(settings, "tier_share", [TIER_SHARE] * further)
    tuned = [
        tuned_thresholds(edge, TIERS, tier_address(clouds[:n])).get(f"{share:g}", TIER_THRESHOLD)
        for n, share in enumerate(shares, 2)
    ]
    thresholds = [TIER_THRESHOLD, *fractions(settings, "tier_threshold", tuned)]
    tiers: list[Tier] = []
    by_words = edge.abilities.text
    # Not strict without clouds: the nearest has a share and a threshold even if it is none.
    for cloud, share, threshold in zip(clouds, [None, *shares], thresholds, strict=bool(clouds)):
        trusted = is_trusted(settings, cloud.name) or bool(further and cloud.here)
        if by_words and cloud.boundaries is None and not cloud.reads_passages:
            cloud = Adapter(cloud, own=edge.tokenizer, edge=edge.tokenizer)
        if tiers and cloud.reads_passages:
            raise UsageError(
                f"{cloud.name!r} reads passages and writes no tokens, as a further cloud must",
                hint="leave it out",
                setting="cloud",
            )
        by_words = by_words or cloud.boundaries is not None
        tiers.append(Tier(cloud, threshold=threshold, share=share, trusted=trusted))
    if settings.price is not None and not all(tier.trusted for tier in tiers[:-1]):
        raise UsageError(
            "The price applies to the last cloud only, so every cloud before it must be trusted",
            hint="add its host",
            setting="trust",
        )
    return tiers


def tier_address(clouds: Sequence[CloudModel]) -> str:
    """Return the key of the last cloud's stored thresholds: all identities, joined by commas."""
    return ",".join(cloud.identity() for cloud in clouds)


def open_cloud(
    settings: Settings, edge: EdgeModel, *, slots: int = 1, keep_prefixes: bool = False
) -> CloudModel | None:
    """Open the cloud model and check its vocabulary; for the cloud "none" return None.

    With another vocabulary, or with `redact`, it is wrapped in an adapter. `slots` and
    `keep_prefixes`, for a model in this process, are those of `EdgeOptions`. Raises `UsageError`
    for wrong settings, such as a host that is not allowed, or a `CloudError` without a connection.
    """
    require_one_cloud(settings)
    if settings.cloud_engine != _DEFAULTS.cloud_engine:
        from edgewise.cloud.registry import check_name

        check_name(settings.cloud_engine)
    # What is wrong with it shows wherever the cloud is.
    shown, hosts = context_filter(settings), hosts_of(settings.cloud_hosts)
    address = cloud_address(settings)
    if is_url(address):
        require_allowed(address, hosts)
        from edgewise.cloud.connect import connect
        from edgewise.edge.named import open_tokenizer

        tokenizer, model = settings.cloud_tokenizer, settings.cloud_model
        if settings.cloud is not None and (known := hosted(each(settings.cloud)[0])):
            if model and model != known[1]:
                raise UsageError(
                    f"The cloud {known[1]!r} is a model's name, and cloud-model names {model!r}",
                    hint="leave one of them out",
                    setting="cloud_model",
                )
            model = known[1]
        return connect(
            address,
            edge.tokenizer,
            key=bearer(settings, "cloud_key"),
            engine=settings.cloud_engine,
            model=model,
            # What is wrong with it shows before anything is asked.
            own=open_tokenizer(tokenizer) if tokenizer else None,
            context_filter=shown,
        )
    why = f"applies only to a cloud at a URL, not to {address!r}"
    require_default(settings, ("cloud_engine", "cloud_tokenizer", "cloud_model"), why)
    if address == "none":
        return None
    from edgewise.cloud.local import LocalCloud

    with _named_by("cloud"):
        options = _options(settings, slots, keep_prefixes)
        local = LocalCloud(EDGES.load(_GGUF)(str(resolve(address, "cloud")), options))
    return checked(local, edge.tokenizer, context_filter=shown)


def context_filter(settings: Settings) -> ContextFilter | None:
    """Return the filter of private words for the setting `redact`, or None. Raises `UsageError`."""
    return filter_of(settings.redact)


def verification(
    settings: Settings, edge: EdgeModel | None = None, cloud: CloudModel | None = None
) -> Literal["off", "on", "exact"]:
    """Return how the first cloud verifies draft tokens, by the setting `verify`.

    "auto" is "on" unless a model or another setting, such as a price, rules that out: then "off". A
    cloud that verifies passages (`CloudModel.reads_passages`) is always "on". Without `edge` and
    `cloud` the settings alone decide. Raises `UsageError` if they ask for what is impossible.
    """
    against = [*_against_verifying(settings, edge, cloud)]
    reads = cloud is not None and cloud.reads_passages
    lacking = cloud_address(settings) == "none" or (cloud is not None and not reads)
    if settings.escalate is not None and lacking:
        raise UsageError(
            "escalate needs a chat API as the cloud, which answers whole",
            hint="leave it out, or name the cloud engine openai or anthropic",
            setting="escalate",
        )
    if cloud is not None and reads:
        if against or settings.verify == "off":
            why = against[0] if against else "verify is off"
            leave = "name a GGUF as the edge" if why == _NO_WAY_BACK else "leave that out"
            raise UsageError(
                f"{cloud.name!r} reads passages and writes no tokens, which is not possible: {why}",
                hint=f"{leave}, or name a cloud that continues text",
                setting="cloud",
            )
        # A cloud that writes every answer whole corrects nothing.
        whole = 1 in (settings.cloud_share, settings.escalate)
        if settings.verify == "auto" and not (cloud.reads_well or whole):
            raise UsageError(
                f"{cloud.name!r} does not see that three and three are not seven, so it would "
                "correct badly",
                hint="name another; to see what this one does, run edgewise try with verify on",
                setting="cloud",
            )
        return "on"
    if settings.verify == "auto":
        # With a price each token counts, and a cloud that reads along reads them all.
        return "off" if against or settings.price is not None else "on"
    if against and settings.verify != "off":
        raise UsageError(
            f"verify {settings.verify} is not possible: {against[0]}",
            hint="leave one of them out",
            setting="verify",
        )
    return settings.verify


def _against_verifying(
    settings: Settings, edge: EdgeModel | None, cloud: CloudModel | None
) -> Iterator[str]:
    """Yield the reasons why the cloud cannot verify, as parts of error messages."""
    share = settings.cloud_share
    reads = cloud is not None and cloud.reads_passages
    for name in _OF_ROUTERS:
        unset = (getattr(_DEFAULTS, name), AUTO, *([NEVER] if reads else []))
        if getattr(settings, name) not in unset:
            yield f"{spelled(name)} is a router's, and no router asks then"
    if share in (0, 1) and not reads:
        yield f"at a cloud-share of {share:g} one model writes everything"
    if share is not None and settings.verify == "exact":
        yield "exact corrects whatever differs, so no cloud-share holds"
    if cloud_address(settings) == "none":
        yield "there is no cloud"
    if len(each(settings.cloud or "")) > 1:
        yield "several clouds are asked by routers only"
    if edge is not None and (edge.abilities.rewinds == "no" or edge.abilities.text):
        yield _NO_WAY_BACK
    if cloud is not None and cloud.reads_passages:
        if settings.verify == "exact":
            yield "exact needs a cloud that scores tokens"
        if settings.on_edge_error == "cloud":
            yield "on-edge-error cloud needs one that writes tokens"
    elif cloud is not None and not cloud.verifies:
        if context_filter(each_cloud(settings)[0]) is not None:
            yield "redacted text has other tokens"
        yield (
            f"{cloud.name!r} cannot (a model in this process, a gateway, llama-server, vLLM and "
            "SGLang can, with the edge model's vocabulary)"
        )
    elif cloud is not None and settings.price is not None and not cloud.reads_once:
        yield f"{cloud.name!r} bills each verified token again, which a price would not bear"


def open_router(settings: Settings, edge: EdgeModel) -> tuple[Router, RouterCard | None]:
    """Load the router; return it and its checkpoint's card, or None. Raises `UsageError`."""
    settings = replace(settings, router=chosen_router(settings, edge))
    if (folder := router_folder(settings)) is None:
        return router_named(str(settings.router)), None
    card = _card(settings, folder)
    card.require_fits(edge, folder)
    if warning := card.build_warning(edge):
        _log.warning(warning)
    router = router_of(card, folder)
    known = getattr(router, "tokens", None)
    if isinstance(known, int) and known < edge.tokenizer.size:
        raise RouterMismatch(
            f"The router {str(folder)!r} knows {known} tokens and the edge model has "
            f"{edge.tokenizer.size}",
            hint="train one for this model, or choose entropy",
            setting="router",
        )
    return router, card


def chosen_router(settings: Settings, edge: EdgeModel) -> str:
    """Return the setting `router`; if unset or "auto", one shipped for this edge, else max-prob."""
    if settings.router not in (None, AUTO):
        return ROUTERS.spelled(settings.router)
    if settings.edge == "bundled":
        return "bundled"
    return str(known_router(edge) or FALLBACK_ROUTER)


def known_router(edge: EdgeModel) -> Path | None:
    """Return the folder of the router that ships with Edgewise for this edge model, or None."""
    # Sorted, since folders list their files in any order.
    for card in sorted(bundled("routers").glob(f"*/{CONFIG}")):
        # A server that takes text cannot be compared inside a character.
        with suppress(RouterMismatch, EdgeError):
            read_card(card.parent).require_fits(edge, card.parent)
            return card.parent
    return None


def starts_of(
    settings: Settings, router: Router, card: RouterCard | None, edge: EdgeModel
) -> Mapping[str, float]:
    """Return the router's initial thresholds, by cloud share as text ("0.05").

    They are those tuned for this pair, else those in `card`, else measured on the edge's own
    answers, which takes seconds. Empty if `threshold` is set, `cloud_share` is 0 or 1, `verify` is
    "on" or "exact", or there is no cloud.
    """
    steered = settings.threshold is None and settings.cloud_share not in (0, 1)
    if not steered or cloud_address(settings) == "none" or settings.verify in _VERIFIES:
        return {}
    identity = router_identity(replace(settings, router=chosen_router(settings, edge)))
    tuned = tuned_thresholds(edge, identity, nearest_cloud(settings))
    return tuned or (card.thresholds if card else {}) or own_thresholds(edge, router, identity)


def router_identity(settings: Settings) -> str:
    """Return a SHA-256 (hex) of the code and checkpoint, or name, of a `chosen_router`."""
    if (folder := router_folder(settings)) is None:
        return identity_named(str(settings.router))
    return identity_of(_card(settings, folder), folder)


def router_folder(settings: Settings) -> Path | None:
    """Return the folder of the router's checkpoint, downloaded; None if it needs no checkpoint."""
    name = str(settings.router)
    if name == "bundled":
        return bundled("router")
    return None if is_router(name) else checkpoint(name)


def _card(settings: Settings, folder: Path) -> RouterCard:
    """Return a checkpoint's card. Raises `UsageError` if it names code and `router` is no path."""
    card = read_card(folder)
    if is_code(card.kind) and not is_path(str(settings.router)):
        raise UsageError(
            f"The router {settings.router!r} is of the kind {card.kind!r}: a download, or what "
            "only has this name here, must not choose the code to run",
            hint="install a package that registers its kind, or write the path of a folder of your "
            f"own (./{settings.router})",
            setting="router",
        )
    return card


def make_policy(settings: Settings, starts: Mapping[str, float]) -> Policy:
    """Return the policy of the settings: with a fixed threshold, or with a cloud share.

    If `verify` is "off" or "auto", or a threshold is set, a router asks: by the threshold alone, or
    by a cloud share (`DEFAULT_SHARE` if neither is set). A share's initial threshold is the set
    one, else that in `starts` (from `starts_of`), else 0.5. Otherwise the cloud verifies: "exact"
    with a share becomes "on", and "on" without a share gets `VERIFY_SHARE`.
    """
    share, fixed = settings.cloud_share, settings.threshold
    verify = "off" if settings.verify == "auto" or fixed is not None else settings.verify
    if verify != "off":
        # A share that is asked for is honoured, of one answer too.
        verify = "exact" if verify == "exact" and share is None else "on"
        share = VERIFY_SHARE if verify == "on" and share is None else share
    elif fixed is None and share is None:
        share = DEFAULT_SHARE
    fitting = None if share is None else start_at(starts, share)
    start = fitting if fixed is None else fixed
    own = [name for name in Policy.__struct_fields__ if name in NAMES]
    values: dict[str, Any] = {name: getattr(settings, name) for name in own}
    values |= {"threshold": 0.5 if start is None else start, "cloud_share": share, "verify": verify}
    return Policy(**values)


def make_billing(settings: Settings) -> Billing | None:
    """Return the set price and cost limits; None without a price. Raises `UsageError`."""
    if settings.price is None:
        for name in ("max_cost", "max_cost_day"):
            if getattr(settings, name) is not None:
                raise UsageError(f"{spelled(name)} needs a price", hint="set one", setting="price")
        return None
    day, place = settings.max_cost_day, user_path("state", "spent.db")
    if day is not None and place is None:
        raise UsageError(
            "There is no home folder to store the daily costs in",
            hint="set HOME or XDG_STATE_HOME",
            setting="max_cost_day",
        )
    # By their text, as the float 0.1 is not a tenth.
    limits = Limits(
        answer=None if settings.max_cost is None else Decimal(str(settings.max_cost)),
        day=None if day is None else Decimal(str(day)),
    )
    return Billing(
        price_of(settings.price), limits=limits, daily=DailyTotal(place) if place else None
    )


def _options(settings: Settings, slots: int, keep_prefixes: bool) -> EdgeOptions:
    return EdgeOptions(
        context=settings.ctx,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        slots=slots,
        keep_prefixes=keep_prefixes,
    )


def sampling_of(settings: Settings, options: Mapping[str, object] | None = None) -> Sampling:
    """Return the settings' sampling; `options` replace its fields by name. Raises `UsageError`."""
    named = {
        "temperature": settings.temperature or 0.0,
        "top_p": settings.top_p,
        "seed": settings.seed or 0,
    }
    try:
        return msgspec.convert({**named, **(options or {})}, Sampling)
    except msgspec.ValidationError as error:
        raise UsageError(f"The sampling is not valid: {error}.") from error
