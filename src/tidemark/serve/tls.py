"""TLS over a transport, by memory: a connection costs no buffers of its own while it is idle."""

from __future__ import annotations

import ssl

_PIECE = 64 << 10


class Tls:
    """One side of a TLS connection. What `receive` and `send` leave in `take_outgoing` goes to the peer."""

    __slots__ = ("_incoming", "_object", "_outgoing", "is_established")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_name: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name
        )
        self.is_established = False

    def handshake(self) -> None:
        """Continue the handshake with what was received; raises `ssl.SSLError` if it fails."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_established = True

    def receive(self, data: bytes) -> bytes:
        """Return the plaintext of what was received; `ssl.SSLError` if it is not valid."""
        self._incoming.write(data)
        if not self.is_established:
            self.handshake()
        pieces = list[bytes]()
        while self.is_established:
            try:
                piece = self._object.read(_PIECE)
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                break
            if not piece:
                break
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes) -> None:
        """Encrypt."""
        self._object.write(data)

    def take_outgoing(self) -> bytes:
        """Return what must be sent to the peer."""
        return self._outgoing.read()


def server_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """Return the context of the listening side: TLS 1.2 or later, without renegotiation, as PostgreSQL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    context.set_alpn_protocols(["postgresql"])
    context.load_cert_chain(certificate, key)
    return context
