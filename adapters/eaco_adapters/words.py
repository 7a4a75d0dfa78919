"""How numbers of things are written for people."""

from __future__ import annotations


def counted(number: int, thing: str, plural: str | None = None) -> str:
    """Write a number of things: "1 job", "12,000 jobs", "2 entries" (with `plural`)."""
    return f"{number:,} {thing if number == 1 else plural or f'{thing}s'}"
