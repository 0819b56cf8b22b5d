"""The guided tour, `shardserve demo`: eight virtual devices, seven chapters, each checked against NumPy."""

from __future__ import annotations

import time

from .screen import Screen

DEVICES = 8


def main(screen: Screen | None = None) -> int:
    """Run the tour.

    Returns: the exit status: 0 when every check passed.
    """
    import shardserve as ss

    from .chapters import CHAPTERS
    from .tour import Tour

    screen = screen or Screen()
    started = time.perf_counter()
    screen.title(
        "shardserve: a mesh of devices behind one HTTP endpoint",
        f"A server with {DEVICES} virtual devices starts here; every call goes over HTTP.",
        "Eight virtual devices on one CPU show layout and correctness, not speed:",
        "they share its cores, and NumPy alone has no network to pay for.",
    )
    with ss.LocalServer(devices=DEVICES) as client:
        screen.console.print(f"  server ready after {time.perf_counter() - started:.1f} s")
        tour = Tour(client, screen)
        for chapter in CHAPTERS:
            chapter(tour)
    screen.summary(time.perf_counter() - started)
    return screen.exit_status
