"""`edgewise bench rules`: compare rules for which model writes a token; PyTorch runs both."""

from typing import Annotated, Literal

import typer

from edgewise import opening
from edgewise.addresses import bundled
from edgewise.cli import options, render
from edgewise.cli.options import DRAWS, POLICY, takes
from edgewise.edge.base import Tokenizer
from edgewise.edge.engine import DEFAULT_CONTEXT
from edgewise.edge.named import open_tokenizer
from edgewise.edge.threads import default_threads
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import UsageError, VocabularyMismatch
from edgewise.registry import imported
from edgewise.settings import Settings
from edgewise_lab.bench.rules.engine import RowEngine
from edgewise_lab.bench.rules.models import RowModel, open_rows
from edgewise_lab.bench.rules.rule import RULES, Rule
from edgewise_lab.bench.rules.sweep import Sweep
from edgewise_lab.commands import shared
from edgewise_lab.commands.eval import require_checks, shares_of, tell
from edgewise_lab.evaluation.plan import described
from edgewise_lab.evaluation.report import rows as figures
from edgewise_lab.evaluation.store import Cell, Store
from edgewise_lab.evaluation.tasks.named import with_calibration


# Answers are greedy, and no link is measured.
@takes(
    *("edge", "cloud", "ctx", "threads"),
    reads=["cloud_share"],
    unaffected=[*DRAWS, *POLICY, "router", "gpu_layers", "on_cloud_error", "on_edge_error"],
)
def rules(
    task: shared.TaskName,
    *,
    data: shared.Data = None,
    check: shared.Check = None,
    limit: shared.Limit = None,
    max_tokens: shared.MaxTokens = None,
    calibration: Annotated[int, typer.Option(help="Questions that thresholds are set on.")] = 60,
    chosen: Settings,
    cloud_share: shared.TargetShares = None,
    only: Annotated[
        str | None, typer.Option("--rules", metavar="NAME,...", help="Only these rules.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where torch computes: auto, cpu, cuda.")] = "auto",
    rows: Annotated[
        int | None, typer.Option(min=1, help="Answers at a time; default: 32, on a GPU 512.")
    ] = None,
    out: shared.Out = None,
    json: options.Json = False,
) -> None:
    """Compare routers and rules of verification at equal cloud shares.

    Edge and cloud are models that transformers loads, or GGUFs of the architecture qwen2 or llama.
    """
    shares = shares_of(cloud_share, chosen)
    wanted = _named(only)
    tasks = with_calibration(
        task,
        "test",
        data=data,
        check=check,
        limit=limit,
        calibration=calibration,
        max_tokens=max_tokens,
        known=False,
    )
    require_checks(tasks[0])
    shared.tell_of_code(tasks)
    hint = shared.resume_hint("With --out FOLDER the same command goes on from what it has kept.")
    with render.progress(hidden=json) as progress, hint:
        bar = progress.add_task("answers", total=None)
        edge, cloud, tokenizer = _opened(chosen, device)
        models = {"edge": edge.fingerprint, "cloud": cloud.fingerprint}
        engine = f"rows, {edge.dtype} on {edge.device.type}"
        context = min(edge.context, cloud.context, chosen.ctx or DEFAULT_CONTEXT)
        sweep = Sweep(
            RowEngine(edge, cloud, tokenizer),
            tokenizer,
            Store(out, {**described(*tasks, [context]), **models, "engine": engine}),
            context=context,
            done=lambda count: progress.advance(bar, count),
            rows=rows,
        )
        found = sweep.run(*tasks, wanted, shares)
    main = Cell(RULES[0].name, shares[0])
    main = main if main in found else [*found][min(2, len(found) - 1)]
    tell(tasks[0], [], figures(found, main), json=json, main=main)


ROLES: tuple[Literal["edge"], Literal["cloud"]] = ("edge", "cloud")


def _named(names: str | None) -> list[Rule]:
    known = {rule.name: rule for rule in RULES}
    asked = list(known) if names is None else [name.strip() for name in names.split(",")]
    if unknown := set(asked) - known.keys():
        raise UsageError(
            f"There is no rule {min(unknown)!r}", hint=f"choose from {', '.join(known)}"
        )
    return [known[name] for name in asked]


def _opened(chosen: Settings, device: str) -> tuple[RowModel, RowModel, Tokenizer]:
    """Open both models for PyTorch; return edge, cloud and their common tokenizer."""
    addresses = chosen.edge, opening.cloud_address(chosen)
    if addresses[1] == "none":
        raise UsageError("Rules need a cloud", hint="name one", setting="cloud")
    tokenizer, other = (
        open_tokenizer(str(bundled(role)) if address == "bundled" else address)
        for address, role in zip(addresses, ROLES, strict=True)
    )
    if fingerprint(tokenizer) != fingerprint(other):
        raise VocabularyMismatch(
            "Edge and cloud have two vocabularies", hint="choose two models of one family"
        )
    imported("transformers", "torch")[0].set_num_threads(chosen.threads or default_threads())
    edge, cloud = map(open_rows, addresses, ROLES, (device, device))
    return edge, cloud, tokenizer
