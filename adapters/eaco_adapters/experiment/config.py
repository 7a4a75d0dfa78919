"""What can be chosen in an experiment, with the defaults of `eaco simulate`."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import attrs
from attrs import field, frozen
from attrs.validators import optional

from eaco_adapters.traces import WorkloadSettings
from eaco_core import _validate as check
from eaco_core.errors import InputError
from eaco_core.policies import policy_named
from eaco_core.rules import GIB, Rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RuleValue: TypeAlias = float | int | str | bool

KNOWN_GPU_MEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "a100": 40 * GIB,
        "h100": 80 * GIB,
        "k80": 12 * GIB,
        "p100": 16 * GIB,
        "t4": 16 * GIB,
        "v100": 16 * GIB,
    }
)
"""Memory of one GPU by type, from NVIDIA's data sheets (of several sizes the smallest;
k80: one of the two GPUs of a board)."""

HISTORY_WORDS = frozenset({"none", "paper", "truth"})
"""Sources of observations that are no file."""

MOST_GPUS = 1_000_000
MOST_EPOCHS = 10_000_000
"""Of all jobs of a trace together: each is one event, and ten million take minutes."""


def _fixed(values: Mapping[str, RuleValue]) -> Mapping[str, RuleValue]:
    return MappingProxyType(dict(values))


def _no_rules() -> Mapping[str, RuleValue]:
    return {}


def _names(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@frozen(hash=False)
class ExperimentConfig:
    """The choices of one experiment. Names end in their unit; `docs/simulate.md` explains them.

    `trace` None = the built-in workload (`jobs`, `job_gpus`, `epochs_min`, `epochs_max`,
    `load_ratio`). `deadlines` None = those of the trace, or by `DeadlineRule` where it has
    none; else as `parse_deadlines` reads it, in place of the trace's. `rules` override
    those of every policy. `gpu_mem_bytes` None = what is known of the GPU type.
    Raises InputError for values that cannot be.
    """

    trace: str | None = None
    profiles: str = "paper"
    gpu_type: str = "v100"
    policies: tuple[str, ...] = field(default=("fifo", "eaco-paper", "eaco"), converter=_names)
    nodes: int = field(default=28, validator=check.count)
    gpus_per_node: int = field(default=8, validator=check.count)
    gpu_mem_bytes: int | None = field(default=None, validator=optional(check.positive))
    seed: int = field(default=0, validator=check.not_negative)
    deadlines: str | None = None
    history: str = "none"
    interference_ratio: float = field(default=1.035, validator=check.positive)
    rules: Mapping[str, RuleValue] = field(factory=_no_rules, converter=_fixed)
    no_sleep: tuple[str, ...] = field(default=(), converter=_names)
    power_model: Literal["default", "none"] = "default"
    idle_w: float | None = field(default=None, validator=optional(check.not_negative))
    sleep_w: float = field(default=15.0, validator=check.not_negative)
    wake_s: float = field(default=60.0, validator=check.not_negative)
    assume_gpu_util_ratio: float | None = field(default=None, validator=optional(check.ratio))
    jobs: int = field(default=400, validator=check.count)
    job_gpus: int = field(default=8, validator=check.count)
    epochs_min: int = field(default=10, validator=check.count)
    epochs_max: int = field(default=90, validator=check.count)
    load_ratio: float = field(default=0.8, validator=check.positive)
    start_s: float = field(default=10.0, validator=check.not_negative)
    restart_s: float = field(default=30.0, validator=check.not_negative)
    checkpoint_s: float = field(default=10.0, validator=check.not_negative)
    noise_sigma: float = field(default=0.0, validator=check.not_negative)
    node_mtbf_s: float | None = field(default=None, validator=optional(check.positive))
    gpu_mtbf_s: float | None = field(default=None, validator=optional(check.positive))
    repair_s: float = field(default=3600.0, validator=check.positive)

    def __attrs_post_init__(self) -> None:
        if not self.policies:
            raise InputError("name at least one policy")
        for name in self.policies:
            policy_named(name)
            if self.policies.count(name) > 1:
                raise InputError(f"policy {name!r} is named twice")
            self.rules_of(name)
        for name in self.no_sleep:
            if name not in self.policies:
                raise InputError(
                    f"no sleep was asked for policy {name!r}, which does not run here;"
                    f" these do: {', '.join(self.policies)}"
                )
        if self.nodes * self.gpus_per_node > MOST_GPUS:
            raise InputError(
                f"{self.nodes} nodes of {self.gpus_per_node} GPUs are more than the"
                f" {MOST_GPUS:,} GPUs that can be simulated"
            )
        _ = self.workload

    @property
    def workload(self) -> WorkloadSettings:
        """The settings of the built-in workload."""
        return WorkloadSettings(
            jobs=self.jobs,
            gpus=((self.job_gpus, 1.0),),
            epochs_min=self.epochs_min,
            epochs_max=self.epochs_max,
            load_ratio=self.load_ratio,
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
        )

    def rules_of(self, policy: str) -> Rules:
        """Give the rules under which `policy` runs: its own, with the overrides."""
        known = {one.name for one in attrs.fields(Rules)}
        for name in self.rules:
            if name not in known:
                raise InputError(f"there is no rule {name!r}; known are {', '.join(sorted(known))}")
        changes: dict[str, Any] = dict(self.rules)
        if policy in self.no_sleep:
            changes["sleep"] = False
        return attrs.evolve(policy_named(policy).rules, **changes)

    def mem_bytes(self) -> int | None:
        """Give the memory of each GPU; None = not known for this type."""
        if self.gpu_mem_bytes is not None:
            return self.gpu_mem_bytes
        return KNOWN_GPU_MEM_BYTES.get(self.gpu_type)

    def input_files(self) -> dict[str, str]:
        """Give the files that are read, by option; words like `paper` are none."""
        files: dict[str, str] = {} if self.trace is None else {"trace": self.trace}
        if self.profiles != "paper":
            files["profiles"] = self.profiles
        if self.history not in HISTORY_WORDS:
            files["history"] = self.history
        return files

    def to_json(self) -> dict[str, object]:
        """Give every choice as plain JSON data, in the order of the fields."""
        return {one.name: plain(getattr(self, one.name)) for one in attrs.fields(type(self))}


def plain(value: object) -> object:
    """Turn a choice into plain JSON data; infinity becomes the text "inf"."""
    if isinstance(value, tuple):
        return [plain(part) for part in cast("tuple[object, ...]", value)]
    if isinstance(value, MappingProxyType):
        mapping = cast("Mapping[str, object]", value)
        return {name: plain(mapping[name]) for name in sorted(mapping)}
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value
