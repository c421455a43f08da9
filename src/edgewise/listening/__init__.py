"""What the gateway and the server share as listeners: sockets, TLS, limits, origins, logs."""
