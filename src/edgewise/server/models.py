"""Model ids choose the trade-off: `edgewise`, `edgewise@0.05`, `edgewise:edge|cloud`."""

import re

from msgspec.structs import replace

from edgewise.loop.policy import Policy
from edgewise.parts import make_policy
from edgewise.routers.card import RouterCard
from edgewise.server.errors import ApiError
from edgewise.settings import Settings

PAIR, EDGE, CLOUD = "edgewise", "edgewise:edge", "edgewise:cloud"
_SHARE = re.compile(r"edgewise@(0(?:\.\d{1,6})?|1(?:\.0{1,6})?)")


def policy_for(model: str, settings: Settings, card: RouterCard | None, *, cloud: bool) -> Policy:
    """The policy that a model id names. Raises `ApiError` 404 for an unknown one."""
    pair = make_policy(settings, card)
    if model == PAIR:
        return pair
    if model == EDGE:
        return pair.edge_alone()
    if model == CLOUD and cloud:
        return pair.cloud_alone()
    if match := _SHARE.fullmatch(model):
        shared = replace(settings, cloud_share=float(match[1]), threshold=None)
        return make_policy(shared, card)
    if model == CLOUD:
        message = f"{CLOUD!r} needs a cloud model, and the server has none."
    else:
        message = (
            f"There is no model {model[:60]!r}; ask for {PAIR}, {PAIR}@0.05 (a cloud share from 0 "
            f"to 1), {EDGE} or {CLOUD}."
        )
    raise ApiError(404, message, code="model_not_found", param="model")


def model_ids(*, cloud: bool) -> list[str]:
    """Those that are listed."""
    return [PAIR, f"{PAIR}@0.02", f"{PAIR}@0.05", f"{PAIR}@0.1", EDGE, *([CLOUD] if cloud else [])]
