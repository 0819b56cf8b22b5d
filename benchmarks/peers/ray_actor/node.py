"""How a Ray node is kept to this host."""

from __future__ import annotations

import secrets

ADDRESS = "127.0.0.1"


def environment() -> dict[str, str]:
    """Variables of the node and of its driver."""
    return {
        # Else Ray takes 127.0.0.1 for a slip, puts the host's outer address in its place, and listens on all of them.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # A token for this run alone, which Ray would else write to the user's home.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
