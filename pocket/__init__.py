"""How the bundled pocket pair is made: corpus, tokenizer, training and export to GGUF."""
