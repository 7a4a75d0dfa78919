"""Policies: who runs where. `POLICIES` has one of each by name."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from eaco_core.errors import InputError
from eaco_core.policies.base import Action, Place, Policy, Preempt, Reserve, Wait
from eaco_core.policies.eaco import Eaco
from eaco_core.policies.eaco_paper import EacoPaper
from eaco_core.policies.fifo import Fifo, FifoSkip

if TYPE_CHECKING:
    from collections.abc import Mapping

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {policy.name: policy for policy in (Fifo(), FifoSkip(), EacoPaper(), Eaco())}
)


def policy_named(name: str) -> Policy:
    """Give the policy of this name. Raises InputError with the known names."""
    try:
        return POLICIES[name]
    except KeyError:
        known = ", ".join(POLICIES)
        raise InputError(f"there is no policy {name!r}; known are {known}") from None


__all__ = [
    "POLICIES",
    "Action",
    "Eaco",
    "EacoPaper",
    "Fifo",
    "FifoSkip",
    "Place",
    "Policy",
    "Preempt",
    "Reserve",
    "Wait",
    "policy_named",
]
