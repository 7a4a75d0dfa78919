"""Two methods of polars whose signatures name numpy, which a type checker here cannot see."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

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
