"""Redaction: private words leave as placeholders, and come back as what they stand for."""
