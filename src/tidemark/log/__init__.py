"""The log: everything the source sent, on disk, until the lake has it.

    000000000007.segment   blocks: a head (tables described, transactions open), then frames as they came
    000000000007.index     blocks: which transactions were committed by those frames, and where their bytes are
    mirror.json            whose log this is
    lock                   held by the one process that writes

`writer` appends, `recovery` opens what a crash left, `reader` follows from any process. Every byte on disk is written
and synced through `disk`.
"""
