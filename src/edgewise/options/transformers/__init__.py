"""Edge models on transformers: the extra `edgewise[transformers]`.

Met by the entry point `transformers` of `edgewise.edge`: `--edge FOLDER`, one with `config.json`
and safetensors. Several times slower than llama.cpp on a CPU, and the same weights to the last bit:
for models that have no GGUF, and for GPUs of every make.
"""
