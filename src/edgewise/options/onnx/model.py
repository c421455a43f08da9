"""`OnnxModel`: an edge model that onnxruntime-genai runs.

A model is a folder with `genai_config.json`, as onnxruntime-genai's model builder writes it. The
folder is refused if this file names files elsewhere, or libraries to load (other than the runtime's
own for Qualcomm chips). Logits of every id come from the graph's output; hidden states only if the
model was built with `include_hidden_states`. Each session is a generator with its own KV cache, and
rolls back by `rewind_to`. A forward pass holds Python's GIL, so threads take turns.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from edgewise.addresses import ModelFiles
from edgewise.edge.base import Claim, EdgeOptions, Rewinds
from edgewise.edge.files import damaged, digest_of, read_json
from edgewise.edge.sequence import FAILURES, KvRow, Outputs, SequenceCache, rows_of
from edgewise.edge.threads import default_threads
from edgewise.errors import ModelError, reason_of
from edgewise.options.folder import (
    DESCRIPTIONS,
    PROBED,
    FolderModel,
    require_one_device,
)
from edgewise.registry import imported

CONFIG = "genai_config.json"
"""The file that describes a model to onnxruntime-genai."""

_WEIGHTS = re.compile(r"\.onnx|\.data$|\.bin$")
_PLAIN = re.compile(r"[\w-][\w. -]*")
_LIBRARY = re.compile(r"(?i)\.(so|dll|dylib)\b")
_WORD = re.compile(r"[\w+-]*|-?\d+\.\d+")  # A runtime's option: no file's name
_RUNS = re.compile(r"library|libray|(^|_)libs?(_|$)|plugin|backend_path")
_WRITES = re.compile(r"profiling|dump|optimized_model|context_enable|cache_enable")
_LEADS = re.compile(r"(?<!pro)file|path|(^|[._])dir|load_config")
# The runtime's own libraries that a model for Qualcomm chips has to name.
_QUALCOMM = re.compile(r"(lib)?Qnn(Htp|Gpu|Cpu)\.(dll|so)")

_OTHER_PARTS = ("encoder", "vision", "speech", "embedding", "joiner")


class _Outputs(msgspec.Struct, frozen=True):
    logits: str = "logits"
    hidden_states: str = "hidden_states"


class _Decoder(msgspec.Struct, frozen=True):
    outputs: _Outputs = _Outputs()


class OnnxDescription(msgspec.Struct, frozen=True):
    """What is read of `model` in `genai_config.json`; `decoder` names the graph's outputs."""

    type: str
    vocab_size: Annotated[int, msgspec.Meta(ge=1)]
    context_length: Annotated[int, msgspec.Meta(ge=1)]
    decoder: _Decoder


class _Config(msgspec.Struct, frozen=True):
    model: OnnxDescription


def read_onnx_folder(folder: Path) -> tuple[OnnxDescription, dict[str, Any]]:
    """Return the description of the model in `folder`, and all of `genai_config.json` as a dict.

    Raises `ModelError` if this file is missing, names files elsewhere, or has options that could
    run code or write files; also if the model is not a decoder-only language model.
    """
    path = folder / CONFIG
    raw = read_json(path, dict[str, Any])
    if raw is None:
        raise ModelError(
            f"{str(folder)!r} holds no {CONFIG}",
            hint="name a folder that onnxruntime-genai's model builder has written",
        )
    # It may name libraries that the runtime loads, and files anywhere on the disk.
    for key, value, option in _entries(raw):
        _check_entry(path, key, value, option=option)
    try:
        model = msgspec.convert(raw, _Config).model
    except msgspec.ValidationError as error:
        raise damaged(path, f"is no description of a language model ({error})") from error
    others = [part for part in _OTHER_PARTS if part in raw["model"]]
    if others:
        raise ModelError(
            f"{str(folder)!r} is a model of the kind {model.type!r} with {others[0]!r}, and no "
            "decoder-only language model",
            hint="choose one that is",
        )
    return model, raw


