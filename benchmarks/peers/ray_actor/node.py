"""How a Ray node is kept to this host."""

from __future__ import annotations

import secrets

#: Ray takes "127.0.0.1" for a slip and puts the host's outer address in its place; the rest of loopback it leaves.
ADDRESS = "127.0.0.2"


def environment() -> dict[str, str]:
    """Variables of the node and of its driver: a token for this run alone, which Ray would else write to the home."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
