"""Edge models on ONNX Runtime, through onnxruntime-genai: the extra `edgewise[onnx]`.

Met by the entry point `onnx` of `edgewise.edge`: `--edge FOLDER`, one with `genai_config.json`.
"""