@contextmanager
def _checked_alone(folder: Path, config: dict[str, Any]) -> Generator[str]:
    """Yield a temporary folder with the checked `config`, and links to all but `folder`'s JSON."""
    written = json.dumps(config, ensure_ascii=False, allow_nan=False)
    if "\\" in written:  # escapes, which not every parser reads alike
        raise damaged(folder / CONFIG, "has names with signs that no name has")
    # A parser that reads the file otherwise than ours would see what was not checked.
    with TemporaryDirectory(prefix="edgewise-", ignore_cleanup_errors=True) as private:
        for path in folder.absolute().iterdir():
            if path.suffix.casefold() != ".json":
                link = Path(private) / path.name
                try:
                    link.symlink_to(path, path.is_dir())
                except OSError:  # Windows keeps these for administrators
                    link.hardlink_to(path)
        (Path(private) / CONFIG).write_text(written, encoding="utf-8")
        yield private


def _entries(value: object, key: str = "", option: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yield key, value, and whether it is an option of the runtime or of an execution provider."""
    if isinstance(value, dict):
        option = option or key.casefold().endswith("_options")
        for name, inner in value.items():
            yield from _entries(inner, str(name), option)
    elif isinstance(value, list):
        for inner in value:
            yield from _entries(inner, key, option)
    else:
        yield key, value, option


def _check_entry(path: Path, key: str, value: object, *, option: bool) -> None:
    """Raise `ModelError` for what would run code, write files, or read outside the folder."""
    named = key.casefold()
    text = value if isinstance(value, str) else ""
    if named == "backend_path" and _QUALCOMM.fullmatch(text):
        return
    runs = _RUNS.search(named) or _LIBRARY.search(text)
    writes = _WRITES.search(named)
    leads = text and (
        not _WORD.fullmatch(text) or _LEADS.search(named)
        if option
        else _LEADS.search(named) and not _PLAIN.fullmatch(text)
    )
    if runs or writes or leads:
        does = "loads a library" if runs else "writes files" if writes else "leads elsewhere"
        raise ModelError(
            f"{str(path)!r} has an entry {key!r} that {does}",
            hint="take it out if you trust who made the model",
        )


_TELEMETRY, _TRUE = "ORT_DISABLE_TELEMETRY", ("1", "true", "yes", "on", "y")
# No token has this id, so none counts as padding.
_NO_ID = -1
# Of one pass: each of its ids has a row of logits, 0.6 MB in a vocabulary of 150,000.
_LOGITS_BYTES = 64 << 20
# Only fatal errors: a user gets each other error once, as an exception.
_SILENT = 4

_log = logging.getLogger(__name__)


class OnnxCache(SequenceCache):
    """The KV cache of one sequence: an onnxruntime-genai generator, rolled back by `rewind_to`."""

    def __init__(
        self, new: Callable[[], Any], outputs: tuple[str, str], *, rewinds: Rewinds = "anywhere"
    ) -> None:
        """Start empty. `new()` makes a generator; `outputs` names its logits and hidden states."""
        self._new, self.rewinds = new, rewinds
        self._logits, self._hidden = outputs
        super().__init__()

    def _begin(self) -> None:
        self._generator: Any = None  # it takes the memory of a whole context

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        if self._generator is None:
            self._generator = self._new()
        self._generator.append_tokens(np.asarray(ids, np.int32))
        if outputs == "none":
            return ()
        # `get_logits` would skip ids at the end that equal the padding id.
        first = -len(ids) if outputs == "all" else -1
        states = self._states(first) if hidden else None
        return rows_of(self._read(self._logits, first), states)

    def _states(self, first: int) -> Any | None:
        try:
            return self._read(self._hidden, first)
        except RuntimeError:
            return None  # the graph has no such output

    def _read(self, name: str, first: int) -> Any:
        """Return a copy of an output of the last run, from row `first` on: float32[ids, size]."""
        return np.asarray(self._generator.get_output(name)[0], np.float32)[first:]

    def _back(self, count: int, state: Any | None) -> bool:
        self._generator.rewind_to(self.length - count)  # raises where a window has moved on
        return True


class OnnxModel(FolderModel):
    """An edge model in ONNX form, which onnxruntime-genai runs."""

    engine = "onnxruntime-genai"
    reads = (".onnx", ".data", ".onnx_data", ".bin", *DESCRIPTIONS)

    @staticmethod
    def claims(files: ModelFiles) -> Claim | None:
        return "own" if CONFIG in files.names else None

    def _import(self) -> None:
        self._library = import_genai()

    def _load(self, options: EdgeOptions) -> None:
        """Load the model on the device that its config names, or with 0 GPU layers on the CPU."""
        # A core is left to the rest of the machine: a pass waits for its slowest thread.
        self.threads = options.threads or max(1, default_threads() - 1)
        described, config = read_onnx_folder(self.path)
        self.context = self._context_for(described.context_length)
        with _checked_alone(self.path, config) as private:
            self._model = self._opened(private, options.gpu_layers)
        self.build = f"{self.engine} on {self._model.device_type}"
        names, size = described.decoder.outputs, described.vocab_size
        outputs = names.logits, names.hidden_states

        def new() -> OnnxCache:
            rewinds = self.abilities.rewinds
            return OnnxCache(lambda: self._generator(self.context), outputs, rewinds=rewinds)

        self._start(
            new,
            size,
            small=lambda: OnnxCache(lambda: self._generator(PROBED), outputs),
            # A graph computes every id's logits, whether wanted or not.
            turn=max(_LOGITS_BYTES // (4 * size), 16),
        )

    def fingerprint(self) -> str:
        """Return a SHA-256 (hex) over samples of `genai_config.json` and of all weight files."""
        held = sorted(path for path in self.path.iterdir() if path.is_file())
        weights = [path for path in held if _WEIGHTS.search(path.name)]
        return digest_of([self.path / CONFIG, *weights])

    def _free(self) -> None:
        self._model = None

    def _opened(self, folder: str, gpu_layers: int | Literal["auto"]) -> Any:
        require_one_device("onnx", gpu_layers)
        session = {"intra_op_num_threads": self.threads, "log_severity_level": _SILENT}
        # The library looks for the last id that is no padding, and beyond the first where all are.
        ours = {"model": {"pad_token_id": _NO_ID, "decoder": {"session_options": session}}}
        config = self._library.Config(folder)
        config.overlay(json.dumps(ours))
        if gpu_layers == 0:
            config.clear_providers()
        return self._library.Model(config)

    def _generator(self, room: int) -> Any:
        try:
            params = self._library.GeneratorParams(self._model)
            params.set_search_options(max_length=room, batch_size=1, num_beams=1)
            return self._library.Generator(self._model, params)
        except FAILURES as error:
            raise ModelError(
                f"{str(self.path)!r} does not fit in memory with a context of {room} ids "
                f"({reason_of(error)})",
                hint="lower the context",
                setting="ctx",
            ) from error


def import_genai() -> Any:
    """Import and return onnxruntime_genai, with telemetry off by ORT_DISABLE_TELEMETRY=1.

    Logs a warning if the library was imported before this was set, so that telemetry may be on.
    Raises `UsageError` if the package is missing.
    """
    if os.environ.get(_TELEMETRY, "").strip().casefold() not in _TRUE:
        early = [name for name in ("onnxruntime", "onnxruntime_genai") if name in sys.modules]
        if early:
            _log.warning(
                "%s was imported before Edgewise and may send telemetry from this process: "
                "set %s=1 before it starts",
                early[0],
                _TELEMETRY,
            )
        os.environ[_TELEMETRY] = "1"
    return imported("onnx", "onnxruntime_genai")[0]
