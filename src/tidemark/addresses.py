"""Addresses that a server listens on."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tidemark.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Parse HOST:PORT; an IPv6 address stands in brackets."""
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise InvalidValue(f"invalid address: {text!r}", "Write HOST:PORT, such as 127.0.0.1:6432 or [::1]:6432.")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
