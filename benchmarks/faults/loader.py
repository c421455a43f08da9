"""Loads broken copies of a GGUF, in a process of its own that they may end: a line each."""

import sys
import tempfile
from pathlib import Path

from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import EdgewiseError
from tests.mutated_gguf import mutants


def how(path: Path) -> str:
    """What becomes of whoever loads the file and asks for a token."""
    try:
        with LlamaModel(path, threads=1, context=64) as model:
            session = model.session()
            session.open([0, 1])
            session.step()
    except EdgewiseError:
        return "refused"
    except Exception as error:
        return f"failed: {error!r}"
    return "loaded"


def main(first: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for _, data in mutants(count, first=first):
            path.write_bytes(data)
            print(how(path), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
