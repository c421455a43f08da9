"""Limits of API keys in a Redis that gateways on several machines share."""
