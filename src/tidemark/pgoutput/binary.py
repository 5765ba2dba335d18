"""Which types can be decoded from the binary format, determined without importing Arrow.

pgoutput sends either every type that has a send function in binary, or none. The receiver therefore requests binary
only if all types in the stream are decoded from binary. This is decided before any value arrives; `values.types`
contains the decoders.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.schema.table import PgType

# Built-in types with a binary decoder, mapped to their array types.
_ARRAYS = {
    16: 1000, 21: 1005, 23: 1007, 20: 1016, 26: 1028, 700: 1021, 701: 1022, 1700: 1231, 25: 1009, 1043: 1015,
    1042: 1014, 19: 1003, 18: 1002, 17: 1001, 1082: 1182, 1114: 1115, 1184: 1185, 1083: 1183, 1266: 1270,
    1186: 1187, 2950: 2951, 114: 199, 3802: 3807,
}  # fmt: skip
_BUILT_IN = frozenset({*_ARRAYS, *_ARRAYS.values()})
_VECTORS = frozenset({22, 30})  # int2vector and oidvector


def decoded_from_binary(oid: int, known: Mapping[int, PgType]) -> bool:
    """Whether a column of this type is decoded from binary; `known` contains the types that are not built in."""
    if oid in _BUILT_IN:
        return True
    described = known.get(oid)
    if described is None or oid in _VECTORS:
        return False
    if described.kind == "d":
        base = described.parts[0].type
        return decoded_from_binary(base.oid, {**known, base.oid: base})
    if described.kind == "b" and len(described.parts) == 1:
        element = described.parts[0].type
        return not _is_list(element) and decoded_from_binary(element.oid, {**known, element.oid: element})
    return described.kind == "e"


def _is_list(described: PgType) -> bool:
    """Whether a type is an array or a domain over one: arrays of such elements are stored as text."""
    if described.oid in _ARRAYS.values():
        return True
    if described.kind == "d":
        return _is_list(described.parts[0].type)
    return described.kind == "b" and len(described.parts) == 1
