"""Edge models on MLX, through mlx-lm: the extra `edgewise[mlx]`, for Macs with Apple silicon.

A model is a folder with `config.json` and safetensors, in MLX's quantised form or in full. Logits
of every id and the hidden state that its head reads come from one pass. On Linux MLX computes on
the CPU, slowly.
"""

from edgewise.addresses import resolve_folder
from edgewise.edge.base import EdgeOptions, Floats
from edgewise.edge.engine import EngineModel
from edgewise.edge.hub.folder import DESCRIPTIONS, explained
from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.edge.mlx.cache import MlxCache, MlxWeights
from edgewise.edge.mlx.load import load_folder, modules
from edgewise.edge.sequence import MEMORY
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

    def _load(self, options: EdgeOptions) -> None:
        """A model is on one device as a whole: MLX's own choice, or with 0 GPU layers the CPU."""
        if options.threads is not None:
            raise UsageError(
                "The edge engine mlx has no number of threads to set",
                hint="leave the threads out",
                setting="threads",
            )
        mx, _ = modules()
        loaded = load_folder(self.path, options.gpu_layers)
        self.context = self._context_for(loaded.context)
        self.form, self.device = loaded.form, str(loaded.device.type.name)
        self._parameters = loaded.parameters
        with explained(self.path, "MLX", "mlx-lm"):
            self._weights = MlxWeights(mx, loaded.model, loaded.device, context=self.context)
        size = self._weights.size

        def new() -> MlxCache:
            return MlxCache(self._weights, room=MEMORY // options.slots)

        self._try_out(new, size)
        self._tokenizer = HubTokenizer(self.path, size=size)
        self._open_slots(new)

    @property
    def parameters(self) -> int:
        return self._parameters

    @property
    def build(self) -> str:
        return f"MLX, {self.form} on {self.device}"

    def embeddings(self) -> Floats:
        found = self._weights.embeddings()
        return super().embeddings() if found is None else found

    def _free(self) -> None:
        self._weights.close()
