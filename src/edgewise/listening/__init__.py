"""What the gateway and the server listen with: whoever connects, whatever it sends or does not."""
