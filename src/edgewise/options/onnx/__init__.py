"""Edge models on ONNX Runtime, by onnxruntime-genai: folders with a `genai_config.json`."""
