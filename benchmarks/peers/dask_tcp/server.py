"""A Dask scheduler and one worker process of two threads, over tcp on loopback."""

from __future__ import annotations

import threading

from distributed import LocalCluster

from ..base import announce, end_with_parent


def main() -> None:
    cluster = LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=True,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address=None,
        memory_limit=0,
    )
    end_with_parent(cluster.close)
    announce(address=cluster.scheduler_address)
    threading.Event().wait()


if __name__ == "__main__":
    main()
