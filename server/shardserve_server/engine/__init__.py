"""The engine: the process that owns the devices. It knows JAX and no HTTP."""
