"""A model as ONNX for onnxruntime-genai: `model.onnx` and `genai_config.json`.

The graph is that of onnxruntime-genai's own builder for CPUs in float32 (fused attention with
its rotary embedding and a KV cache in place), written with `onnx.helper`: no torch.
"""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from pocket.convert.weights import Source

OPSET, IR_VERSION = 21, 10
FILE, CONFIG = "model.onnx", "genai_config.json"
CONTRIB = "com.microsoft"
HIDDEN = "hidden_states"
_ONE_FILE = 1 << 28
"""Bytes of weights beyond which they lie in a file beside the graph, which protobuf copies."""


class _Graph:
    """Nodes and constants; each value has a name of its own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._names = (f"value_{number}" for number in count())

    def constant(self, name: str, value: NDArray[np.generic]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(
        self,
        kind: str,
        inputs: list[str],
        outputs: list[str] | None = None,
        *,
        domain: str = "",
        **attributes: object,
    ) -> str:
        """Add an operation; returns the name of its first output."""
        outputs = outputs or [next(self._names)]
        made = helper.make_node(kind, inputs, outputs, domain=domain, **attributes)
        self.nodes.append(made)
        return outputs[0]

    def linear(self, x: str, name: str, weight: NDArray[np.float32]) -> str:
        """`x` times the transpose of `weight` [out, in]."""
        return self.node("MatMul", [x, self.constant(name, weight.T)])


def write(folder: Path, source: Source, *, hidden: bool) -> None:
    """Write the model to `folder`; with `hidden` it hands out hidden states as well."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        _model(source, hidden=hidden),
        folder / FILE,
        save_as_external_data=sum(w.nbytes for w in source.weights.values()) > _ONE_FILE,
        location=f"{FILE}.data",
    )
    (folder / CONFIG).write_text(json.dumps(_config(source, hidden=hidden), indent=2) + "\n")


def _model(source: Source, *, hidden: bool) -> onnx.ModelProto:
    graph = _Graph()
    lengths = _lengths(graph)
    rotary = _rotary(graph, source)
    embeddings = graph.constant(
        "model.embed_tokens.weight", source.weights["model.embed_tokens.weight"]
    )
    x = graph.node("Gather", [embeddings, "input_ids"])
    normed = graph.node(
        "SimplifiedLayerNormalization",
        [x, _norm(graph, source, "model.layers.0.input_layernorm")],
        axis=-1,
        epsilon=source.norm_eps,
        stash_type=1,
    )
    for layer in range(source.layers):
        name = f"model.layers.{layer}"
        mixed = _attention(graph, source, layer, normed, [*lengths, *rotary])
        normed, x = _add_norm(graph, source, x, mixed, f"{name}.post_attention_layernorm")
        written = _feed_forward(graph, source, name, normed)
        last = layer == source.layers - 1
        after = "model.norm" if last else f"model.layers.{layer + 1}.input_layernorm"
        normed, x = _add_norm(graph, source, x, written, after, HIDDEN if last else None)
    _head(graph, source, normed, embeddings)
    inputs, outputs = _signature(source, hidden=hidden)
    made = helper.make_graph(graph.nodes, "model", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION)


def _lengths(graph: _Graph) -> list[str]:
    """From the mask: ids of a sequence before the last, int32[batch], and ids in all, int32."""
    to_32 = {"to": TensorProto.INT32}
    one, axis = np.array([1], np.int64), np.array([1], np.int64)
    held = graph.node("ReduceSum", ["attention_mask", graph.constant("axis", axis)], keepdims=0)
    before = graph.node("Sub", [held, graph.constant("one", one)])
    shape = graph.node("Shape", ["attention_mask"])
    total = graph.node("Gather", [shape, graph.constant("second", np.array(1, np.int64))])
    return [graph.node("Cast", [before], **to_32), graph.node("Cast", [total], **to_32)]


def _rotary(graph: _Graph, source: Source) -> list[str]:
    """Cosines and sines, each float32[context, head_dim / 2]."""
    exponent = np.arange(0, source.head_dim, 2, dtype=np.float64) / source.head_dim
    angles = np.outer(np.arange(source.context), source.rope_base**-exponent)
    return [
        graph.constant("cos_cache", np.cos(angles).astype(np.float32)),
        graph.constant("sin_cache", np.sin(angles).astype(np.float32)),
    ]


