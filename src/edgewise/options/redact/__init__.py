"""Redaction: the cloud reads placeholders for private words; its answer gets the words back."""
