"""Labels by name."""

from edgewise.errors import UsageError
from edgewise.registry import Registry
from edgewise_lab.training.labels.base import Label

LABELS: Registry[type[Label]] = Registry(
    "label",
    "edgewise.labels",
    {
        "value": "edgewise_lab.training.labels.published:Value",
        "mismatch": "edgewise_lab.training.labels.published:Mismatch",
        "co-llm": "edgewise_lab.training.labels.published:CoLlm",
        "citer": "edgewise_lab.training.labels.published:Citer",
        "r2r": "edgewise_lab.training.labels.published:R2R",
    },
    wanted=("of", "trial", "rounds", "options", "text", "writers", "objective", "hidden"),
)


def labels_named(name: str, **options: int | str | None) -> list[Label]:
    """The label of each round of training, in order; an option that is None was not given.

    A `seed` is for labels that draw, and nothing to the others. Raises `UsageError` for a label
    that there is not, or an option that it does not take.
    """
    kind = LABELS.load(name)
    given = {option: value for option, value in options.items() if value is not None}
    if "seed" not in kind.options:
        given.pop("seed", None)
    for option in given:
        if option not in kind.options:
            takes = f"it takes {', '.join(kind.options)}" if kind.options else "it takes no options"
            raise UsageError(
                f"The label {name!r} takes no {option}", hint=f"drop it: {takes}", setting=option
            )
    return kind.rounds(**given)
