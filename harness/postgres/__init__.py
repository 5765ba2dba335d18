"""Private PostgreSQL servers: started from a cached template in about a second, removed when the process ends."""

from harness.postgres.install import Install, installs
from harness.postgres.server import Server, start_server

__all__ = ["Install", "Server", "installs", "start_server"]
