"""What the cloud model makes of texts that it did not write."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel, Needs
from edgewise.errors import UsageError
from edgewise_lab.evaluation.journal import append, read
from edgewise_lab.rollouts.base import Continuation, Prefix
from edgewise_lab.rollouts.cloud import CloudRollouts
from edgewise_lab.training.collect import Sample, steps_along

REFERENCES = "references.jsonl"
"""Where they are kept."""

_TOGETHER = 16


def read_by_cloud(
    samples: Sequence[Sample],
    cloud: CloudModel,
    folder: Path,
    done: Callable[[], None] = lambda: None,
) -> list[Sample]:
    """The samples with the cloud's logprob of every id, and what it would have written instead.

    A model in this process reads each in one prefill; an engine elsewhere is asked for one token at
    each position, and an id that is not among its candidates counts as likely as they leave room
    for. Those that `folder` holds are not read again. Raises `UsageError` for an engine that
    tells no candidates.
    """
    path = folder / REFERENCES
    known = {sample.question: sample for sample in read(path, Sample)}
    fresh = [s for s in samples if s.question not in known or known[s.question].ids != s.ids]
    for _ in range(len(samples) - len(fresh)):
        done()
    local = cloud.local
    for sample in _elsewhere(fresh, cloud) if local is None else _here(fresh, local):
        append(path, sample)
        known[sample.question] = sample
        done()
    return [known[sample.question] for sample in samples]


def _here(samples: Sequence[Sample], cloud: EdgeModel) -> Iterator[Sample]:
    session = cloud.session(Needs.ENTROPY)
    try:
        for sample in samples:
            logprobs: list[float] = []
            ids: list[int] = []
            for step, token in zip(steps_along(session, sample), sample.ids, strict=True):
                logprobs.append(step.logprob(token))
                ids.append(step.proposed)
            yield replace(sample, logprobs=tuple(logprobs), cloud=tuple(ids))
    finally:
        session.close()


def _elsewhere(samples: Sequence[Sample], cloud: CloudModel) -> Iterator[Sample]:
    rollouts = CloudRollouts(cloud)
    for start in range(0, len(samples), _TOGETHER):
        some = samples[start : start + _TOGETHER]
        prefixes = [Prefix((*s.prompt, *s.ids[:at]), 1) for s in some for at in range(len(s.ids))]
        replies = iter(rollouts.run(prefixes))
        for sample in some:
            own = [next(replies) for _ in sample.ids]
            logprobs = tuple(map(_logprob, own, sample.ids))
            yield replace(sample, logprobs=logprobs, cloud=tuple(one.ids[0] for one in own))


def _logprob(one: Continuation, token: int) -> float:
    """Of `token`, by the candidates for the first place; at most what these leave to others."""
    told = {candidate.id: candidate.logprob for candidate in (one.top or ((),))[0]}
    if not told:
        raise UsageError(
            "The cloud's engine does not tell how likely other tokens than its own are, which "
            "this label reads",
            hint="choose another label",
            setting="label",
        )
    if token in told:
        return told[token]
    left = 1.0 - sum(math.exp(logprob) for logprob in told.values())
    return min(math.log(max(left, 1e-9)), min(told.values()))
