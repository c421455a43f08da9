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
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import msgspec
import numpy as np

from edgewise.addresses import local_folder
from edgewise.edge.base import EdgeAbilities, EdgeModel, EdgeOptions, Needs
from edgewise.edge.hub_tokenizer import HubTokenizer
from edgewise.edge.kv import KvSession
from edgewise.edge.llamacpp_load import default_threads
from edgewise.edge.onnx_folder import build_digest, read_onnx_folder
from edgewise.edge.onnx_slots import OnnxSlots, first_line, read_rows
from edgewise.errors import AddressError, ModelError, UsageError

_DEFAULT_CONTEXT = 4096
_TELEMETRY, _TRUE = "ORT_DISABLE_TELEMETRY", ("1", "true", "yes", "on", "y")
_PROBE = 3
"""Ids that are run once to find out what the model can do."""

_NO_ID = -1
_SILENT = 4

_log = logging.getLogger(__name__)


def open_onnx(address: str, options: EdgeOptions) -> "OnnxModel":
    """The edge engine `onnx`: a folder with `genai_config.json`."""
    folder = local_folder(address)
    if folder is None:
        raise AddressError(
            f"There is no folder {address!r}",
            hint="name one with genai_config.json",
            setting="edge",
        )
    return OnnxModel(folder, **msgspec.structs.asdict(options))


class OnnxModel(EdgeModel):
    """A model in ONNX form. Implements `EdgeModel`."""

    def __init__(
        self,
        folder: Path,
        *,
        context: int | None = None,
        threads: int | None = None,
        gpu_layers: int | Literal["auto"] = "auto",
        slots: int = 1,
        keep_prefixes: bool = False,
    ) -> None:
        """Load `folder`; see `EdgeOptions`. The default context is the model's own, at most 4096.

        With "auto" the model runs where its config says, with 0 GPU layers on the CPU. Raises
        `ModelError` or `UsageError`.
        """
        if slots < 1 or (context is not None and context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        self.folder = folder
        self.name = folder.resolve().name
        self.threads = threads or default_threads()
        described = read_onnx_folder(folder)
        self.context = context or min(described.context, _DEFAULT_CONTEXT)
        if self.context > described.context:
            raise UsageError(
                f"{self.name!r} holds {described.context} tokens, not {self.context}",
                hint="lower the context",
                setting="ctx",
            )
        self._tokenizer = HubTokenizer(folder, size=described.vocabulary)
        self._library = import_genai()
        self._model = self._load(gpu_layers)
        self._outputs = (described.logits, described.hidden)
        self.hidden_size, self._abilities = self._probed(slots)
        self._slots = OnnxSlots(
            lambda: self._generator(self.context),
            name=self.name,
            vocabulary=described.vocabulary,
            room=self.context,
            count=slots,
            keep_prefixes=keep_prefixes,
            outputs=self._outputs,
        )

    @property
    def tokenizer(self) -> HubTokenizer:
        return self._tokenizer

    @property
    def abilities(self) -> EdgeAbilities:
        return self._abilities

    @property
    def closed(self) -> bool:
        """Whether the weights are gone."""
        return self._slots.closed

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> KvSession:
        return KvSession(self, self._slots.reserve(), needs, top)

    def fingerprint(self) -> str:
        """SHA-256 over the config and blocks of the weights; see `build_digest`."""
        return build_digest(self.folder)

    def bare_loop(self, prompt: Sequence[int], tokens: int) -> float:
        """The library's own greedy loop, kept from ending by its shortest length."""
        room = len(prompt) + tokens
        generator = self._generator(room, min_length=room, do_sample=False)
        generator.append_tokens(np.asarray(prompt, np.int32))
        begun = perf_counter()
        for _ in range(tokens):
            generator.generate_next_token()
        return tokens / (perf_counter() - begun)

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
        # With the model's own padding id, that id would be masked or skipped where it is text.
        ours = {"model": {"pad_token_id": _NO_ID, "decoder": {"session_options": session}}}
        try:
            config = self._library.Config(str(self.folder))
            config.overlay(json.dumps(ours))
            if gpu_layers == 0:
                config.clear_providers()
            return self._library.Model(config)
        except RuntimeError as error:
            raise ModelError(
                f"{str(self.folder)!r} is damaged, or needs what this onnxruntime-genai lacks "
                f"({first_line(error)})",
                hint="download it again, or choose a build for this device",
            ) from error

    def _generator(self, room: int, **search: Any) -> Any:
        try:
            params = self._library.GeneratorParams(self._model)
            params.set_search_options(max_length=room, batch_size=1, num_beams=1, **search)
            return self._library.Generator(self._model, params)
        except RuntimeError as error:
            raise ModelError(
                f"{str(self.folder)!r} does not fit in memory with a context of {room} ids "
                f"({first_line(error)})",
                hint="lower the context",
                setting="ctx",
            ) from error

    def _probed(self, slots: int) -> tuple[int, EdgeAbilities]:
        """Size of the hidden state, 0 where there is none, and what a short run shows."""
        generator = self._generator(_PROBE)
        logits, hidden = self._outputs
        try:
            generator.append_tokens(np.zeros(_PROBE, np.int32))
            rows, size = read_rows(generator, logits).shape
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"{str(self.folder)!r} cannot be run ({first_line(error)})",
                hint="choose another build of the model",
            ) from error
        if size != self._tokenizer.size:
            raise ModelError(
                f"{str(self.folder)!r} has {size} logits and says that it knows "
                f"{self._tokenizer.size} ids",
                hint="download it again",
            )
        try:
            width = read_rows(generator, hidden).shape[-1]
        except RuntimeError:
            width = 0
        try:
            generator.rewind_to(_PROBE - 1)
            rewinds = "anywhere"
        except RuntimeError:
            rewinds = "no"
        return width, EdgeAbilities(
            hidden=width > 0, rewinds=rewinds, batch_logits=rows == _PROBE, slots=slots
        )


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
            f"A model in ONNX form needs onnxruntime-genai ({first_line(error)})",
            hint="pip install 'edgewise[onnx]'",
        ) from error
    return onnxruntime_genai
