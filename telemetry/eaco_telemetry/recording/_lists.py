"""Columns of lists, to polars and back: many rows at once, each different value only once.

Left to itself, polars goes through such columns row by row in Python, which takes most of the
time of a recording. A list is a tuple here; the records in it are tuples in the order of the
fields.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import polars as pl

from eaco_telemetry.recording._polars import gather, implode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polars._typing import PolarsDataType


def list_series(name: str, dtype: pl.List, rows: Sequence[tuple[Any, ...] | None]) -> pl.Series:
    """Make a column of lists. None is null."""
    different: dict[tuple[Any, ...], int] = {}
    places = [None if row is None else different.setdefault(row, len(different)) for row in rows]
    # Polars has no call for "lists of these lengths": number the items, and group by that.
    filled = [row for row in different if row]
    owners = [number for number, row in enumerate(filled) for _ in row]
    items = _flat(dtype.inner, [item for row in filled for item in row])
    table = pl.DataFrame([pl.Series("owner", owners, dtype=pl.Int64), items])
    lists = implode(table, "owner", "item").cast(dtype)
    lists = lists.append(pl.Series([[]], dtype=dtype))
    # `filled` leaves out the empty list, which stands last now.
    order = {row: number for number, row in enumerate(filled)}
    at = [order.get(row, len(filled)) for row in different]
    wanted = pl.Series([None if one is None else at[one] for one in places], dtype=pl.UInt32)
    return gather(lists, wanted).alias(name)


def list_rows(series: pl.Series) -> list[tuple[Any, ...] | None]:
    """Give what is in a column of lists; null is None. Equal rows are one object."""
    lengths: list[int | None] = series.list.len().to_list()
    items = iter(_items(series.filter(series.list.len() > 0).explode()))
    seen: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    rows: list[tuple[Any, ...] | None] = []
    for length in lengths:
        if length is None:
            rows.append(None)
        else:
            row = tuple(islice(items, length))
            rows.append(seen.setdefault(row, row))
    return rows


def _flat(inner: PolarsDataType, items: Sequence[Any]) -> pl.Series:
    if not isinstance(inner, pl.Struct):
        return pl.Series("item", items, dtype=inner)
    fields = inner.fields
    values = zip(*items, strict=True) if items else iter([()] * len(fields))
    return pl.DataFrame(
        [
            pl.Series(one.name, column, dtype=one.dtype)
            for one, column in zip(fields, values, strict=True)
        ]
    ).to_struct("item")


def _items(series: pl.Series) -> list[Any]:
    if not isinstance(series.dtype, pl.Struct):
        return series.to_list()
    columns = (series.struct.field(one.name).to_list() for one in series.dtype.fields)
    return list(zip(*columns, strict=True))
