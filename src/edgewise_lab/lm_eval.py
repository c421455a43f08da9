"""The LM Evaluation Harness with a pair as one of its models.

    python -m edgewise_lab.lm_eval --model edgewise --model_args cloud_share=0.05 --tasks ...

The harness finds no models of other packages by itself, so this is its own command (`lm_eval`),
which knows one model more. In Python `register` makes it known.
"""

import sys
from importlib import import_module
from typing import Any

from edgewise.errors import EdgewiseError, UsageError

NAME, _CLASS = "edgewise", "edgewise_lab.evaluation.harness:HarnessModel"


def register() -> None:
    """Make `edgewise` a model of the harness. Raises `UsageError` where that is not installed."""
    try:
        # Else it would take a registry with one model in it for a full one.
        import_module("lm_eval.models")
        registry: Any = import_module("lm_eval.api.registry")
    except ImportError as error:
        raise UsageError(
            f"The LM Evaluation Harness is not here ({error})",
            hint="pip install 'lm-eval[api]>=0.4.13,<0.5'",
        ) from error
    if NAME not in registry.model_registry:
        registry.model_registry.register(NAME, target=_CLASS)


def main() -> None:
    """`lm_eval`, with its arguments; 2 where Edgewise refuses something."""
    try:
        register()
        import_module("lm_eval.__main__").cli_evaluate()
    except EdgewiseError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
