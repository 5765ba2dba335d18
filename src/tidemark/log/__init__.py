"""The log: everything that the source sent, stored on disk until it is applied to the lake.

    000000000007.segment   blocks: a head (relations in force, open transactions), then frames in order of arrival
    000000000007.index     blocks: the transactions committed by those frames, and the locations of their bytes
    mirror.json            the mirror that the log belongs to
    lock                   locked by the only process that writes

`writer` appends, `recovery` opens a log after a crash, `reader` follows the log from any process. All files except the
lock are written and synced through `disk`.
"""
