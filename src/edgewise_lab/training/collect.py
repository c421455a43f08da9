"""Training data of a router: texts, and the edge's and the cloud's predictions for them."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from edgewise.cloud.base import CloudModel
from edgewise.costs.price import BilledTokens
from edgewise.edge.base import EdgeModel, EdgeSession, Floats, Ids, Step, Tokenizer
from edgewise.errors import UsageError
from edgewise.routers.signals import READ, needs_of, signals_of, top_of
from edgewise_lab.evaluation.store import append, read
from edgewise_lab.evaluation.systems import max_answer_tokens, question_ids, text_of
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.grading import agreeing, is_right
from edgewise_lab.rollouts import Continuation, Prefix, Rollouts
from edgewise_lab.training.spending import SpendingMeter

Text = Literal["answer", "own"]
"""Which texts the edge model reads for training: the cloud model's answers, or its own."""

ANSWERS, OWN, OWN_READ = (f"{name}.jsonl" for name in ("answers", "own", "own-read"))
"""Files: the cloud's answers, the edge's, and the edge's with `Sample.cloud` set."""

KEPT = 64
"""Log-probs of the likeliest ids stored for every position; a router may use fewer."""

SAMPLES_A_SHARD = 50
COLUMNS = READ
_ALWAYS = ("sample", "proposed", "written")
"""Fields of `Columns` that are arrays, in their order."""
_PREFILL = 256


class Sample(msgspec.Struct, frozen=True):
    """A model's answer `ids` to a question with the ids `prompt`, as a text to learn from.

    `question` is the question's id. `cloud` has the id that the cloud would have written at each
    position; it is empty unless the cloud has read the answer.
    """

    question: str
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    right: bool
    cloud: tuple[int, ...] = ()


class Columns(msgspec.Struct, frozen=True):
    """Training table with a row for each of n tokens: the edge model's prediction before it.

    `questions` are the ids of the texts' questions; `sample` int32[n] is a row's index into them.
    `proposed` int32[n] is the edge's likeliest id, `written` int32[n] the id that the text has.
    `inputs` maps the name of a router's input to float32[n, width].
    """

    questions: tuple[str, ...]
    sample: Ids
    proposed: Ids
    written: Ids
    inputs: dict[str, Floats]


def collect_answers(
    task: Task,
    tokenizer: Tokenizer,
    writer: Rollouts,
    folder: Path,
    done: Callable[[], None] = lambda: None,
    *,
    contexts: Sequence[int] = (),
    name: str = ANSWERS,
) -> list[Sample]:
    """Return the answers of the model behind `writer` to all questions.

    They are kept in the file `name` in `folder`, and reused from there. An answer ends at the
    task's `max_tokens`, or where it fills one of the `contexts` (in ids), as the pair's would.
    `done` is called for each answer, stored ones too. Raises a `CloudError` where the model fails.
    """
    path = folder / name
    ids = {question.id: tuple(question_ids(tokenizer, question)) for question in task.questions}
    kept = read(path, Sample)
    known = {one.question: one for one in kept if ids.get(one.question) == one.prompt}
    asked = [question for question in task.questions if question.id not in known]
    prompts = [ids[question.id] for question in asked]

    def keep(index: int, written: Continuation) -> None:
        question = asked[index]
        text = text_of(tokenizer, written)
        # Where nobody knows the answer it is the cloud's own, which is asked for first.
        right = is_right(agreeing(question, text), text)
        sample = Sample(question.id, prompts[index], written, right)
        append(path, sample)
        known[question.id] = sample
        done()

    for _ in range(len(known)):
        done()
    rooms = [max_answer_tokens(len(prompt), task.max_tokens, *contexts) for prompt in prompts]
    writer.run([Prefix(*asked) for asked in zip(prompts, rooms, strict=True)], keep)
    return [known[question.id] for question in task.questions]


def collect_features(
    samples: Sequence[Sample],
    text: Text,
    edge: EdgeModel,
    folder: Path,
    done: Callable[[], None] = lambda: None,
) -> Columns:
    """Return the routers' inputs at every token of the texts, computed by the edge model.

    Use the engine and quantisation that the router will run with. `text` says whose answers these
    are; results are kept in `folder` in files named after it. `done` is called for each text.
    Raises `UsageError` for a damaged file, an input that is not finite, or texts without a token.
    """
    shards = [_read(path) for path in sorted(folder.glob(f"{text}-*.safetensors"))]
    known = {question for shard in shards for question in shard.questions}
    fresh = [sample for sample in samples if sample.question not in known and sample.ids]
    for _ in range(len(samples) - len(fresh)):
        done()
    with closing(edge.session(needs_of(COLUMNS), top=top_of(COLUMNS, KEPT))) as session:
        for start in range(0, len(fresh), SAMPLES_A_SHARD):
            shard = _columns(session, fresh[start : start + SAMPLES_A_SHARD], done)
            _write(folder / f"{text}-{len(shards):05d}.safetensors", shard)
            shards.append(shard)
    return _of(_joined(shards), {sample.question for sample in samples})


def _columns(session: EdgeSession, samples: Sequence[Sample], done: Callable[[], None]) -> Columns:
    rows: dict[str, list[Floats]] = {name: [] for name in COLUMNS}
    proposed: list[int] = []
    for sample in samples:
        for step in steps_along(session, sample):
            for signal in signals_of(COLUMNS):
                assert signal.read is not None
                rows[signal.name].append(signal.read(step, KEPT))
            proposed.append(step.proposed)
        done()
    inputs = {name: np.stack(values).astype(np.float32) for name, values in rows.items()}
    if not all(np.isfinite(values).all() for values in inputs.values()):
        raise UsageError(
            "The edge model computes hidden states or probabilities that are not numbers here",
            hint="its file is damaged, or of a kind that cannot run on this machine",
        )
    return Columns(
        tuple(sample.question for sample in samples),
        np.repeat(np.arange(len(samples), dtype=np.int32), [len(one.ids) for one in samples]),
        np.array(proposed, np.int32),
        np.array([token for sample in samples for token in sample.ids], np.int32),
        dict[str, Floats](inputs),
    )


