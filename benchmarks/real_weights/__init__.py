"""Routing between real weights: SmolLM2-135M-Instruct, and itself with blocks left out."""
