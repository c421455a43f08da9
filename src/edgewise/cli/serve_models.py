"""The models that `edgewise serve` loads: one by its flags, or several, a file of settings each."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from edgewise.addresses import from_home
from edgewise.cli.options import SettingsWith
from edgewise.errors import EdgewiseError, UsageError
from edgewise.pair import open_pair
from edgewise.parts import sampling_of
from edgewise.settings import Settings, spelled

if TYPE_CHECKING:
    from edgewise.server.models import Models

DEFAULT_SLOTS = 4


class ServedModel(NamedTuple):
    """A model to load; `file` holds its settings, None where flags alone do."""

    name: str
    settings: Settings
    file: Path | None = None

    @property
    def slots(self) -> int:
        """Answers that it writes at a time."""
        return self.settings.slots or DEFAULT_SLOTS


def served_models(
    given: Sequence[str], chosen: Settings, chosen_with: SettingsWith
) -> list[ServedModel]:
    """What to load: NAME=FILE each, or the one of the flags. Raises `UsageError`.

    What is wrong with the settings shows here, and not once a model is loaded.
    """
    from edgewise.server.answering import PAIR

    found = [_named(one, chosen, chosen_with) for one in given] or [ServedModel(PAIR, chosen)]
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"Two models have the name {name!r}.")
    for one in found:
        with _said_of(one):
            sampling_of(one.settings)
    return found


def load(
    models: Sequence[ServedModel],
    stack: ExitStack,
    *,
    queue: int,
    keep_prefixes: bool,
    sent_file: Path | None,
) -> "Models":
    """Load them one after the other; `stack` closes them. Raises an error that names the model."""
    from edgewise.server.answering import Answering
    from edgewise.server.local_messages import LocalMessages
    from edgewise.server.models import Models

    # A conversation that goes on with another model is as local as it was.
    local = LocalMessages()
    answerings: list[Answering] = []
    for one in models:
        with _said_of(one):
            pair = stack.enter_context(
                open_pair(
                    one.settings,
                    slots=one.slots,
                    keep_prefixes=keep_prefixes,
                    sent_file=sent_file,
                )
            )
        answering = Answering(pair, slots=one.slots, queue=queue, local=local, name=one.name)
        stack.callback(answering.close)
        answerings.append(answering)
    return Models(answerings)


def _named(given: str, chosen: Settings, chosen_with: SettingsWith) -> ServedModel:
    from edgewise.server.models import require_name

    name, separator, file = given.partition("=")
    if not separator or not file:
        raise UsageError(
            f"{given!r} names no model and its file of settings", hint="give NAME=FILE.toml"
        )
    require_name(name)
    path = from_home(file)
    settings = chosen_with(path)
    return ServedModel(name, settings, path)


@contextmanager
def _said_of(model: ServedModel) -> Generator[None]:
    """An error says which model it is about, and where its setting stands."""
    try:
        yield
    except EdgewiseError as error:
        if model.file is None:
            raise
        where = f"{spelled(error.setting)} in {model.file}" if error.setting else None
        raise UsageError(
            f"The model {model.name!r} cannot be served: {error.sentence(where)}"
        ) from error
