"""Random GGUFs whose layers keep a state, or hold a window: recurrent, hybrid and sliding kinds.

What a kind needs is what llama.cpp's `src/models/KIND.cpp` loads. Shapes are numpy's, slowest
dimension first. A file has a few hundred kilobytes.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.models import byte_level, finish

LAYERS, HEADS, KV_HEADS, HEAD, CONTEXT = 4, 4, 2, 16, 2048
KERNEL, WINDOW, INTERVAL = 4, 16, 2
"""Ids that a convolution looks at, and a layer with a window. Where kinds mix, every second layer
has attention."""

WIDTH, FFN = 64, 96
STATE, GROUPS, RANKS, INNER = 16, 2, 4, 2 * WIDTH
"""Of recurrent layers; Mamba's has an inner width."""

SIZES = {"width": WIDTH, "ffn": FFN, "head": HEAD, "queries": HEADS * HEAD, "keys": KV_HEADS * HEAD}
SIZES |= {"two_queries": 2 * HEADS * HEAD, "kernel": KERNEL, "short_kernel": KERNEL - 1}
SIZES |= {"state": STATE, "groups": GROUPS, "ranks": RANKS, "values": STATE * RANKS, "rank": 8}
SIZES |= {"channels": 2 * STATE * GROUPS + STATE * RANKS, "three_widths": 3 * WIDTH}
SIZES |= {"inner": INNER, "group": INNER // GROUPS, "mamba_channels": INNER + 2 * GROUPS * STATE}
SIZES |= {"mamba_in": 2 * INNER + 2 * GROUPS * STATE + RANKS}

# A line has names, sizes, and how weights are drawn where it is not as usual. Behind the queries of
# gated attention stand as many gates. RWKV-7 has one head: only heads of 64 agree between a batch
# and single ids on a CPU; decays this slow keep the first ids in sight.
PARTS = """
gemma_norms
    attn_norm.weight,post_attention_norm.weight,post_ffw_norm.weight : width : ones
attn_norm
    attn_norm.weight : width : ones
ffn_norm
    ffn_norm.weight : width : ones
falcon_norm
    ffn_norm : width : ones
qwen_norm
    post_attention_norm.weight : width : ones
ffn
    ffn_gate.weight,ffn_up.weight : ffn width
    ffn_down.weight : width ffn
attention
    attn_q.weight : queries width
    attn_k.weight,attn_v.weight : keys width
    attn_output.weight : width queries
gated_attention
    attn_q.weight : two_queries width
    attn_k.weight,attn_v.weight : keys width
    attn_output.weight : width queries
head_norms
    attn_q_norm.weight,attn_k_norm.weight : head : ones
delta_net
    attn_qkv.weight : channels width
    attn_gate.weight : values width
    ssm_conv1d.weight : channels kernel : wide
    ssm_dt.bias : ranks
    ssm_a : ranks : decay
    ssm_beta.weight,ssm_alpha.weight : ranks width
    ssm_norm.weight : state : ones
    ssm_out.weight : width values
mamba2
    ssm_in.weight : mamba_in width
    ssm_conv1d.weight : mamba_channels kernel : wide
    ssm_conv1d.bias : mamba_channels
    ssm_dt.bias : ranks
    ssm_a : ranks 1 : decay
    ssm_d : ranks 1
    ssm_norm.weight : groups group : ones
    ssm_out.weight : width inner
short_convolution
    shortconv.conv.weight : width short_kernel : wide
    shortconv.in_proj.weight : three_widths width
    shortconv.out_proj.weight : width width
rwkv7_ends
    token_embd_norm.weight : width : ones
    token_embd_norm.bias,output_norm.bias : width
rwkv7
    attn_norm.weight,attn_norm_2.weight,time_mix_ln.weight : width : ones
    attn_norm.bias,attn_norm_2.bias,time_mix_ln.bias : width
    time_mix_w1.weight : rank width
    time_mix_w2.weight : width rank
    time_mix_a1.weight : rank width
    time_mix_a2.weight : width rank
    time_mix_a0.weight : width
    time_mix_v1.weight : rank width
    time_mix_v2.weight : width rank
    time_mix_v0.weight : width
    time_mix_g1.weight : rank width
    time_mix_g2.weight : width rank
    time_mix_w0.weight : width : slow
    time_mix_lerp_fused.weight : 6 1 1 width : part
    channel_mix_lerp_k.weight : 1 1 width : part
    time_mix_k_k.weight,time_mix_k_a.weight,time_mix_r_k.weight : width
    time_mix_key.weight,time_mix_value.weight : width width
    time_mix_receptance.weight,time_mix_output.weight : width width
    channel_mix_key.weight : ffn width
    channel_mix_value.weight : width ffn
"""
LINES = {
    name: lines.splitlines()
    for name, lines in re.findall(r"^(\w+)\n((?:    .+\n)+)", PARTS, re.MULTILINE)
}

KINDS = {
    "gemma3": ["gemma_norms ffn_norm ffn attention head_norms"] * 2,
    "qwen35": [
        "attn_norm qwen_norm ffn delta_net",
        "attn_norm qwen_norm ffn gated_attention head_norms",
    ],
    "falcon-h1": ["attn_norm falcon_norm ffn attention mamba2"] * 2,
    "lfm2": [
        "attn_norm ffn_norm ffn short_convolution",
        "attn_norm ffn_norm ffn attention head_norms",
    ],
    "rwkv7": ["rwkv7"] * 2,
}
"""The parts of layers in turn, by the name that a GGUF has for a kind (`general.architecture`).

A window in one of two layers (Gemma 3); gated delta nets (Qwen3.5); Mamba-2 and attention side by
side (Falcon-H1); short convolutions (LFM2); RWKV-7.
"""
HYBRIDS = tuple(kind for kind in KINDS if kind != "gemma3")
"""Those with recurrent layers."""

Weights = NDArray[np.float32]


def write(path: Path, kind: str) -> Path:
    """A model of one of `KINDS`."""
    vocabulary = byte_level()
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary.tokens))
    describe(writer, kind)
    return finish(writer, vocabulary, tensors(kind, len(vocabulary.tokens)), path)


