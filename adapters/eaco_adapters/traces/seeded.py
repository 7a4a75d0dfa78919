"""Seeded chance that does not depend on order, platform, process or Python version."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

_BITS = 53
"""As many random bits as a float between 0 and 1 can hold."""


def unit(seed: int, *labels: object) -> float:
    """Give a number in [0, 1) for this seed and these labels, uniform over them."""
    text = "/".join(str(part) for part in (seed, *labels))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    # 0x1p-53 is exact: the top 53 of 64 bits, so the result is never 1.
    return (int.from_bytes(digest, "big") >> (64 - _BITS)) * 2.0**-_BITS


def pick(choices: Sequence[T], seed: int, *labels: object) -> T:
    """Choose one of `choices`, each equally likely."""
    return choices[int(unit(seed, *labels) * len(choices))]
