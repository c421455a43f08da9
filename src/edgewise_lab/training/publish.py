"""Writes a router's checkpoint: weights, `config.json`, and a README.md as model card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from jinja2 import Environment, StrictUndefined
from numpy.typing import NDArray
from safetensors.numpy import save_file

from edgewise.edge.base import Floats
from edgewise.routers.card import CONFIG, WEIGHTS, RouterCard
from edgewise_lab import tables
from edgewise_lab.evaluation.calibration import Calibrated
from edgewise_lab.evaluation.statistics import mean_interval, scipy_part
from edgewise_lab.evaluation.tasks.base import TRAINED_ON, digest

README = "README.md"


class Measured(NamedTuple):
    """What calibration measured, for the model card.

    `shares` maps a cloud share to its threshold and the pair's results. `edge` and `cloud` have a
    grade for each calibration question: whether that model alone answered it right.
    """

    shares: Mapping[float, Calibrated] = {}
    edge: Sequence[bool] = ()
    cloud: Sequence[bool] = ()


def isotonic(scores: Floats, labels: Floats) -> tuple[tuple[float, float], ...]:
    """Return the knots (score, probability) of the isotonic regression of labels on scores.

    Raises `UsageError` without scipy.
    """
    optimize = scipy_part("optimize")
    order = np.argsort(scores, kind="stable")
    fitted = optimize.isotonic_regression(labels[order].astype(np.float64))
    starts, ends = fitted.blocks[:-1], fitted.blocks[1:] - 1
    return tuple(
        (float(scores[order[at]]), min(1.0, max(0.0, float(fitted.x[at]))))
        for at in sorted({*starts.tolist(), *ends.tolist()})
    )


def save_weights(
    folder: Path, tensors: Mapping[str, NDArray[np.floating[Any]]], prompts: Sequence[str]
) -> None:
    """Write the weights `tensors`, and hashes of the `prompts` that they were fitted to.

    An existing `config.json` is deleted first, so that it never describes other weights;
    `save_card` writes the new one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)
    save_file(dict(tensors), folder / WEIGHTS)
    lines = sorted({digest(prompt) for prompt in prompts})
    (folder / TRAINED_ON).write_text("\n".join(lines) + "\n", encoding="ascii")


def save_card(folder: Path, card: RouterCard, measured: Measured | None = None) -> None:
    """Write README.md, with the results in `measured` if any, then replace `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / README).write_text(model_card(card, measured or Measured()), encoding="utf-8")
    described = msgspec.json.format(msgspec.json.encode(card), indent=2)
    partial = folder / f"{CONFIG}.partial"
    partial.write_bytes(described + b"\n")
    partial.replace(folder / CONFIG)


def model_card(card: RouterCard, measured: Measured) -> str:
    """Return a checkpoint's README.md: the card in words, and the results of calibration."""
    rows = [
        (
            f"{share:.0%}",
            f"{point.threshold:.6f}",
            tables.share(point.share, point.interval),
            "" if worth is None else f"{worth:.0%}",
            *map(_accuracy, (measured.edge, point.right, measured.cloud)),
        )
        for share, point in measured.shares.items()
        for worth in [card.probability_at(point.threshold)]
    ]
    # Markdown, not HTML: nothing to escape.
    environment = Environment(  # noqa: S701
        undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    template = environment.from_string(_TEMPLATE)
    return template.render(card=card, rows=rows, n=len(measured.edge))


def _accuracy(right: Sequence[bool]) -> str:
    low, high = mean_interval(right)
    return f"{sum(right) / len(right):.1%} ({100 * low:.0f} to {100 * high:.0f})"


_TEMPLATE = """\
---
library_name: edgewise
tags:
- token-level-routing
- edgewise-router
---
# A router for Edgewise

At every token it scores from 0 to 1 how much the edge model needs the cloud model's help.

- kind: `{{ card.kind }}`, inputs: {{ card.inputs | join(", ") or "none" }}
- edge model: hidden size {{ card.hidden_size }}, file `{{ card.edge_fingerprint[:16] }}`\
{% if card.build %} ({{ card.build }}){% endif %},
  tokenizer `{{ card.tokenizer_fingerprint[:16] }}`; another build gives a warning, another
  model is refused
- trained on: {{ card.trained_on or "nothing" }}
- label: {{ card.label or "none" }}
- calibrated on: {{ card.calibrated_on or "nothing yet" }}
{% if card.loss is not none %}
- loss on texts set aside: {{ "%.4f" | format(card.loss) }} nats, that of a constant \
{{ "%.4f" | format(card.baseline_loss) }}
{% endif %}

{% for warning in card.warnings() %}
**Warning.** {{ warning }}

{% endfor %}
{% if rows %}
| cloud share asked | threshold | realised | worth it there | edge | pair | cloud |
|---|---|---|---|---|---|---|
{% for row in rows %}
| {{ row | join(" | ") }} |
{% endfor %}

Right answers to the {{ n }} questions that the thresholds were set on, with 95% intervals: the
weights were not fitted to them, the thresholds were. *Worth it*: the probability, by isotonic
regression on answers set aside in training, that the label is positive at the threshold.
{% endif %}

```sh
edgewise run "..." --edge EDGE --cloud CLOUD --router FOLDER --cloud-share 0.05
```
"""
