"""Edge models on ONNX Runtime, through onnxruntime-genai: the extra `edgewise[onnx]`.

A model is a folder with `genai_config.json`, as its model builder writes it. Logits of every id
come from the graph's output; a hidden state does where the model was built with
`include_hidden_states`. Each session is a generator with a KV cache of its own, and goes back by
`rewind_to`. A pass holds Python's global lock, so threads take turns with it.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace

from edgewise.addresses import resolve_folder
from edgewise.edge.base import EdgeOptions
from edgewise.edge.engine import PROBED, EngineModel, default_threads, try_out
from edgewise.edge.hub.folder import DESCRIPTIONS, digest_of, told
from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.edge.onnx.cache import OnnxCache, longest_turn
from edgewise.edge.onnx.folder import build_files, read_onnx_folder
from edgewise.edge.sequence import FAILURES
from edgewise.errors import ModelError, UsageError

READS = (".onnx", ".data", ".onnx_data", ".bin", *DESCRIPTIONS)
"""Files of a repository that are downloaded."""

_TELEMETRY, _TRUE = "ORT_DISABLE_TELEMETRY", ("1", "true", "yes", "on", "y")
_NO_ID = -1
_SILENT = 4

_log = logging.getLogger(__name__)


def open_onnx(address: str, options: EdgeOptions) -> "OnnxModel":
    """The edge engine `onnx`: a folder or a hub repository, downloaded if need be."""
    import_genai()
    folder, name = resolve_folder(address, "onnx", READS)
    return OnnxModel(folder, options, name=name)


class OnnxModel(EngineModel):
    """A model in ONNX form. Implements `EdgeModel`."""

    engine = "onnxruntime-genai"

    def __init__(
        self,
        path: Path,
        options: EdgeOptions | None = None,
        *,
        name: str | None = None,
        **changes: Any,
    ) -> None:
        """Load the folder `path`; `changes` are fields of `EdgeOptions`.

        With "auto" GPU layers the model runs where its config says, with 0 on the CPU. Raises
        `ModelError` or `UsageError`.
        """
        options = replace(options or EdgeOptions(), **changes)
        super().__init__(path, name or path.resolve().name, options)
        self.threads = options.threads or default_threads()
        described = read_onnx_folder(path)
        self.context = self._context_for(described.context)
        self._tokenizer = HubTokenizer(path, size=described.vocabulary)
        self._library = import_genai()
        self._model = self._load(options.gpu_layers)
        self._device = str(self._model.device_type)
        outputs = (described.logits, described.hidden)
        self.hidden_size, self._abilities, _ = try_out(
            lambda: OnnxCache(lambda: self._generator(PROBED), outputs),
            described.vocabulary,
            slots=options.slots,
            engine=self.engine,
            where=str(path),
            may_stay=True,
        )
        rewinds = self._abilities.rewinds

        def new() -> OnnxCache:
            return OnnxCache(lambda: self._generator(self.context), outputs, rewinds=rewinds)

        self._open_slots(new, turn=longest_turn(described.vocabulary))

    @property
    def build(self) -> str:
        return f"onnxruntime-genai on {self._device}"

    def fingerprint(self) -> str:
        return digest_of(build_files(self.path))

    def bare_loop(self, prompt: Sequence[int], tokens: int) -> Iterator[int]:
        """The library's own greedy loop, kept from ending by its shortest length."""
        room = len(prompt) + tokens + 1
        generator = self._generator(room, min_length=room, do_sample=False)
        generator.append_tokens(np.asarray(prompt, np.int32))
        for _ in range(tokens + 1):  # the first is chosen by what the prompt's own pass said
            generator.generate_next_token()
            yield int(generator.get_next_tokens()[0])

    def _free(self) -> None:
        self._model = None

    def _load(self, gpu_layers: int | Literal["auto"]) -> Any:
        if gpu_layers not in ("auto", 0):
            raise UsageError(
                f"A model in ONNX form runs as a whole where it was built for, not with "
                f"{gpu_layers} layers on a GPU",
                hint="leave the number out, or offload 0 layers",
                setting="gpu_layers",
            )
        session = {"intra_op_num_threads": self.threads, "log_severity_level": _SILENT}
        # The library looks for the last id that is no padding, and beyond the first where all are.
        ours = {"model": {"pad_token_id": _NO_ID, "decoder": {"session_options": session}}}
        try:
            config = self._library.Config(str(self.path))
            config.overlay(json.dumps(ours))
            if gpu_layers == 0:
                config.clear_providers()
            return self._library.Model(config)
        except FAILURES as error:
            raise ModelError(
                f"{str(self.path)!r} is damaged, or needs what this onnxruntime-genai lacks "
                f"({told(error)})",
                hint="download it again, or choose a build for this device",
            ) from error

    def _generator(self, room: int, **search: Any) -> Any:
        try:
            params = self._library.GeneratorParams(self._model)
            params.set_search_options(max_length=room, batch_size=1, num_beams=1, **search)
            return self._library.Generator(self._model, params)
        except FAILURES as error:
            raise ModelError(
                f"{str(self.path)!r} does not fit in memory with a context of {room} ids "
                f"({told(error)})",
                hint="lower the context",
                setting="ctx",
            ) from error


def import_genai() -> Any:
    """The library, told first to send and keep no telemetry. Raises `UsageError` without it."""
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
    try:
        import onnxruntime_genai
    except ImportError as error:
        raise UsageError(
            f"A model in ONNX form needs onnxruntime-genai ({told(error)})",
            hint="pip install 'edgewise[onnx]'",
        ) from error
    return onnxruntime_genai
