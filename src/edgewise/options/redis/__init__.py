"""Limits of keys in a Redis, which gateways on several machines share."""
