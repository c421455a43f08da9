"""The bundled models in the forms of other engines: ONNX, safetensors, MLX."""
