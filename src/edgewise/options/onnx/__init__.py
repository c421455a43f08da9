"""Edge models on ONNX Runtime, through onnxruntime-genai: folders with `genai_config.json`."""
