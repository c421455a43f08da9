"""The `edgewise` command. Ctrl-C ends it without a traceback, while it is being imported too."""

import os
import sys


def main() -> None:
    """Run the command line; never returns."""
    # Whatever the locale says: a prompt is UTF-8.
    sys.argv[1:] = [os.fsencode(word).decode("utf-8", "surrogateescape") for word in sys.argv[1:]]
    try:
        from edgewise.cli.app import run

        code = run()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        code = 130
    sys.exit(code)
