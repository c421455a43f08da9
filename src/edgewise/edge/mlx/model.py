"""Edge models on MLX, through mlx-lm: the extra `edgewise[mlx]`, for Macs with Apple silicon.

A model is a folder with `config.json` and safetensors, in MLX's quantised form or in full. Logits
of every id and the hidden state that its head reads come from one pass. On Linux MLX computes on
the CPU, slowly.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from edgewise.addresses import resolve_folder
from edgewise.edge.base import EdgeOptions, Floats
from edgewise.edge.engine import EngineModel, try_out
from edgewise.edge.hub.folder import DESCRIPTIONS, digest_of, explained, weight_files
from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.edge.mlx.cache import MlxCache, MlxWeights
from edgewise.edge.mlx.load import load_folder, modules
from edgewise.edge.sequence import MEMORY
from edgewise.edge.slots import BATCH
from edgewise.errors import UsageError

READS = (".safetensors", *DESCRIPTIONS)
"""Files of a repository that are downloaded."""


def open_mlx(address: str, options: EdgeOptions) -> "MlxModel":
    """The edge engine `mlx`: a folder or a hub repository, downloaded if need be."""
    modules()
    folder, name = resolve_folder(address, "mlx", READS)
    return MlxModel(folder, options, name=name)


class MlxModel(EngineModel):
    """A model that mlx-lm runs. Implements `EdgeModel`."""

    engine = "MLX"

    def __init__(
        self,
        path: Path,
        options: EdgeOptions | None = None,
        *,
        name: str | None = None,
        **changes: Any,
    ) -> None:
        """Load the folder `path`; `changes` are fields of `EdgeOptions`.

        A model is on one device as a whole: MLX's own choice, or with 0 GPU layers the CPU. MLX has
        no number of threads, so `threads` are refused. Raises `ModelError` or `UsageError`.
        """
        options = replace(options or EdgeOptions(), **changes)
        super().__init__(path, name or path.resolve().name, options)
        if options.threads is not None:
            raise UsageError(
                "The edge engine mlx has no number of threads to set",
                hint="leave the threads out",
                setting="threads",
            )
        mx, _ = modules()
        loaded = load_folder(path, options.gpu_layers)
        self.context = self._context_for(loaded.context)
        self.form, self.device = loaded.form, str(loaded.device.type.name)
        self._parameters = loaded.parameters
        with explained(path, "MLX", "mlx-lm"):
            self._weights = MlxWeights(mx, loaded.model, loaded.device, context=self.context)
        size = self._weights.size

        def new() -> MlxCache:
            return MlxCache(self._weights, room=MEMORY // options.slots)

        self.hidden_size, self._abilities, self._checkpoints = try_out(
            new, size, slots=options.slots, engine=self.engine, where=str(path)
        )
        self._tokenizer = HubTokenizer(path, size=size)
        self._open_slots(new)

    @property
    def parameters(self) -> int:
        return self._parameters

    @property
    def build(self) -> str:
        return f"MLX, {self.form} on {self.device}"

    def fingerprint(self) -> str:
        return digest_of([self.path / "config.json", *weight_files(self.path)])

    def embeddings(self) -> Floats:
        found = self._weights.embeddings()
        return super().embeddings() if found is None else found

    def bare_loop(self, prompt: Sequence[int], tokens: int) -> Iterator[int]:
        weights = self._weights
        cache = weights.new_cache()
        for at in range(0, len(prompt) - 1, BATCH):
            weights.run(prompt[at : min(at + BATCH, len(prompt) - 1)], cache, "none")
        token = prompt[-1]
        for _ in range(tokens + 1):
            rows = weights.run([token], cache, "last")
            assert rows is not None
            token = int(rows.logits[-1].argmax())
            yield token

    def _free(self) -> None:
        self._weights.close()
