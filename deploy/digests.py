"""Pins every image of a deployment by its digest: `make digests`, with docker and a network.

    python deploy/digests.py [GATEWAY_IMAGE=registry/edgewise:0.1.0]

Reads deploy/images.txt, and images that are named on the command line besides (the gateway's own,
once it was pushed). Writes deploy/images.env for compose and the build, and
deploy/kubernetes/images/kustomization.yaml for Kubernetes: both or, where a digest is not to be
found, neither. Commit what it writes: a deployment is then what was tried.
"""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LINE = re.compile(r"([A-Z_]+_IMAGE)=([a-z0-9][\w./:-]*)")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NAMES = {
    "GATEWAY_IMAGE": "edgewise",
    "VLLM_IMAGE": "vllm",
    "REDIS_IMAGE": "redis",
}
"""What the manifests call an image."""


def named(lines: list[str]) -> dict[str, str]:
    """From an image's variable to its name and tag."""
    found: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith("#"):
            match = LINE.fullmatch(line)
            if match is None:
                sys.exit(f"digests: {line!r} is not NAME_IMAGE=image:tag.")
            found[match[1]] = match[2]
    return found


def digest_of(image: str) -> str:
    """Of the tag as the registry has it now, for all its platforms."""
    command = ["docker", "buildx", "imagetools", "inspect", image]
    command += ["--format", "{{.Manifest.Digest}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("digests: docker with buildx is needed to look digests up.")
    digest = done.stdout.strip()
    if done.returncode or not DIGEST.fullmatch(digest):
        sys.exit(f"digests: no digest of {image!r}: {done.stderr.strip() or digest!r}")
    return digest


def main() -> None:
    images = named((HERE / "images.txt").read_text().splitlines()) | named(sys.argv[1:])
    digests = {name: digest_of(image) for name, image in images.items()}
    lines = [f"{name}={image}@{digests[name]}" for name, image in images.items()]
    component = [
        "apiVersion: kustomize.config.k8s.io/v1alpha1",
        "kind: Component",
        "images:",
    ]
    for name, called in NAMES.items():
        if name in images:
            place = f"newName: {images[name].rpartition(':')[0]}, digest: {digests[name]}"
            component.append(f"  - {{name: {called}, {place}}}")
    (HERE / "images.env").write_text("\n".join(lines) + "\n")
    folder = HERE / "kubernetes" / "images"
    folder.mkdir(exist_ok=True)
    (folder / "kustomization.yaml").write_text("\n".join(component) + "\n")


if __name__ == "__main__":
    main()
