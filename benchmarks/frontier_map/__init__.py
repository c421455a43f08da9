"""Which way is fastest, over the edge's speed and the round trip."""
