"""Seeded chance that does not depend on the order in which it is asked."""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist
from typing import Final

_NORMAL: Final = NormalDist()
_BITS: Final = 53


def uniform(seed: int, *names: str | int) -> float:
    """Give a number strictly between 0 and 1 that belongs to these names and this seed."""
    text = "\x1f".join(str(name) for name in (seed, *names))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    drawn = int.from_bytes(digest, "big") >> (64 - _BITS)
    return (drawn + 0.5) / 2.0**_BITS


def spread_ratio(sigma: float, seed: int, *names: str | int) -> float:
    """Give a factor around 1: log-normal, with mean 1 and `sigma` of its logarithm."""
    return math.exp(sigma * _NORMAL.inv_cdf(uniform(seed, *names)) - sigma * sigma / 2.0)


def lifetime_s(mean_s: float, seed: int, *names: str | int) -> float:
    """Give a time until failure: exponential, with mean `mean_s`."""
    return -mean_s * math.log(uniform(seed, *names))
