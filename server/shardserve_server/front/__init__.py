"""HTTP alone, without JAX: the app, its protocol class, keys, routes and telemetry."""
