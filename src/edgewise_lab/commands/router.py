"""`edgewise router`: show, check and publish the checkpoint of a trained router."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from edgewise.addresses import CHECKPOINT
from edgewise.cli import options, render
from edgewise.cli.options import EDGE, takes
from edgewise.errors import UsageError
from edgewise.hub import HubAddress
from edgewise.opening import router_folder
from edgewise.pair import open_pair
from edgewise.routers.card import RouterCard, read_card
from edgewise.settings import NAMES, Settings
from edgewise_lab import tables
from edgewise_lab.bench.speed import score_seconds
from edgewise_lab.commands import shared
from edgewise_lab.evaluation.tasks.base import trained_digests
from edgewise_lab.tables import FigureTable

app = typer.Typer(no_args_is_help=True, help="Show, check and publish router checkpoints.")

Folder = Annotated[str, typer.Argument(help="A folder, a hub repository or a name in the package.")]

_READ = ("ctx", "gpu_layers", "edge_key")
_LOADED = (*EDGE, "threads")


@app.command()
def show(router: Folder, json: options.Json = False) -> None:
    """Print a checkpoint's card: kind, inputs, edge model, training and thresholds."""
    card = read_card(_folder(router))
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


@app.command()
@takes(*_LOADED, reads=_READ, unaffected=NAMES)
def check(router: Folder, chosen: Settings) -> None:
    """Load a checkpoint against its edge model and score a few tokens; exit code 2 on a problem."""
    folder = _folder(router)
    loaded = {name: getattr(chosen, name) for name in (*_LOADED, *_READ)}
    one = Settings(cloud="none", router=router, **loaded)  # a folder of the hub's cache is no path
    with open_pair(one) as opened:
        card, model = opened.card, opened.edge.name
        assert card is not None
        seconds, step = score_seconds(opened.edge, opened.router)
    if not card.thresholds:
        raise UsageError(
            f"The router in {str(folder)!r} works but is not calibrated; run edgewise train with "
            "--stage calibrate."
        )
    digests = len(trained_digests(folder))
    render.out.print(
        f"{card.kind} fits the edge model {render.printable(model)}; calibrated at "
        f"{', '.join(card.thresholds)}; {digests} training questions on record; a score takes "
        f"{1e6 * seconds:.0f} us, {seconds / step:.1%} of a step."
    )


@app.command()
def push(
    router: Folder,
    repository: Annotated[str, typer.Argument(help="owner/name on the hub.")],
    private: Annotated[bool, typer.Option("--private", help="As a private repository.")] = False,
) -> None:
    """Publish a checkpoint as a hub repository; HF_TOKEN or `hf auth login` says who you are."""
    folder = _folder(router)
    if not read_card(folder).thresholds:
        raise UsageError(
            f"The router in {str(folder)!r} is not calibrated, so nobody could use it; run "
            "edgewise train with --stage calibrate first."
        )
    url = _upload(folder, repository, private=private)
    render.out.print(f"{url}\nUse it with --router {repository}.")


def _upload(folder: Path, repo: str, *, private: bool) -> str:
    """Publish a checkpoint, as a new commit if the repository exists; return the hub's URL."""
    import huggingface_hub

    from edgewise.hub.client import explained

    with explained(HubAddress(repo, None, None, None)):
        if huggingface_hub.get_token() is None:
            raise UsageError(
                "The hub needs to know who publishes",
                hint="set HF_TOKEN to a token that may write, or run hf auth login",
            )
        url = huggingface_hub.create_repo(repo, private=private, exist_ok=True)
        huggingface_hub.upload_folder(
            repo_id=repo,
            folder_path=folder,
            allow_patterns=list(CHECKPOINT),
            commit_message="A router trained with Edgewise",
        )
    return str(url)


def _folder(name: str) -> Path:
    if (found := router_folder(Settings(router=name))) is None:
        raise UsageError(f"{name!r} is not a checkpoint; name a folder or a hub repository.")
    return found


def _thresholds(card: RouterCard) -> FigureTable:
    lines: list[list[str]] = []
    for share, threshold in sorted(card.thresholds.items(), key=lambda pair: float(pair[0])):
        probability = card.probability_at(threshold)
        worth = "" if probability is None else f"{probability:.0%}"
        known = card.realised.get(share)
        realised = tables.share(known[0], (known[1], known[2])) if known else ""
        lines.append([f"{float(share):.0%}", f"{threshold:.6f}", realised, worth])
    head = ["cloud share", "threshold", "realised", "worth it at the threshold"]
    return FigureTable("", head, lines)