def steps_along(session: EdgeSession, sample: Sample) -> Iterator[Step]:
    """Yield the model's prediction for each id of the answer; use one before you take the next."""
    session.open(sample.prompt)
    yield session.step()
    read = sample.ids[:-1]
    for start in range(0, len(read), _PREFILL):
        yield from session.steps(read[start : start + _PREFILL])


def _write(path: Path, shard: Columns) -> None:
    tensors: dict[str, NDArray[np.generic]] = {
        **{name: getattr(shard, name) for name in _ALWAYS},
        **{f"input.{name}": values for name, values in shard.inputs.items()},
    }
    # Under another name first: a file that is there is whole.
    partial = path.with_suffix(".partial")
    names = msgspec.json.encode(shard.questions).decode()
    save_file(tensors, partial, metadata={"questions": names})
    os.replace(partial, path)


def _read(path: Path) -> Columns:
    try:
        with safe_open(path, "numpy") as file:
            names = msgspec.json.decode(file.metadata()["questions"], type=tuple[str, ...])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        found = Columns(
            questions=names,
            inputs={name: tensors[f"input.{name}"] for name in COLUMNS},
            **{name: tensors[name] for name in _ALWAYS},
        )
        _require_whole(found)
    except (SafetensorError, LookupError, OSError, TypeError, ValueError) as error:
        raise UsageError(f"{str(path)!r} is damaged ({error})", hint="remove it") from error
    return found


def _require_whole(found: Columns) -> None:
    ids, rows = (found.sample, found.proposed, found.written), len(found.written)
    whole = all(one.dtype == np.int32 and one.shape == (rows,) and one.min() >= 0 for one in ids)
    for one in found.inputs.values():
        fits = one.dtype == np.float32 and one.ndim == 2 and len(one) == rows
        whole = whole and fits and bool(np.isfinite(one).all())
    if not whole or found.sample.max() >= len(found.questions):
        raise ValueError("its columns do not agree")


def _of(columns: Columns, questions: set[str]) -> Columns:
    kept = np.array([name in questions for name in columns.questions])
    rows, places = kept[columns.sample], np.cumsum(kept) - 1
    return Columns(
        questions=tuple(name for name in columns.questions if name in questions),
        sample=places[columns.sample[rows]].astype(np.int32),
        inputs={name: values[rows] for name, values in columns.inputs.items()},
        **{name: getattr(columns, name)[rows] for name in _ALWAYS[1:]},
    )


def _joined(shards: Sequence[Columns]) -> Columns:
    if not shards:
        raise UsageError("There are no answers to learn from", hint="give questions that have some")
    starts = np.cumsum([0, *(len(shard.questions) for shard in shards[:-1])])
    sample = [shard.sample + start for shard, start in zip(shards, starts, strict=True)]
    return Columns(
        questions=tuple(question for shard in shards for question in shard.questions),
        sample=np.concatenate(sample).astype(np.int32),
        inputs={name: np.concatenate([shard.inputs[name] for shard in shards]) for name in COLUMNS},
        **{n: np.concatenate([getattr(shard, n) for shard in shards]) for n in _ALWAYS[1:]},
    )


_TOGETHER = 16


def read_by_cloud(
    samples: Sequence[Sample],
    cloud: CloudModel,
    folder: Path,
    done: Callable[[], None] = lambda: None,
    *,
    meter: SpendingMeter,
) -> list[Sample]:
    """Return the samples with `cloud` set; those kept in `folder` are not read again.

    A model in this process reads each text once, and its tokens are added to `meter`. Any other
    cloud gets a request for one token at each position: wrap it by `meter.counted` to count those.
    """
    path = folder / OWN_READ
    known = {sample.question: sample for sample in read(path, Sample)}
    fresh = [s for s in samples if s.question not in known or known[s.question].ids != s.ids]
    for _ in range(len(samples) - len(fresh)):
        done()
    local = cloud.local
    for sample in _elsewhere(fresh, cloud) if local is None else _here(fresh, local):
        if local is not None:
            # Consults elsewhere are counted as they are made.
            meter.count(BilledTokens(input=len(sample.prompt) + len(sample.ids)))
        append(path, sample)
        known[sample.question] = sample
        done()
    return [known[sample.question] for sample in samples]


def _here(samples: Sequence[Sample], cloud: EdgeModel) -> Iterator[Sample]:
    with closing(cloud.session()) as session:
        for sample in samples:
            ids = tuple(step.proposed for step in steps_along(session, sample))
            yield replace(sample, cloud=ids)


def _elsewhere(samples: Sequence[Sample], cloud: CloudModel) -> Iterator[Sample]:
    rollouts = Rollouts(cloud)
    for start in range(0, len(samples), _TOGETHER):
        some = samples[start : start + _TOGETHER]
        prefixes = [Prefix((*s.prompt, *s.ids[:at]), 1) for s in some for at in range(len(s.ids))]
        replies = iter(rollouts.run(prefixes))
        for sample in some:
            yield replace(sample, cloud=tuple(next(replies)[0] for _ in sample.ids))
