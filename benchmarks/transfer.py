"""Whether a router serves a pair that it was not trained on: `python -m benchmarks.transfer`.

Reads what `edgewise train --label rescue --inputs text --inputs ranks` has collected and labelled
for several pairs: "PAIR, TASK=FOLDER@EDGE", the folder of the checkpoint and the edge's GGUF file.
Ranks are taken among what each edge writes to `edgewise.routers.thresholds.PROMPTS`, so that they
mean the same on every edge. Tokens are scored by the routers that need no training, by one fitted
to the other pairs, to other pairs on other tasks, and to the pair's own other texts. Of the answers
that one token of the cloud would save, prints how many have such a token among the highest scores,
and how many more that are than by `entropy`; 95% intervals by bootstrap over texts, paired.

`--ship OUT` fits one router to all pairs, and writes it for the edge of the first of them.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file

from benchmarks.shared import ends, show
from edgewise.edge.base import Floats, Ids, Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.routers.card import read_card
from edgewise.routers.signals import SIGNALS, Reference, ranks_of
from edgewise.routers.thresholds import own_scores
from edgewise_lab.evaluation.store import read
from edgewise_lab.training.fit import Data, Recipe, fit
from edgewise_lab.training.labels.base import Labelled
from edgewise_lab.training.publish import README, isotonic, save_card, save_weights
from edgewise_lab.training.router import reference_of

SHARES = (0.05, 0.10)
FOLDS = 5
RECIPE = Recipe(hidden=(32,))
DRAWS = 2000
MOST = 100
"""Texts of a pair that others learn from."""

LICENCES = "CommonsenseQA's train split, MIT licence; facts of this project's own"

Mask = NDArray[np.bool_]


class Texts(NamedTuple):
    """The tokens of a pair's texts: float32[n, 3], [n, 31], [n], int32[n]."""

    uncertainties: Floats
    inputs: Floats
    labels: Floats
    groups: Ids

    def some(self, rows: Mask) -> "Texts":
        own = self.uncertainties[rows], self.inputs[rows]
        return Texts(*own, self.labels[rows], self.groups[rows])

    def data(self) -> Data:
        return Data(self.inputs, self.labels, self.groups, np.zeros(len(self.labels), np.int32))


def texts_of(folder: Path, edge: Path) -> Texts:
    """What training has collected and labelled in `folder`."""
    data = folder / "data"
    labels = {
        one.question: one.values
        for path in data.glob("labels-rescue*.jsonl")
        for one in read(path, Labelled)
    }
    parts: list[tuple[Floats, Floats, Floats, int]] = []
    for path in sorted(data.glob("own-*.safetensors")):
        tensors = load_file(path)
        with safe_open(path, "numpy") as file:
            names = msgspec.json.decode(file.metadata()["questions"], type=list[str])
        for index, name in enumerate(names):
            rows = tensors["sample"] == index
            if name in labels:
                columns = tensors["input.ranks"][rows], tensors["input.text"][rows]
                parts.append((*columns, np.array(labels[name], np.float32), len(parts)))
    raw, text, values = (np.concatenate(column) for column in list(zip(*parts, strict=True))[:3])
    groups = np.concatenate([np.full(len(p[2]), p[3], np.int32) for p in parts])
    reference = own_reference(folder, edge)
    return Texts(raw, np.concatenate([text, ranks_of(raw, reference)], axis=1), values, groups)


class Recorder:
    """A router that keeps what ranks are taken of."""

    needs, top = SIGNALS["ranks"].needs, SIGNALS["ranks"].top

    def __init__(self) -> None:
        self.rows: list[Floats] = []

    def score(self, step: Step) -> float:
        read = SIGNALS["ranks"].read
        assert read is not None
        self.rows.append(read(step, 0))
        return 0.0


def own_reference(folder: Path, edge: Path) -> Reference:
    """What ranks are taken among; kept in `folder`."""
    kept = folder / "own-writing.json"
    if not kept.exists():
        recorder = Recorder()
        with closing(LlamaModel(edge, context=512, threads=1)) as model:
            own_scores(model, recorder)
        kept.write_bytes(msgspec.json.encode(reference_of(np.stack(recorder.rows))))
    return msgspec.json.decode(kept.read_bytes(), type=Reference)


