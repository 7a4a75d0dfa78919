"""`eaco top --json`: everything that is known, and a reason for everything that is not.

The form is documented in docs/top.md (`eaco.top/1`).
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import fields

from eaco_adapters.cli import _top_cells as cells
from eaco_adapters.cli import _top_snapshot as known
from eaco_adapters.cli._top_snapshot import NO_SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_adapters.cli._top_snapshot import Snapshot
    from eaco_telemetry.samples import GpuSample, HostSample, ProcessSample
    from eaco_telemetry.subscriber.updates import NodeView

SCHEMA: Final = "eaco.top/1"

_NOT_GIVEN: Final = "the sender gave neither a value nor a reason"
_NO_SAMPLE: Final = "no sample came yet"
_LOCAL: Final = "read on this machine, not over a broker"
_REASONS: Final = {
    "parent_id": "it is no part of another GPU",
    "power_kind": "the sender does not say",
    "energy_kind": "the sender does not say",
    "mem_kind": "the sender does not say",
    "pci_bdf": "the sender does not say",
    "name": "the device or process gave no name that can be read",
}


def document(snapshot: Snapshot) -> dict[str, object]:
    """Give a snapshot as plain JSON data."""
    current = snapshot.current
    counts = [count for node in snapshot.nodes if (count := known.gpu_count(node)) is not None]
    sent = [gpu for node in current for gpu in known.whole_gpus(node)]
    found: dict[str, object] = {
        "schema": SCHEMA,
        "taken_at": datetime.fromtimestamp(snapshot.wall_ns / 1e9, UTC).isoformat(),
        "wall_ns": snapshot.wall_ns,
        "source": snapshot.source,
        "broker": snapshot.address,
        "simulated": snapshot.simulated,
        "nodes_known": len(snapshot.nodes),
        "nodes_current": len(current),
        "gpus_known": sum(counts),
        "gpus_power_w": cells.total(known.gpus_power_w(node) for node in current),
        "gpus_with_power": sum(gpu.power_w is not None for gpu in sent),
        "problem": snapshot.problem,
        "silent": [
            {"site": site or None, "node_id": node_id, "reason": why}
            for (site, node_id), why in snapshot.silent.items()
        ],
        "notes": list(snapshot.notes),
        "nodes": [_node(node, snapshot) for node in snapshot.nodes],
    }
    reasons = {
        "broker": _LOCAL,
        "gpus_power_w": "no GPU of a node that sends gives its power",
        "problem": "there is none",
    }
    return _explained(found, reasons)


def _node(node: NodeView, snapshot: Snapshot) -> dict[str, object]:
    sample, meta = node.sample, node.meta
    found: dict[str, object] = {
        "site": node.site or None,
        "node_id": node.node_id,
        "state": node.word,
        "state_text": known.condition(node),
        "current": known.is_current(node),
        "age_s": node.age_s,
        "rate_hz": node.rate_hz,
        "period_s": None if meta is None else meta.period_s,
        "simulated": known.is_simulated(node),
        "session_id": node.session_id,
        "seq": None if sample is None else sample.seq,
        "wall_ns": None if sample is None else sample.wall_ns,
        "agent": None if meta is None else meta.agent,
        "readers": None if meta is None else list(meta.readers),
        "gpus_power_w": known.gpus_power_w(node),
        "gaps": node.gaps,
        "missing_samples": node.missing_samples,
        "duplicates": node.duplicates,
        "reordered": node.reordered,
        "events": node.events,
        "problems": {} if sample is None else dict(sample.problems),
        "host": None if sample is None or sample.host is None else _measured(sample.host),
        "gpus": [_gpu(gpu, snapshot) for gpu in known.gpus(node)],
    }
    no_meta = "no meta of this node came"
    reasons = {
        "site": _LOCAL,
        "age_s": _NO_SAMPLE,
        "rate_hz": "too few samples came to tell",
        "period_s": no_meta,
        "agent": no_meta,
        "readers": no_meta,
        "session_id": "the node did not say",
        "seq": _NO_SAMPLE,
        "wall_ns": _NO_SAMPLE,
        "gpus_power_w": "no GPU gives its power" if sample is not None else _NO_SAMPLE,
        "host": "no reader for the host runs there" if sample is not None else _NO_SAMPLE,
    }
    return _explained(found, reasons)


def _gpu(gpu: GpuSample, snapshot: Snapshot) -> dict[str, object]:
    found = _measured(gpu)
    if gpu.processes is not None:
        found["processes"] = [_process(one) for one in gpu.processes]
    missing = cast("dict[str, str]", found["missing"])
    if snapshot.jobs is None:
        found["jobs"] = None
        missing["jobs"] = NO_SCHEDULER
    else:
        found["jobs"] = list(snapshot.jobs.get(gpu.gpu_id, ()))
    return found


def _process(process: ProcessSample) -> dict[str, object]:
    found: dict[str, object] = {
        "pid": process.pid,
        "name": process.name,
        "sm_ratio": process.sm_ratio,
        "mem_used_bytes": process.mem_used_bytes,
    }
    why = "the device does not say for this process"
    return _explained(found, {"sm_ratio": why, "mem_used_bytes": why})


def _measured(sample: GpuSample | HostSample) -> dict[str, object]:
    """Give all fields of a GPU or host under their own names."""
    found: dict[str, object] = {
        one.name: _plain(getattr(sample, one.name))
        for one in fields(type(sample))
        if one.name != "missing"
    }
    return _explained(found, sample.missing)


def _explained(found: dict[str, object], reasons: Mapping[str, str]) -> dict[str, object]:
    """Add `missing`: for each value that is null, why."""
    missing = {
        name: reasons.get(name) or _REASONS.get(name, _NOT_GIVEN)
        for name, value in found.items()
        if value is None
    }
    return {**found, "missing": missing}


def _plain(value: Any) -> Any:  # noqa: ANN401 - any field of a sample
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return list(cast("tuple[object, ...]", value))
    return value
