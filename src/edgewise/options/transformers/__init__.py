"""Edge models on transformers, for models without a GGUF and for GPUs of all makes."""
