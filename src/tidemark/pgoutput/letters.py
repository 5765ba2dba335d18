"""The first byte of each pgoutput message."""

from __future__ import annotations

INSERT, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "IUDT")
BEGIN, COMMIT, ORIGIN, RELATION, TYPE, MESSAGE = (ord(letter) for letter in "BCORYM")
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = (ord(letter) for letter in "SEcA")
TWO_PHASE = b"bPKrp"
