"""An `EngineService` of fake engines: `python -m tests.server.link.fake_service PATH STOP_GRACE_S SETTINGS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shardserve_server.link.engine_service import EngineService
from shardserve_server.link.log import configure_logging

from .harness import fake_command

if __name__ == "__main__":
    path, stop_grace_s, settings = sys.argv[1:]
    configure_logging()
    command = fake_command(**json.loads(settings))
    service = EngineService(
        command, Path(path), stop_grace_s=float(stop_grace_s), on_listening=lambda: print("listening", flush=True)
    )
    sys.exit(service.run())
