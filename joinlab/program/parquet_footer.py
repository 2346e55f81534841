"""The size that a parquet file claims to have, from its footer and its pages' headers.

polars allocates the claimed size before it reads the data, and a failed allocation ends the whole
process.

A file ends with its metadata, their length (4 bytes) and "PAR1". Metadata and headers are in
Thrift's compact protocol
(https://github.com/apache/thrift/blob/0.22.0/doc/specs/thrift-compact-protocol.md), read here as
nested dicts by field number. The numbers are defined in
https://github.com/apache/parquet-format/blob/apache-parquet-format-2.11.0/src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Mapping

_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3  # FileMetaData, RowGroup, ColumnChunk
_NUM_VALUES, _PACKED, _DATA_PAGE, _DICTIONARY_PAGE = (
    5,
    7,
    9,
    11,
)  # ColumnMetaData: a count, bytes and two offsets
_UNPACKED_SIZE, _PACKED_SIZE, _OF_PAGE = (
    2,
    3,
    (5, 7, 8),
)  # PageHeader: bytes, and the header of a page of each type
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MAX_DEPTH = 16

Value = int | bytes | list["Value"] | dict[int, "Value"]


def room(parquet: bytes) -> int:
    """Bytes that its values (8 each, those in lists counted one by one) or its unpacked pages take,
    whichever is more.

    ValueError if it is not a parquet file, or its pages contradict its footer.
    """
    if len(parquet) < 12 or parquet[-4:] != b"PAR1":
        raise ValueError("no parquet file")
    length = int.from_bytes(parquet[-8:-4], "little")
    if length > len(parquet) - 12:
        raise ValueError("a parquet file without its footer")
    found = _Reader(parquet[-8 - length : -8]).struct()
    columns = [
        _fields(_fields(column).get(_META_DATA, {}))
        for group in _items(found.get(_ROW_GROUPS, []))
        for column in _items(_fields(group).get(_COLUMNS, []))
    ]
    values = sum(_number(column.get(_NUM_VALUES, 0)) for column in columns)
    return max(8 * values, sum(_unpacked(parquet, column) for column in columns))


def _unpacked(parquet: bytes, column: Mapping[int, Value]) -> int:
    """Bytes of a column's unpacked pages, by their headers. Pages follow each other, each after its
    header."""
    begins = [
        _number(column[offset]) for offset in (_DICTIONARY_PAGE, _DATA_PAGE) if offset in column
    ]
    at = min((begin for begin in begins if begin), default=0)
    end = at + _number(column.get(_PACKED, 0))
    if end > len(parquet):
        raise ValueError("a parquet footer that names more than the file has")
    unpacked, whole = (
        0,
        memoryview(parquet),
    )  # a slice of bytes would copy the rest of the column for each page
    while at < end:
        reader = _Reader(whole[at:end])
        header = reader.struct()
        for page in (_fields(header[kind]) for kind in _OF_PAGE if kind in header):
            if _number(page.get(1, 0)) > _number(
                column.get(_NUM_VALUES, 0)
            ):  # num_values, the first field of each
                raise ValueError(
                    "a page of a parquet file that claims more values than its column has"
                )
        unpacked += _number(header.get(_UNPACKED_SIZE, 0))
        at += reader.at + _number(header.get(_PACKED_SIZE, 0))
    return unpacked


def _items(value: Value) -> list[Value]:
    if not isinstance(value, list):
        raise ValueError("a parquet footer of another form")
    return value


def _fields(value: Value) -> Mapping[int, Value]:
    if not isinstance(value, dict):
        raise ValueError("a parquet footer of another form")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("a parquet footer of another form")
    return value


class _Reader:
    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Value]:
        found: dict[int, Value] = {}
        number = 0
        while (head := self._take(1)[0]) != 0:
            # One byte: how much larger the field's number is than the one before, and its type. 0:
            # the number follows.
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            found[number] = (
                head & 15 == _TRUE
                if head & 15 in (_TRUE, _FALSE)
                else self._value(head & 15, depth + 1)
            )
        return found

    def _value(self, kind: int, depth: int) -> Value:
        if depth > _MAX_DEPTH:
            raise ValueError("a parquet footer of another form")
        if kind in (_TRUE, _FALSE, _BYTE):  # a boolean in a list takes a byte, too
            return self._take(1)[0]
        if kind in (_I16, _I32, _I64):
            return self._zigzag()
        if kind == _DOUBLE:
            return self._take(8)
        if kind == _BINARY:
            return self._take(self._varint())
        if kind in (_LIST, _SET):
            head = self._take(1)[0]
            size = self._varint() if head >> 4 == 15 else head >> 4
            return [self._value(head & 15, depth + 1) for _ in range(min(size, len(self._data)))]
        if kind == _STRUCT:
            return self.struct(depth)
        raise ValueError("a parquet footer of another form")  # maps do not occur in it

    def _take(self, count: int) -> bytes:
        part = bytes(self._data[self.at : self.at + count])
        if len(part) < count:
            raise ValueError("a parquet footer that is cut short")
        self.at += count
        return part

    def _varint(self) -> int:
        number = shift = 0
        while shift < 70:
            byte = self._take(1)[0]
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number
        raise ValueError("a parquet footer of another form")

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