def ship(
    out: Path, named: Mapping[str, tuple[Path, Path]], texts: Sequence[Texts], measured: str
) -> None:
    """One router of all the pairs, for the edge of the first."""
    fitted = fit(joined(texts), RECIPE)
    (folder, edge), *_ = named.values()
    card = msgspec.structs.replace(
        read_card(folder),
        reference=own_reference(folder, edge),
        thresholds={},
        realised={},
        trained_on=f"{'; '.join(named)} ({len(texts)} pairs; {LICENCES})",
        measured=measured,
        probability=isotonic(fitted.scores, fitted.labels),
        loss=fitted.loss,
        baseline_loss=fitted.baseline_loss,
    )
    save_weights(out, fitted.tensors, [])
    digests = [(one / "trained_on.txt").read_text("utf-8") for one, _ in named.values()]
    (out / "trained_on.txt").write_text("".join(sorted(set("".join(digests).splitlines(True)))))
    save_card(out, card)
    told = (out / README).read_text("utf-8")
    label = f"- label: {card.label}\n"
    (out / README).write_text(told.replace(label, f"{label}- measured: {measured}\n"), "utf-8")


def scores(data: Data, inputs: Floats) -> Floats:
    """float32[n]: by a perceptron fitted to `data`."""
    found = fit(data, RECIPE).tensors
    x = (inputs - found["mean"]) / found["std"]
    hidden = np.maximum(x @ found["layers.0.weight"].T + found["layers.0.bias"], 0)
    logits = hidden @ found["layers.1.weight"].T + found["layers.1.bias"]
    return logits[:, 0].astype(np.float32)


def joined(pairs: Sequence[Texts]) -> Data:
    """As many texts of each pair, so that none decides alone."""
    kept = [pair.some(pair.groups < MOST) for pair in pairs]
    starts = np.cumsum([0, *(int(pair.groups.max()) + 1 for pair in kept)])
    moved = [p._replace(groups=p.groups + start) for p, start in zip(kept, starts, strict=False)]
    return Texts(*(np.concatenate(c).astype(c[0].dtype) for c in zip(*moved, strict=True))).data()


def cross_fitted(own: Texts) -> Floats:
    """Each text scored by a router that was fitted to the pair's other texts."""
    found = np.zeros(len(own.labels), np.float32)
    for fold in range(FOLDS):
        apart = own.groups % FOLDS == fold
        found[apart] = scores(own.some(~apart).data(), own.inputs[apart])
    return found


def saved(own: Texts, score: Floats, share: float) -> Floats:
    """By text: the most that a consult at one of the highest scores gains."""
    rank = np.argsort(np.argsort(-score, kind="stable"), kind="stable")
    found = np.zeros(int(own.groups.max()) + 1, np.float32)
    np.maximum.at(found, own.groups, own.labels * (rank < share * len(score)))
    return found


HEAD = (
    *("pair", "answers", "can be saved", "router"),
    *(cell for at in SHARES for cell in (f"saved at {at:.0%}, %", "above entropy, points")),
)


def rows(pairs: Mapping[str, Texts]) -> Iterator[list[str]]:
    rng = np.random.default_rng(0)
    for name, own in pairs.items():
        others = [pair for other, pair in pairs.items() if other != name]
        task = name.rpartition(", ")[2]
        elsewhere = [pair for other, pair in pairs.items() if not other.endswith(task)]
        judged = {
            "entropy": own.uncertainties[:, 0],
            "max-prob": own.uncertainties[:, 1],
            "margin": own.uncertainties[:, 2],
            "trained on the others": scores(joined(others), own.inputs),
            "trained on this pair": cross_fitted(own),
        }
        if elsewhere:
            judged["trained on other tasks"] = scores(joined(elsewhere), own.inputs)
        worth = saved(own, own.labels, 1.0)
        drawn = rng.integers(0, len(worth), (DRAWS, len(worth)))

        def saving(gains: Floats, worth: Floats = worth, drawn: Any = drawn) -> str:
            total = np.maximum(worth[drawn].sum(axis=1), 1e-9)
            low, high = np.quantile(gains[drawn].sum(axis=1) / total, [0.025, 0.975])
            return ends(gains.sum() / worth.sum(), (low, high))

        for router, score in judged.items():
            cells = [name, f"{len(worth)}", f"{worth.sum():.0f}", router]
            for share in SHARES:
                found, rival = (saved(own, s, share) for s in (score, judged["entropy"]))
                cells.append(saving(found))
                above = saving(found - rival)
                cells.append("" if router == "entropy" else above)
            yield cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*", help="PAIR, TASK=FOLDER@EDGE")
    parser.add_argument("--ship", type=Path, metavar="OUT")
    parser.add_argument("--measured", default="", help="of what is shipped, for its card")
    given = parser.parse_args()
    parts = (pair.partition("=") for pair in given.pairs)
    places = ((name, place.partition("@")) for name, _, place in parts)
    named = {name: (Path(folder), Path(edge)) for name, (folder, _, edge) in places}
    texts = {name: texts_of(*place) for name, place in named.items()}
    if given.ship:
        ship(given.ship, named, list(texts.values()), given.measured)
    else:
        show(HEAD, rows(texts))


if __name__ == "__main__":
    main()
