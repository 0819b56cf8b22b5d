"""How an engine process is started."""

from __future__ import annotations

from shardserve_server.link.engine_command import engine_environment


def test_the_server_keys_do_not_reach_the_engine() -> None:
    environment = {
        "SHARDSERVE_API_KEY": "secret",
        "XLA_FLAGS": "--a --xla_force_host_platform_device_count=2",
        "A": "b",
    }
    assert engine_environment(environment, virtual_devices=8) == {
        "A": "b",
        "XLA_FLAGS": "--a --xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    assert "JAX_PLATFORMS" not in engine_environment(environment)
