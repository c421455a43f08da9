"""The `edgewise` command's entry point."""

import os
import re
import sys


def main() -> None:
    """Run the command line, then exit with its exit code (130 after Ctrl-C)."""
    _tidy_environment()
    # Whatever the locale says: a prompt is UTF-8.
    sys.argv[1:] = [os.fsencode(word).decode("utf-8", "surrogateescape") for word in sys.argv[1:]]
    try:
        # Here, so that Ctrl-C ends an import without a traceback, too.
        from edgewise.cli.app import run

        code = run()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        code = 130
    sys.exit(code)


def _tidy_environment() -> None:
    """Remove empty HF_* and SSL_CERT_*, and COLUMNS or LINES that are no positive number."""
    # Libraries misread these: with 0 columns rich prints nothing at all.
    for name, value in list(os.environ.items()):
        empty = not value and name.startswith(("HF_", "SSL_CERT_"))
        sized = name in ("COLUMNS", "LINES") and not re.fullmatch("[1-9][0-9]{0,4}", value)
        if empty or sized:
            del os.environ[name]
