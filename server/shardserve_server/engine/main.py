"""The engine process: `python -m shardserve_server.engine.main SETTINGS MESSAGES DESCRIPTORS PARENT`.

Its parent, the front or an `EngineService`, starts it by exec, with its settings as JSON, the numbers of two inherited
sockets, and its own process id.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from typing import Any

from shardserve_proto.errors import InvalidRequest, ShardserveError

from ..link.channel import BrokenLink, ThreadChannel
from ..link.descriptors import MappedBuffers, raise_descriptor_limit
from ..link.engine_command import REFUSED_STATUS
from ..link.engine_end import EngineEnd
from ..link.log import configure_logging
from ..link.messages import LINK_VERSION, Hello, Refused, error_to_wire
from ..link.parent_death import die_with_parent

CLOSE_GRACE_S = 2.0

logger = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """Load the engine, say hello, and serve the front until it is gone."""
    settings, messages, descriptors, parent = argv
    die_with_parent(int(parent))
    raise_descriptor_limit()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to both by who signals a whole group; its parent drains first
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for its parent, which then closes the link
    configure_logging()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s engine %(levelname)s %(message)s")
    channel = ThreadChannel(socket.socket(fileno=int(messages)))
    buffers = MappedBuffers(socket.socket(fileno=int(descriptors)))
    try:
        return _serve(json.loads(settings), channel, buffers)
    except BrokenLink:
        return 0  # the front is gone: that is how an engine ends


def _serve(settings: dict[str, Any], channel: ThreadChannel, buffers: MappedBuffers) -> int:
    # Imported here, so that the process is bound to its parent before the seconds that JAX takes to load.
    try:
        from .engine import Engine, EngineSettings
        from .garbage import keep_loaded

        engine = Engine(EngineSettings(**_with_tuples(settings)))
        keep_loaded()
    except (ShardserveError, ModuleNotFoundError) as fault:
        error = fault if isinstance(fault, ShardserveError) else _missing(fault)
        logger.error("cannot start: %s", error.message)
        channel.send(Refused(error_to_wire(error)))
        return REFUSED_STATUS
    channel.send(Hello(LINK_VERSION, engine.info().model_dump()))
    EngineEnd(engine, channel, buffers).run()
    _exit_after(CLOSE_GRACE_S)
    engine.close()
    return 0


def _missing(fault: ModuleNotFoundError) -> ShardserveError:
    return InvalidRequest(
        f"the engine needs {fault.name!r}, which is not installed; pip install 'shardserve[server]' brings it, "
        "'shardserve[gpu]' and 'shardserve[tpu]' with the accelerator's own packages"
    )


def _with_tuples(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples, which meshes are made of."""
    meshes = settings.get("meshes", {})
    return settings | {"meshes": {name: tuple((axis, size) for axis, size in axes) for name, axes in meshes.items()}}


def _exit_after(seconds: float) -> None:
    """A call that does not end must not keep the process alive when its front is gone."""
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    status = main(sys.argv[1:])
    logging.shutdown()
    os._exit(status)  # no destructor of XLA has work to do that the end of the process does not do
