"""`python -m shardserve_server` is the command `shardserve`."""

from shardserve_server.cli import main

if __name__ == "__main__":
    main()
