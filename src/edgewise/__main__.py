"""`python -m edgewise`."""

from edgewise.cli.main import main

main()
