"""What the tests of `deploy/` read it with."""

from pathlib import Path
from typing import Any

import typer.main
import yaml

from edgewise.cli.app import app

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"


def compose() -> dict[str, Any]:
    """The compose file, its anchors resolved."""
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests() -> dict[str, dict[str, Any]]:
    """Every object for Kubernetes, by kind and name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((DEPLOY / "kubernetes").rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            for one in yaml.safe_load_all(path.read_text()):
                found[f"{one['kind']} {one['metadata']['name']}"] = one
    return found


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What `edgewise gateway` makes of these; fails for a flag that it does not have."""
    assert arguments[0] == "gateway"
    arguments = arguments[1:]
    command: Any = typer.main.get_command(app)
    return command.commands["gateway"].make_context("gateway", list(arguments)).params