def describe(writer: gguf.GGUFWriter, kind: str) -> None:
    """The keys of a kind."""
    attends = [(layer + 1) % INTERVAL == 0 for layer in range(LAYERS)]
    if kind == "rwkv7":
        writer.add_head_count(0)
        writer.add_layer_norm_eps(1e-5)
        writer.add_wkv_head_size(64)
        writer.add_token_shift_count(2)
        for add in ("decay", "iclr", "value_residual_mix", "gate"):
            getattr(writer, f"add_{add}_lora_rank")(SIZES["rank"])
        return
    writer.add_head_count(HEADS)
    # A layer of LFM2 without KV heads is a recurrent one.
    writer.add_head_count_kv([KV_HEADS * on for on in attends] if kind == "lfm2" else KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    if kind == "gemma3":
        writer.add_sliding_window(WINDOW)
        writer.add_sliding_window_pattern([not on for on in attends])
    elif kind == "lfm2":
        writer.add_shortconv_l_cache(KERNEL - 1)
    else:
        writer.add_ssm_conv_kernel(KERNEL)
        writer.add_ssm_inner_size(INNER if kind == "falcon-h1" else SIZES["values"])
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_time_step_rank(RANKS)
        writer.add_ssm_group_count(GROUPS)
    if kind == "qwen35":
        writer.add_full_attention_interval(INTERVAL)
        writer.add_rope_dimension_sections([HEAD // 4, HEAD // 8, HEAD // 8, 0])


def tensors(kind: str, size: int) -> Iterator[tuple[str, Weights]]:
    rng = np.random.default_rng(0)
    yield "token_embd.weight", drawn(rng, (size, WIDTH))
    norm = "token_embd_norm.weight" if kind == "lfm2" else "output_norm.weight"
    yield norm, drawn(rng, (WIDTH,), "ones")
    yield "output.weight", drawn(rng, (size, WIDTH))
    layers = [(f"blk.{n}.", KINDS[kind][n % INTERVAL]) for n in range(LAYERS)]
    for at, names in [("", "rwkv7_ends"), *layers] if kind == "rwkv7" else layers:
        for line in [line for name in names.split() for line in LINES[name]]:
            these, sizes, *how = (part.strip() for part in line.split(":"))
            shape = tuple(int(SIZES.get(one, one)) for one in sizes.split())
            for name in these.split(","):
                yield f"{at}{name}", drawn(rng, shape, *how)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], how: str = "usual") -> Weights:
    if how == "ones":
        return np.ones(shape, np.float32)
    if how == "decay":
        return -rng.uniform(0.05, 0.5, shape).astype(np.float32)
    if how in ("slow", "part"):
        low, high = (-6, -3) if how == "slow" else (0, 1)
        return rng.uniform(low, high, shape).astype(np.float32)
    return rng.standard_normal(shape, np.float32) * np.float32(0.5 if how == "wide" else 0.15)


class HybridPaths:
    """`paths["qwen35"]`: a file of that kind, written when it is asked for first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, kind: str) -> Path:
        path = self._folder / f"{kind}.gguf"
        return path if path.exists() else write(path, kind)
