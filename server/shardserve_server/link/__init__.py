"""The link between front and engine: messages over a unix socket, array bytes in shared buffers."""
