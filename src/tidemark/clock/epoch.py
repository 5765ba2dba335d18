"""The epoch of PostgreSQL, from which its dates and timestamps count, also as an offset from that of Unix."""

from __future__ import annotations

from datetime import UTC, datetime

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
EPOCH_S = int(EPOCH.timestamp())
EPOCH_DAYS, EPOCH_MICROS = EPOCH_S // 86_400, EPOCH_S * 1_000_000
