"""Bring the page's libraries into src/edgewise/server/page/vendor, as vendor.json lists them.

    python deploy/vendor.py              # fetch what is listed, exactly; needs npm
    python deploy/vendor.py --new        # the same after a change of a version: writes its hashes

A library is one ES module of its package, with its licence beside it. Imports by a package's name
become imports of the file next door, since the page has no build step and no import map.
"""

import argparse
import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "src" / "edgewise" / "server" / "page" / "vendor"
_IMPORT = re.compile(r'from"([a-z]+)"')
_MAP = re.compile(r"\n//# sourceMappingURL=\S+\s*$")


def main() -> int:
    """Exit status 1 where a hash differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--new", action="store_true", help="write the hashes instead of checking")
    new = parser.parse_args().new
    listed = json.loads((VENDOR / "vendor.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        for entry in listed:
            archive = fetched(f"{entry['package']}@{entry['version']}", Path(folder))
            found = hashes(archive, module(archive, entry["path"]))
            if not new and any(entry[name] != found[name] for name in found):
                print(f"{entry['package']} is not the one that vendor.json names", file=sys.stderr)
                return 1
            entry.update(found)
            (VENDOR / entry["file"]).write_bytes(module(archive, entry["path"]))
            (VENDOR / f"LICENSE.{entry['package']}").write_bytes(inside(archive, "LICENSE"))
    (VENDOR / "vendor.json").write_text(json.dumps(listed, indent=2) + "\n")
    return 0


def fetched(package: str, folder: Path) -> bytes:
    """The package's archive, from the registry that npm is set to."""
    command = ["npm", "pack", "--json", "--pack-destination", str(folder), package]
    told = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE)
    return (folder / json.loads(told.stdout)[0]["filename"]).read_bytes()


def inside(archive: bytes, path: str) -> bytes:
    """A file of the package."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        found = files.extractfile(f"package/{path}")
        assert found is not None
        return found.read()


def module(archive: bytes, path: str) -> bytes:
    """An ES module as the page has it."""
    text = inside(archive, path).decode()
    return (_MAP.sub("", _IMPORT.sub(r'from"./\1.js"', text)).rstrip() + "\n").encode()


def hashes(archive: bytes, text: bytes) -> dict[str, str]:
    """`integrity` is of the archive, in npm's form; `sha256` of the module."""
    integrity = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    return {"integrity": f"sha512-{integrity}", "sha256": hashlib.sha256(text).hexdigest()}


if __name__ == "__main__":
    sys.exit(main())
