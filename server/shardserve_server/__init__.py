"""The server of shardserve: an HTTP front without JAX, and an engine process that owns the devices."""
