"""Methods of polars whose signatures name numpy, which a type checker here cannot see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import polars as pl


def select(rows: pl.LazyFrame, columns: Iterable[pl.Expr]) -> pl.LazyFrame:
    """Give these columns."""
    method = cast("Callable[[Iterable[pl.Expr]], pl.LazyFrame]", rows.select)  # pyright: ignore[reportUnknownMemberType] - see above
    return method(columns)


def keep(rows: pl.LazyFrame, condition: pl.Expr) -> pl.LazyFrame:
    """Give the rows for which a condition holds."""
    method = cast("Callable[[pl.Expr], pl.LazyFrame]", rows.filter)  # pyright: ignore[reportUnknownMemberType] - see above
    return method(condition)


def gather(series: pl.Series, places: pl.Series) -> pl.Series:
    """Give the values at these places; null for null."""
    method = cast("Callable[[pl.Series], pl.Series]", series.gather)  # pyright: ignore[reportUnknownMemberType] - see above
    return method(places)


def implode(table: pl.DataFrame, owner: str, item: str) -> pl.Series:
    """Give for each owner, in their order, the list of its items."""
    groups: Any = table.group_by(owner, maintain_order=True)  # pyright: ignore[reportUnknownMemberType] - see above
    lists: pl.Series = groups.agg(item)[item]
    return lists
