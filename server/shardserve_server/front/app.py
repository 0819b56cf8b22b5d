"""The FastAPI app, made by a factory: nothing is started, opened or read at import."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shardserve_proto.errors import InvalidRequest
from shardserve_proto.programs import plain

from ..link.buffers import BufferPool
from ..link.engine_process import EngineProcess
from ..link.launchers import ChildLauncher, SocketLauncher
from ..link.transfer import EngineLink
from ..settings import Settings
from .arrays import Arrays
from .auth import Gate, Keys
from .calls import Calls
from .errors import ErrorBoundary, error_of_refusal
from .openapi import describe
from .pins import Pins, Runs
from .routes import arrays as array_routes
from .routes import health, kernels
from .routes.calls import PATH, CallEndpoint
from .services import Services
from .stopping import Door, Stopping

#: A new lease may end before the next one that is known of, so the sweep never sleeps longer.
SWEEP_S = 1.0
ROUTERS = (health.router, kernels.router, array_routes.router)


class FrontApp(FastAPI):
    """The app. Its hottest route does not pass FastAPI's own layers, which take a tenth of a small call's time.

    Attributes:
        hot: answers `POST /v1/call`, through the same outermost layers as everything else.
    """

    hot: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "POST":
            await self.hot(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    settings: Settings, keys: Keys | None = None, *, engine: EngineLink | None = None, pool: BufferPool | None = None
) -> FastAPI:
    """The front's app; its lifespan starts and stops the engine.

    Arguments:
        keys: who may call; None leaves the app open to this host alone, with the checks that this needs.
        engine: instead of a process of its own.
        pool: the buffers, if somebody else made them.
    """
    stopping = Stopping()
    pool = pool or make_pool(settings)
    engine = engine or make_engine(settings, pool)
    arrays = Arrays(engine, ttl_s=settings.array_ttl_s, most=settings.arrays_per_owner)
    pins = Pins(pool, limit_bytes=settings.pinned_bytes)
    engine.may_leave = lambda: stopping.active == 0
    engine.before_ready = lambda started: _take_back(started, engine, arrays, pins)
    calls = Calls(settings, engine, pool, arrays, pins)
    services = Services(settings, engine, pool, calls, arrays, pins, stopping)
    app = FrontApp(
        title="shardserve",
        version=services.version,
        docs_url=None,  # both pages load their scripts from another host
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the Host that the client sent
        lifespan=_lifespan(services),
    )
    app.state.services = services
    app.add_middleware(Door, stopping=stopping)
    app.add_middleware(Gate, keys=keys)
    app.add_middleware(ErrorBoundary, epoch=arrays.epoch)  # the last added is the outermost
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    endpoint = CallEndpoint(calls, body_bytes=settings.body_bytes)
    app.hot = ErrorBoundary(Gate(Door(endpoint, stopping), keys), arrays.epoch)
    app.router.add_route(PATH, endpoint, methods=["POST"])  # type: ignore[arg-type]
    for router in ROUTERS:
        app.include_router(router)
    describe(app)
    return app


def make_pool(settings: Settings) -> BufferPool:
    """The shared buffers of these settings."""
    return BufferPool(
        kind=settings.buffer_kind, limit_bytes=settings.buffer_bytes, spare_bytes=settings.spare_buffer_bytes
    )


def make_engine(settings: Settings, pool: BufferPool) -> EngineProcess:
    """The engine of these settings: a child of this process, or the one behind a socket."""
    path = settings.engine_socket
    launcher = ChildLauncher(settings.engine_command()) if path is None else SocketLauncher(path)
    return EngineProcess(launcher, pool, start_timeout_s=settings.engine_start_timeout_s)


async def _take_back(started: Runs, engine: EngineLink, arrays: Arrays, pins: Pins) -> None:
    """Before a new life of the engine is ready: it has read the declared arrays and gets the pinned ones back."""
    arrays.drop_lost()
    arrays.declare(engine.info.declared if engine.info is not None else ())
    await pins.restore(started, arrays)


async def _sweep(arrays: Arrays) -> None:
    """End leases when they are over, also while nobody asks."""
    while True:
        pause = arrays.sweep()
        await asyncio.sleep(SWEEP_S if pause is None else min(max(pause, 0.01), SWEEP_S))


def _lifespan(services: Services):  # type: ignore[no-untyped-def]
    @asynccontextmanager
    async def run(_: FastAPI) -> AsyncIterator[None]:
        try:
            await services.engine.start()
        except Exception as error:  # uvicorn would end without a word
            structlog.get_logger("shardserve.front").error("cannot start", exc_info=error)
            raise
        sweeping = asyncio.create_task(_sweep(services.arrays))
        try:
            yield
        finally:
            sweeping.cancel()
            await services.engine.stop()
            services.pool.close()

    return run


async def _refused(request: Request, error: Exception) -> Response:
    """Raised again as an error with a name, so that all of them leave by the outermost middleware."""
    assert isinstance(error, HTTPException)  # noqa: S101 - the class that it is registered for
    routes = itertools.chain(request.app.routes, *(router.routes for router in ROUTERS))
    raise error_of_refusal(error, scope=request.scope, routes=routes) from None


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - the class that it is registered for
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))[:200]
    raise InvalidRequest(f"{place}: {plain(first['msg'])}") from None
