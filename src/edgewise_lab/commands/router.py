"""`edgewise router`: show the checkpoint of a trained router."""

from typing import Annotated

import msgspec
import typer

from edgewise.cli import options, render
from edgewise.errors import UsageError
from edgewise.opening import router_folder
from edgewise.routers.card import RouterCard, read_card
from edgewise.settings import Settings
from edgewise_lab import tables
from edgewise_lab.commands import shared

app = typer.Typer(no_args_is_help=True, help="Show router checkpoints.")


@app.command()
def show(
    router: Annotated[
        str, typer.Argument(help="A folder, a hub repository or a name in the package.")
    ],
    json: options.Json = False,
) -> None:
    """Print a checkpoint's card: kind, inputs, edge model, training and thresholds."""
    if (folder := router_folder(Settings(router=router))) is None:
        raise UsageError(f"{router!r} is not a checkpoint; name a folder or a hub repository.")
    card = read_card(folder)
    if json:
        print(msgspec.json.encode(card).decode())
        return
    for name, value in (
        ("kind", card.kind),
        ("inputs", ", ".join(card.inputs) or "none"),
        ("edge model", f"{card.edge_fingerprint[:16]}, hidden size {card.hidden_size}"),
        ("build", card.build or "unnamed"),
        ("tokenizer", card.tokenizer_fingerprint[:16]),
        ("trained on", card.trained_on or "nothing"),
        ("label", card.label or "none"),
        ("calibrated on", card.calibrated_on or "nothing yet"),
    ):
        render.out.print(f"{name:<14} {render.printable(value)}")
    if card.thresholds:
        render.show(shared.drawn(_thresholds(card)))
    for warning in card.warnings():
        render.warn(warning)


def _thresholds(card: RouterCard) -> tables.FigureTable:
    lines: list[list[str]] = []
    for share, threshold in sorted(card.thresholds.items(), key=lambda pair: float(pair[0])):
        probability = card.probability_at(threshold)
        worth = "" if probability is None else f"{probability:.0%}"
        known = card.realised.get(share)
        realised = tables.share(known[0], (known[1], known[2])) if known else ""
        lines.append([f"{float(share):.0%}", f"{threshold:.6f}", realised, worth])
    head = ["cloud share", "threshold", "realised", "worth it at the threshold"]
    return tables.FigureTable("", head, lines)
