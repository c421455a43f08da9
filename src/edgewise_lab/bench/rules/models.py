"""Models that decode many answers (rows) together, by transformers, from safetensors or a GGUF."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from edgewise.addresses import resolve
from edgewise.edge.base import EdgeOptions
from edgewise.edge.llamacpp.model import fingerprint_of
from edgewise.edge.named import EDGES, engine_at
from edgewise.errors import ModelError, UsageError
from edgewise.registry import imported

Tensor = Any
"""A `torch.Tensor`; torch is optional and imported where it is used."""

PREFILLED = 64
"""Largest number of prompts in one forward pass of the prefill."""


class RowModel:
    """A causal language model that decodes a batch of rows; each row is one sequence of ids.

    Ids that are rolled back are only masked, so layers other than attention raise `UsageError`.
    `context` is the longest sequence in ids, `fingerprint` a hash of the weights.
    """

    def __init__(self, network: Any, fingerprint: str = "") -> None:
        self.torch = imported("transformers", "torch")[0]
        self._kinds = imported("transformers", "transformers.cache_utils")[0]
        self._network, self.fingerprint = network.eval(), fingerprint
        config = network.config.get_text_config(decoder=True)
        if set(getattr(config, "layer_types", None) or ()) - _ATTENTION:
            raise UsageError(
                "A model with recurrent layers cannot take ids back, so no rows step together",
                hint="name one with attention alone",
            )
        self.context: int = getattr(config, "max_position_embeddings", None) or 1 << 20
        self.device, self.dtype = network.device, network.dtype
        takes = signature(network.forward).parameters
        self._takes = "cache" if "cache" in takes else "past_key_values"
        self._cache: Any = None

    def begin(self, ids: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        """Prefill prompts into a new KV cache; return the logits [rows, vocabulary] after them.

        `ids` [prompts, columns] are left-padded; `mask` is 0 there, else 1. `rows` [rows] holds the
        index of each row's prompt.
        """
        caches: list[Any] = []
        logits: list[Tensor] = []
        for begin in range(0, len(ids), PREFILLED):
            part = slice(begin, begin + PREFILLED)
            self._cache = self._kinds.DynamicCache()
            places = (mask[part].cumsum(1) - 1).clamp(min=0)
            logits.append(self.step(ids[part], mask[part], places))
            caches.append(self._cache)
        self._cache, cat = caches[0], self.torch.cat
        for layer, *others in zip(*(cache.layers for cache in caches), strict=True):
            layer.keys = cat([layer.keys, *(one.keys for one in others)])
            layer.values = cat([layer.values, *(one.values for one in others)])
        self.keep(rows)
        return cat(logits)[rows]

    def step(self, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        """Add `ids` [rows, n] to the KV cache; return the logits [rows, vocabulary] after the last.

        `places` [rows, n] are their positions. `mask` [rows, columns] has a column for each id in
        the KV cache, then for each of `ids`: 1 if attention may see the id, else 0.
        """
        with self.torch.inference_mode():
            made = self._network(
                input_ids=ids,
                attention_mask=mask,
                position_ids=places,
                use_cache=True,
                logits_to_keep=1,
                **{self._takes: self._cache},
            )
        return made.logits[:, -1]

    def keep(self, rows: Tensor) -> None:
        """Keep the rows of the KV cache with these indices, in this order; one may occur twice."""
        self._cache.batch_select_indices(rows)


_ATTENTION = {"full_attention", "sliding_attention"}


def open_rows(address: str, role: Literal["edge", "cloud"], device: str = "auto") -> RowModel:
    """Open the model at an address: one that transformers loads, or a GGUF of Qwen2 or Llama.

    It runs in float32 on the CPU, else in bfloat16. `role` says which bundled model "bundled"
    names. Raises `AddressError` if nothing is there, `ModelError` for an unusable file, and
    `UsageError` for another engine's model, missing libraries or a device that torch lacks.
    """
    torch, transformers = imported("transformers", "torch", "transformers")
    device = device_of(torch, device)
    if engine_at(address) == "llamacpp":
        path = resolve(address, role)
        network, fingerprint = _of_gguf(torch, transformers, path), fingerprint_of(path)
    elif engine_at(address) == "transformers":
        layers = 0 if device.startswith("cpu") else "auto"
        model: Any = EDGES.load("transformers")(address, EdgeOptions(gpu_layers=layers))
        network, fingerprint = model.network, model.fingerprint()
    else:
        raise UsageError(
            f"Rows do not step in {engine_at(address)}",
            hint="name a GGUF, or a folder or repository of safetensors",
            setting=role,
        )
    dtype = torch.float32 if device.startswith("cpu") else torch.bfloat16
    return RowModel(network.to(device, dtype), fingerprint)


def device_of(torch: Any, name: str) -> str:
    """Return device `name`; for "auto" an accelerator or "cpu". `UsageError` if torch lacks it."""
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return "cpu" if found is None else str(found.type)
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"torch has no device {name!r} ({str(error).splitlines()[0]})",
            hint="name cpu, cuda or mps, or leave it out",
        ) from error
    return name


_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def _of_gguf(torch: Any, transformers: Any, path: Path) -> Any:
    """Return a GGUF's network in float32. The caller has read its tokenizer, so it is readable."""
    gguf = imported("lab", "gguf")[0]
    reader = gguf.GGUFReader(path)
    fields, tensors = reader.fields, {tensor.name: tensor for tensor in reader.tensors}
    kind = fields["general.architecture"].contents()
    if kind not in ("qwen2", "llama"):
        raise ModelError(
            f"{str(path)!r} is a {kind}; of GGUFs only qwen2 and llama step in rows",
            hint="name the model's folder of safetensors",
        )

    def value(name: str, default: object = None) -> Any:
        field = fields.get(f"{kind}.{name}")
        return default if field is None else field.contents()

    heads, hidden = value("attention.head_count"), value("embedding_length")
    kv_heads, head = value("attention.head_count_kv", heads), hidden // heads
    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        hidden_size=hidden,
        num_hidden_layers=value("block_count"),
        intermediate_size=value("feed_forward_length"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base", 10_000.0)},
        tie_word_embeddings="output.weight" not in tensors,
    )
    state: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        own = _name(name)
        if kind == "llama" and own.endswith(("q_proj.weight", "k_proj.weight")):
            # RoPE pairs neighbours in llama.cpp, the two halves of a head in transformers.
            count = heads if "q_proj" in own else kv_heads
            weight = weight.view(count, head // 2, 2, -1).transpose(1, 2).reshape(weight.shape)
        state[own] = weight
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(config)
    if tied := config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    try:
        network.load_state_dict(state, assign=True)
    except RuntimeError as error:
        why = str(error).splitlines()[-1].strip()
        raise ModelError(
            f"{str(path)!r} has other weights than a model of its kind ({why})",
            hint="name the model's folder of safetensors",
        ) from error
    if tied:
        network.tie_weights()
    # The rotary tables are computed, not loaded: no file holds them.
    network.model.rotary_emb = type(network.model.rotary_emb)(config=config)
    return network


def _name(tensor: str) -> str:
    if tensor in _WHOLE:
        return _WHOLE[tensor]
    _, number, part, *rest = [*tensor.split(".", 3), "", "", ""][:4]
    return f"model.layers.{number}.{_LAYER.get(part, part)}.{rest[0]}"


def padded(torch: Any, prompts: Sequence[Sequence[int]], device: Any) -> tuple[Tensor, Tensor]:
    """Return `prompts`, padded left with 0, and a mask (0: padding), tensors [prompts, columns]."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(one)) + list(one) for one in prompts]
    mask = [[0] * (longest - len(one)) + [1] * len(one) for one in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
