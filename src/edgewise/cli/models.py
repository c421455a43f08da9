"""The two models of a command, closed with it."""

from contextlib import ExitStack

from msgspec.structs import replace

from edgewise import pair
from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.settings import Settings


def open_pair(chosen: Settings, stack: ExitStack) -> tuple[EdgeModel, CloudModel]:
    """Both models, with a slot more than a decoder needs: the oracle reads beside it."""
    roomy = replace(chosen, slots=max(2, chosen.slots or 1))
    edge = pair.open_edge(roomy)
    stack.callback(edge.close)
    cloud = pair.open_cloud(roomy, edge)
    if cloud is None:
        raise UsageError("This compares with a cloud model; name one with --cloud.")
    stack.callback(cloud.close)
    return edge, cloud
