"""The dataclasses of `bench.schema` as parquet columns: one explicit type each, checked on the way in.

A column never gets its type from the values that happen to come first, so nothing vanishes
and nothing changes type, whatever the order in which files are written and read.
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from bench.errors import ResultsError
from bench.schema import SCHEMA_VERSION, TABLES, Metric

T = TypeVar("T")

VERSION_KEY = b"dpbench_schema_version"
TABLE_KEY = b"dpbench_table"
METRICS_KEY = b"dpbench_metrics"
TABLES_WITH_METRICS = ("samples", "estimates")
KEYS = ("run_id", "case_id", "launch")

_ARROW: Mapping[type, Any] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Type of one field: `item`, perhaps many of them (a tuple), perhaps null."""

    item: type
    many: bool = False
    optional: bool = False

    @property
    def arrow(self) -> Any:
        """The pyarrow type."""
        item = pa.struct(_fields(self.item)) if is_dataclass(self.item) else _ARROW[self.item]
        return pa.list_(item) if self.many else item


@functools.cache
def kinds(row_type: type) -> Mapping[str, Kind]:
    """The type of each field of a dataclass, in order; TypeError for one that parquet columns cannot hold."""
    hints = get_type_hints(row_type)
    return {item.name: _kind(hints[item.name]) for item in fields(row_type)}


def _kind(annotation: Any) -> Kind:
    optional = False
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [item for item in get_args(annotation) if item is not type(None)]
        if len(rest) != 1:
            raise TypeError(f"{annotation} is more than one type; a column has one")
        annotation, optional = rest[0], True
    if get_origin(annotation) is tuple:
        return Kind(item=get_args(annotation)[0], many=True, optional=optional)
    if annotation not in _ARROW and not is_dataclass(annotation):
        raise TypeError(f"no column type for {annotation}")
    return Kind(item=annotation, optional=optional)


def _fields(row_type: type) -> list[Any]:
    of = kinds(row_type)
    columns = []
    for item in fields(row_type):
        kind = of[item.name]
        metadata = {key: str(item.metadata[key]) for key in ("unit", "meaning") if key in item.metadata}
        columns.append(pa.field(item.name, kind.arrow, nullable=kind.optional, metadata=metadata))
    return columns


def arrow_schema(table: str, metrics: Sequence[Metric] = ()) -> Any:
    """The pyarrow schema of a table of `bench.schema.TABLES`, with units, meanings and version as metadata."""
    metadata = {VERSION_KEY: str(SCHEMA_VERSION).encode(), TABLE_KEY: table.encode()}
    if table in TABLES_WITH_METRICS:
        names = [item.name for item in fields(Metric)]
        listed = [{name: getattr(metric, name) for name in names} for metric in metrics]
        metadata[METRICS_KEY] = json.dumps(listed).encode()
    columns = sorted(_fields(TABLES[table]), key=lambda field: field.name not in KEYS)  # what joins tables, first
    return pa.schema(columns, metadata=metadata)


def arrow_table(table: str, rows: Iterable[object], *, metrics: Sequence[Metric] = (), file: Path) -> Any:
    """Rows (dataclasses of that table) as a pyarrow table.

    ResultsError names the file and the field where a value has not the declared type.
    """
    row_type = TABLES[table]
    plain = [_plain(row_type, row, table, file) for row in rows]
    try:
        return pa.Table.from_pylist(plain, schema=arrow_schema(table, metrics))
    except (pa.ArrowException, OverflowError) as error:
        raise ResultsError(f"{file}: table {table} cannot hold these rows: {error}") from error


def _plain(row_type: type, row: object, where: str, file: Path) -> dict[str, object]:
    if not isinstance(row, row_type):
        raise ResultsError(f"{file}: {where} must be a {row_type.__name__}, not {type(row).__name__}")
    return {name: _field(kind, getattr(row, name), f"{where}.{name}", file) for name, kind in kinds(row_type).items()}


def _field(kind: Kind, value: object, where: str, file: Path) -> object:
    if value is None and kind.optional:
        return None
    if not kind.many:
        return _item(kind.item, value, where, file)
    if not isinstance(value, (tuple, list)):
        raise _wrong(where, f"a tuple of {kind.item.__name__}", value, file)
    return [_item(kind.item, item, f"{where}[{index}]", file) for index, item in enumerate(value)]


def _item(wanted: type, value: object, where: str, file: Path) -> object:
    if is_dataclass(wanted):
        return _plain(wanted, value, where, file)
    if wanted is bool or isinstance(value, bool):
        fits = wanted is bool and isinstance(value, bool)
    else:
        fits = isinstance(value, (int, float) if wanted is float else wanted)
    if not fits:
        raise _wrong(where, wanted.__name__, value, file)
    if isinstance(value, datetime) and value.tzinfo is None:
        raise _wrong(where, "a time with its zone (UTC)", value, file)
    if isinstance(value, str):
        # Undecodable bytes of a command line arrive as lone surrogates, which UTF-8 cannot hold.
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _wrong(where: str, wanted: str, value: object, file: Path) -> ResultsError:
    return ResultsError(f"{file}: {where} must be {wanted}, got {value!r} ({type(value).__name__})")


def from_row(row_type: type[T], row: Mapping[str, Any]) -> T:
    """A dataclass from a row as pyarrow gives it.

    A column that the row lacks (an older layout) is null: None, or () for a tuple, also
    where the class allows no None.
    """
    values: dict[str, Any] = {}
    columns: type = row_type  # mypy takes no type[T] as a key of the cache
    for name, kind in kinds(columns).items():
        value = row.get(name)
        if kind.many:
            values[name] = tuple(_from_item(kind.item, item) for item in (() if value is None else value))
        else:
            values[name] = None if value is None else _from_item(kind.item, value)
    return row_type(**values)


def _from_item(wanted: type, value: Any) -> Any:
    if is_dataclass(wanted):
        return from_row(wanted, value)
    return value.astimezone(timezone.utc) if isinstance(value, datetime) else value
