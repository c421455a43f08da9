"""What a router is fitted to: the rows of all texts, with a label each."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Floats, Ids
from edgewise.errors import UsageError
from edgewise.routers.signals import signals_of
from edgewise_lab.training.collect import Columns, Sample

Objective = Literal["cross-entropy", "balanced-cross-entropy", "marginal-likelihood"]
"""What `fit` minimises; `balanced` lets the rarer class weigh as much as the other."""


class Data(msgspec.Struct, frozen=True):
    """What is learnt from, a row a token.

    `inputs` float32[n, width] (without the embedding), `labels` float32[n], `groups` int32[n]:
    which text; `proposed` int32[n] with `embeddings` float32[vocabulary, d] where the token's
    embedding is an input; `edge_logprob` and `cloud_logprob` float32[n] of the token written, for
    the marginal likelihood, the cloud's NaN where it is not known.
    """

    inputs: Floats
    labels: Floats
    groups: Ids
    proposed: Ids
    embeddings: Floats | None = None
    edge_logprob: Floats | None = None
    cloud_logprob: Floats | None = None


def data_of(
    columns: Columns,
    values: Mapping[str, Sequence[float]],
    samples: Sequence[Sample],
    *,
    inputs: Sequence[str],
    top_k: int,
    embeddings: Floats | None,
) -> Data:
    """Rows of the inputs asked for, with their labels. Raises `UsageError` without two classes."""
    labels = np.concatenate([values[name] for name in columns.questions]).astype(np.float32)
    if len(labels) != len(columns.written):
        raise UsageError("The labels belong to other texts", hint="remove the folder's data")
    if not 0 < float(labels.mean()) < 1:
        which = "no" if labels.mean() == 0 else "every"
        raise UsageError(
            f"There is nothing to learn: a consult is worth it at {which} token of the "
            f"{len(columns.questions)} texts",
            hint="give more questions, or another pair or label",
        )
    parts = [
        columns.inputs[one.name][:, :top_k] if one.per_k else columns.inputs[one.name]
        for one in signals_of(inputs)
        if one.read is not None
    ]
    logprobs = {sample.question: sample.logprobs for sample in samples}
    told = [logprobs[name] for name in columns.questions]
    cloud = np.array([one for text in told for one in text], np.float32) if all(told) else None
    return Data(
        np.concatenate(parts, axis=1) if parts else np.empty((len(labels), 0), np.float32),
        labels,
        columns.sample,
        columns.proposed,
        embeddings if "token_embedding" in inputs else None,
        columns.edge_logprob,
        None if cloud is None or np.isnan(cloud).all() else cloud,
    )


def held_out(data: Data, fraction: float, seed: int) -> NDArray[np.bool_]:
    """bool[n]: the rows to check a fit on, those of whole texts, since one text's are alike.

    Raises `UsageError` where they leave nothing to learn from.
    """
    texts = np.unique(data.groups)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(texts, max(1, int(fraction * len(texts))), replace=False)
    mask = np.isin(data.groups, chosen)
    if mask.all() or not data.labels[~mask].any():
        raise UsageError("There are too few answers to learn from", hint="give more questions")
    return mask
