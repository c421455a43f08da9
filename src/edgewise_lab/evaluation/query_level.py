"""Routing whole questions: what routing token by token must beat."""

from collections.abc import Sequence

import msgspec

from edgewise_lab.evaluation.systems import Outcome


def query_level(
    edge: Sequence[Outcome],
    cloud: Sequence[Outcome],
    share: float,
    scores: Sequence[float] | None = None,
) -> list[Outcome]:
    """Whole questions to the cloud, those of the highest scores first, within a cloud share.

    A question's score is how unsure the edge was over its answer (`Outcome.uncertainty`), or that
    of `scores`. Questions are sent as long as cloud tokens stay within `share` of all output
    tokens.
    """
    worth = [outcome.uncertainty for outcome in edge] if scores is None else scores
    chosen = list(edge)
    order = sorted(range(len(edge)), key=lambda i: -worth[i])
    output, written = sum(o.output_tokens for o in edge), 0
    for i in order:
        output += cloud[i].output_tokens - edge[i].output_tokens
        written += cloud[i].cloud_tokens
        if written > share * output:
            break
        chosen[i] = msgspec.structs.replace(cloud[i], uncertainty=edge[i].uncertainty)
    return chosen
