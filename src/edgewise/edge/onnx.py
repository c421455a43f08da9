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

import msgspec
import numpy as np

from edgewise.addresses import resolve_folder
from edgewise.edge.base import (
    EdgeAbilities,
    EdgeModel,
    EdgeOptions,
    Needs,
    context_for,
    require_full_windows,
)
from edgewise.edge.hub_config import told
from edgewise.edge.hub_tokenizer import HubTokenizer
from edgewise.edge.hub_weights import digest_of
from edgewise.edge.kv import KvSession
from edgewise.edge.llamacpp_load import default_threads
from edgewise.edge.onnx_cache import OnnxCache, longest_turn
from edgewise.edge.onnx_folder import build_files, read_onnx_folder
from edgewise.edge.sequence_cache import FAILURES, SequenceCache
from edgewise.edge.sequence_slot import SequenceSlot
from edgewise.edge.sequence_trial import PROBED, try_out
from edgewise.edge.slots import BATCH, Slots
from edgewise.errors import ModelError, UsageError

_TELEMETRY, _TRUE = "ORT_DISABLE_TELEMETRY", ("1", "true", "yes", "on", "y")
_ENGINE = "onnxruntime-genai"
_NO_ID = -1
_SILENT = 4

_log = logging.getLogger(__name__)


def open_onnx(address: str, options: EdgeOptions) -> "OnnxModel":
    """The edge engine `onnx`: a folder or a hub repository, downloaded if need be."""
    import_genai()
    folder, name = resolve_folder(address, "onnx")
    return OnnxModel(folder, name=name, **msgspec.structs.asdict(options))


class OnnxModel(EdgeModel):
    """A model in ONNX form. Implements `EdgeModel`."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str | None = None,
        context: int | None = None,
        threads: int | None = None,
        gpu_layers: int | Literal["auto"] = "auto",
        slots: int = 1,
        keep_prefixes: bool = False,
        swa_full: bool = True,
    ) -> None:
        """Load `folder`; see `EdgeOptions`. The default context is the model's own, at most 4096.

        With "auto" the model runs where its config says, with 0 GPU layers on the CPU. Raises
        `ModelError` or `UsageError`.
        """
        if slots < 1 or (context is not None and context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        self.folder, self.name = folder, name or folder.resolve().name
        require_full_windows(
            self.name, "its own config says what its caches hold", swa_full=swa_full
        )
        self.threads = threads or default_threads()
        described = read_onnx_folder(folder)
        self.context = context_for(self.name, context, described.context)
        self._tokenizer = HubTokenizer(folder, size=described.vocabulary)
        self._library = import_genai()
        self._model = self._load(gpu_layers)
        self._device = str(self._model.device_type)
        outputs = (described.logits, described.hidden)
        self.hidden_size, self._abilities, _ = try_out(
            lambda: OnnxCache(lambda: self._generator(PROBED), outputs),
            described.vocabulary,
            slots=slots,
            engine=_ENGINE,
            where=str(folder),
            may_stay=True,
        )
        rewinds = self._abilities.rewinds

        def new() -> SequenceCache:
            return OnnxCache(lambda: self._generator(self.context), outputs, rewinds=rewinds)

        self._slots = Slots(
            new,
            name=self.name,
            count=slots,
            keep_prefixes=keep_prefixes,
            batch=min(BATCH, self.context),
            turn=longest_turn(described.vocabulary),
        )

    @property
    def tokenizer(self) -> HubTokenizer:
        return self._tokenizer

    @property
    def abilities(self) -> EdgeAbilities:
        return self._abilities

    @property
    def build(self) -> str:
        return f"onnxruntime-genai on {self._device}"

    @property
    def closed(self) -> bool:
        """Whether the weights are gone."""
        return self._slots.closed

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> KvSession:
        return KvSession(
            self, SequenceSlot(self._slots, engine=_ENGINE, name=self.name), needs, top
        )

    def fingerprint(self) -> str:
        return digest_of(build_files(self.folder))

    def bare_loop(self, prompt: Sequence[int], tokens: int) -> Iterator[int]:
        """The library's own greedy loop, kept from ending by its shortest length."""
        room = len(prompt) + tokens + 1
        generator = self._generator(room, min_length=room, do_sample=False)
        generator.append_tokens(np.asarray(prompt, np.int32))
        for _ in range(tokens + 1):  # the first is chosen by what the prompt's own pass said
            generator.generate_next_token()
            yield int(generator.get_next_tokens()[0])

    def close(self) -> None:
        """Free weights and caches; sessions of the model are unusable afterwards."""
        if self._slots.close():
            self._model = None

    def __enter__(self) -> "OnnxModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            config = self._library.Config(str(self.folder))
            config.overlay(json.dumps(ours))
            if gpu_layers == 0:
                config.clear_providers()
            return self._library.Model(config)
        except FAILURES as error:
            raise ModelError(
                f"{str(self.folder)!r} is damaged, or needs what this onnxruntime-genai lacks "
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
                f"{str(self.folder)!r} does not fit in memory with a context of {room} ids "
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
