"""Edge models on transformers: for models that have no GGUF, and for GPUs of every make."""
