"""Listening for the gateway and the server: connections, TLS, origins, logs."""
