"""What the figures of a report stand on, in sentences for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eaco_telemetry.booking.report import EnergyReport, JobEnergy, NodeGrounds

_RULES: Final = {
    "default": "idle power of a GPU equally, active power by share of the SMs, else by"
    " utilisation alone, else equally",
    "sm": "all power of a GPU by share of the SMs, else equally",
    "time": "all power of a GPU by the time held while it is held without a break",
    "equal": "all power of a GPU equally",
}
_SERVERS: Final = {
    "meter": "the server part is what the meter of the node shows above its GPUs",
    "platform": "the server part is what the processor reports for the board (RAPL psys)",
    "package": "the server part is processors and memory (RAPL); fans, disks and the power"
    " supply are not in it",
    "given": "the server part is the constant power that was given",
    "none": "the server part was not measured; only GPUs are accounted for",
}
_SOURCES: Final = {
    "sm": "by share of the SMs",
    "solo": "by utilisation alone",
    "equal": "equally",
    "time": "by time held",
    "mig": "by memory of MIG instances",
}
_WHOLE: Final = 0.9995
_NAMED: Final = 3


def sentences(report: EnergyReport) -> list[str]:
    """Say by which rule, from what, and how completely a report was made."""
    said = [f"Rule {report.rule}: {_RULES[report.rule]}."]
    if report.simulated:
        said.insert(0, "SIMULATED: these samples were made up, nothing was measured.")
    said += _split(report)
    if not report.is_measured:
        said.append(
            "Nothing was measured in this time: no energy counter was read twice, and no power"
            " that counts for a time; so no energy is known, which is not 0 J."
        )
    for node in report.nodes:
        said += [f"{node.node_id}: {text}." for text in _node(node)]
    said += _uncovered(report.jobs)
    said += [f"{note}." for note in report.notes]
    return said


def _uncovered(jobs: Sequence[JobEnergy]) -> Iterator[str]:
    dark = [job for job in jobs if not job.is_measured]
    if dark:
        yield (
            f"Nothing was measured of {len(dark)} of {len(jobs)} jobs ({_named(dark)}); their"
            " energy is not known."
        )
    thin = [
        job
        for job in jobs
        if job.is_measured and job.covered_ratio is not None and job.covered_ratio < _WHOLE
    ]
    if thin:
        yield (
            f"Not all the time of {len(thin)} of {len(jobs)} jobs was measured"
            f" ({_named(thin)}); their energy is that of the time that was."
        )
    over = [job for job in jobs if (job.covered_ratio or 0.0) > 1.0]
    if over:
        yield (
            f"More time of {len(over)} of {len(jobs)} jobs was measured than they held GPUs"
            f" ({_named(over)}); a GPU of theirs may be recorded twice."
        )


def _named(jobs: Sequence[JobEnergy]) -> str:
    return ", ".join(job.job_id for job in jobs[:_NAMED]) + (", ..." if jobs[_NAMED:] else "")


def _split(report: EnergyReport) -> Iterator[str]:
    shared = {source: joules for source, joules in report.active_j.items() if source != "alone"}
    total = sum(shared.values())
    if total:
        parts = ", ".join(
            f"{_SOURCES[source]} {joules / total:.0%}"
            for source, joules in sorted(shared.items(), key=lambda one: -one[1])
            if joules
        )
        yield f"Active energy of shared GPUs was split {parts}."


def _node(node: NodeGrounds) -> Iterator[str]:
    yield _SERVERS[node.server_source]
    if node.server_covered_ratio is not None and node.server_covered_ratio < _WHOLE:
        yield f"the server part was measured in {node.server_covered_ratio:.1%} of the time"
    if node.gpus and node.gpu_covered_ratio < _WHOLE:
        yield f"the GPUs were measured in {node.gpu_covered_ratio:.1%} of the time"
    yield from _gpu_idle(node)
    idle = node.server_idle
    if idle is not None and node.server_source != "given":
        if idle.source == "none":
            yield (
                "idle power of the server is not known (it always had jobs), so all of its"
                " energy counts as dynamic; --server-idle-w says it"
            )
        else:
            yield f"idle power of the server {idle.watts:.1f} W ({idle.source})"
    if node.bridged_s:
        yield (
            f"energy counters bridged {node.bridged_s:.0f} s without samples; their energy is"
            " spread evenly over these"
        )
    if node.rebases:
        yield f"{node.rebases} times a counter went back and was started anew"


def _gpu_idle(node: NodeGrounds) -> Iterator[str]:
    known = [idle for idle in node.gpu_idle.values() if idle.source != "none"]
    unknown = sorted(gpu for gpu, idle in node.gpu_idle.items() if idle.source == "none")
    if known:
        low, high = min(idle.watts for idle in known), max(idle.watts for idle in known)
        watts = f"{low:.1f} W" if low == high else f"{low:.1f} to {high:.1f} W"
        how = "given" if known[0].source == "given" else "measured while nobody held them"
        yield f"idle power of {_gpus(len(known))}: {watts} ({how})"
    if unknown:
        yield (
            f"idle power of {_gpus(len(unknown))} is not known (they were never seen without a"
            " job), so all of their energy counts as active; --gpu-idle-w says it"
        )


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
