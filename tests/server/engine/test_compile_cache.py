"""One compilation for each key, ever; a bounded number kept; a failure poisons nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shardserve_proto.errors import DeadlineExceeded
from shardserve_server.engine.compile_cache import CompileCache
from shardserve_server.engine.engine import Engine, EngineSettings
from tests.calls import run


def test_two_hundred_first_calls_of_one_shape_compile_once() -> None:
    engine = Engine(EngineSettings(devices=8))
    x = np.random.default_rng(0).random((17, 23))
    with ThreadPoolExecutor(200) as pool:
        results = list(pool.map(lambda _: run(engine, "matmul", x, x.T), range(200)))
    assert engine.cache.compilations == 1
    for result in results:
        np.testing.assert_allclose(result.value, x @ x.T, rtol=1e-13)
    assert any(result.report.compiled for result in results)
    assert not run(engine, "matmul", x, x.T).report.compiled
    engine.close()


@pytest.mark.timeout(180)
def test_three_hundred_shapes_leave_the_cache_at_its_limit() -> None:
    """B61; every answer is right after eviction too."""
    engine = Engine(EngineSettings(devices=8, compile_cache_entries=20))
    for size in [*range(1, 301), 1, 2]:
        x = np.arange(size, dtype=np.float64)
        assert run(engine, "multiply", x, x).value.sum() == (x * x).sum()
        assert len(engine.cache) <= 20
    assert engine.cache.compilations == 302
    engine.close()


def test_the_value_of_a_python_scalar_needs_no_compilation_of_its_own(engine: Engine) -> None:
    """B62: 2.0, np.float32(2) and a 0-d array are one program."""
    x = np.arange(5, dtype=np.float32)
    before = engine.cache.compilations
    for two in (2.0, np.float32(2), np.array(2, np.float32), 3.0, -1.5):
        found = run(engine, "multiply", x, two)
        assert found.value.dtype == np.float32
        np.testing.assert_array_equal(found.value, x * two)
    assert engine.cache.compilations == before + 1


def test_a_failed_build_fails_its_callers_and_is_forgotten() -> None:
    cache: CompileCache[int] = CompileCache(4)
    calls: list[int] = []

    def broken() -> int:
        calls.append(1)
        time.sleep(0.05)
        raise ValueError("no")

    futures = [cache.get_or_build("key", broken) for _ in range(3)]
    for future in futures:
        with pytest.raises(ValueError, match="no"):
            future.result(5)
    assert len(calls) == 1
    assert cache.get_or_build("key", lambda: 7).result(5) == 7
    cache.close()


def test_a_ready_executable_does_not_wait_for_the_compiler() -> None:
    cache: CompileCache[int] = CompileCache(4)
    cache.get_or_build("ready", lambda: 1).result(5)
    release = threading.Event()
    slow = cache.get_or_build("slow", lambda: int(release.wait(10)))
    assert cache.get_or_build("ready", lambda: 2).result(0) == 1
    release.set()
    assert slow.result(5) == 1
    cache.close()


def test_the_least_recently_used_executable_goes_first() -> None:
    cache: CompileCache[str] = CompileCache(2)
    for key in ("a", "b"):
        cache.get_or_build(key, lambda key=key: key).result(5)  # type: ignore[misc]
    assert cache.get("a") == "a"
    cache.get_or_build("c", lambda: "c").result(5)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("a", None, "c")
    cache.close()


def test_a_build_that_nobody_waits_for_any_more_is_not_begun() -> None:
    """Clients that come and go do not keep the compiler from those that stay."""
    cache: CompileCache[int] = CompileCache(4)
    begin = threading.Event()
    blocker = cache.get_or_build("first", lambda: begin.wait(10) and 1)
    wanted = True
    built: list[str] = []

    def build(name: str, value: int) -> int:
        built.append(name)
        return value

    gone = cache.get_or_build("gone", lambda: build("gone", 2), is_wanted=lambda: wanted)
    stays = cache.get_or_build("stays", lambda: build("stays", 3), is_wanted=lambda: wanted)
    also = cache.get_or_build("stays", lambda: 4)
    wanted = False
    begin.set()
    assert blocker.result(10) == 1
    with pytest.raises(DeadlineExceeded):
        gone.result(10)
    assert stays.result(10) == also.result(10) == 3
    assert built == ["stays"]
    assert cache.get_or_build("gone", lambda: 5).result(10) == 5
    cache.close()