def _norm(graph: _Graph, source: Source, name: str) -> str:
    return graph.constant(f"{name}.weight", source.weights[f"{name}.weight"])


def _add_norm(
    graph: _Graph, source: Source, x: str, more: str, norm: str, named: str | None = None
) -> tuple[str, str]:
    """The norm of x + more, and x + more."""
    normed, total = named or f"{norm}.output", f"{norm}.sum"
    graph.node(
        "SkipSimplifiedLayerNormalization",
        [x, more, _norm(graph, source, norm)],
        [normed, "", "", total],
        domain=CONTRIB,
        epsilon=source.norm_eps,
    )
    return normed, total


def _attention(graph: _Graph, source: Source, layer: int, x: str, rest: list[str]) -> str:
    """`rest` are lengths, cosines and sines."""
    name = f"model.layers.{layer}.self_attn"
    parts = [source.weights[f"{name}.{part}_proj.weight"] for part in "qkv"]
    packed = graph.linear(x, f"{name}.qkv_proj.weight", np.concatenate(parts))
    if f"{name}.q_proj.bias" in source.weights:
        biases = [source.weights[f"{name}.{part}_proj.bias"] for part in "qkv"]
        added = graph.constant(f"{name}.qkv_proj.bias", np.concatenate(biases))
        packed = graph.node("Add", [packed, added])
    past, present = f"past_key_values.{layer}", f"present.{layer}"
    mixed = graph.node(
        "GroupQueryAttention",
        [packed, "", "", f"{past}.key", f"{past}.value", *rest],
        [f"{name}.output", f"{present}.key", f"{present}.value"],
        domain=CONTRIB,
        num_heads=source.heads,
        kv_num_heads=source.kv_heads,
        scale=source.head_dim**-0.5,
        do_rotary=1,
        rotary_interleaved=0,
    )
    return graph.linear(mixed, f"{name}.o_proj.weight", source.weights[f"{name}.o_proj.weight"])


def _feed_forward(graph: _Graph, source: Source, layer: str, x: str) -> str:
    gate, up, down = (f"{layer}.mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
    opened = graph.linear(x, gate, source.weights[gate])
    swish = graph.node("Mul", [opened, graph.node("Sigmoid", [opened])])
    gated = graph.node("Mul", [swish, graph.linear(x, up, source.weights[up])])
    return graph.linear(gated, down, source.weights[down])


def _head(graph: _Graph, source: Source, x: str, embeddings: str) -> None:
    """A tied head is turned when the model is loaded, so that the file holds it once."""
    if source.tied:
        head = graph.node("Transpose", [embeddings], perm=[1, 0])
    else:
        head = graph.constant("lm_head.weight", source.head.T)
    graph.node("MatMul", [x, head], ["logits"])


def _signature(
    source: Source, *, hidden: bool
) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    def cells(name: str, length: str) -> list[onnx.ValueInfoProto]:
        shape = ("batch_size", source.kv_heads, length, source.head_dim)
        return [
            value(f"{name}.{layer}.{part}", TensorProto.FLOAT, *shape)
            for layer in range(source.layers)
            for part in ("key", "value")
        ]

    rows = ("batch_size", "sequence_length")
    inputs = [
        value("input_ids", TensorProto.INT64, *rows),
        value("attention_mask", TensorProto.INT64, "batch_size", "total_sequence_length"),
        *cells("past_key_values", "past_sequence_length"),
    ]
    outputs = [value("logits", TensorProto.FLOAT, *rows, len(source.head))]
    if hidden:
        outputs.append(value(HIDDEN, TensorProto.FLOAT, *rows, source.width))
    return inputs, [*outputs, *cells("present", "total_sequence_length")]


def _config(source: Source, *, hidden: bool) -> dict[str, object]:
    vocabulary = source.vocabulary
    return {
        "model": {
            "type": source.kind,
            "vocab_size": len(source.head),
            "context_length": source.context,
            "bos_token_id": vocabulary.eos if vocabulary.bos is None else vocabulary.bos,
            "eos_token_id": vocabulary.eos,
            "pad_token_id": vocabulary.pad,
            "decoder": {
                "filename": FILE,
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "hidden_size": source.width,
                "head_size": source.head_dim,
                "num_attention_heads": source.heads,
                "num_hidden_layers": source.layers,
                "num_key_value_heads": source.kv_heads,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    **({HIDDEN: HIDDEN} if hidden else {}),
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"max_length": source.context, "past_present_share_buffer": True},
    }
