"""The `edgewise` command. Ctrl-C ends it without a traceback, while it is being imported too."""

import sys


def main() -> None:
    """Run the command line; never returns."""
    try:
        from edgewise.cli.app import run

        code = run()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        code = 130
    sys.exit(code)
