"""A report as plain JSON data, for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from eaco_telemetry.booking.sentences import sentences

if TYPE_CHECKING:
    from eaco_telemetry.booking.idle import IdlePower
    from eaco_telemetry.booking.report import Amount, EnergyReport, JobEnergy, NodeGrounds

SCHEMA: Final = "eaco.energy/1"


def document(report: EnergyReport) -> dict[str, Any]:
    """Give a report as plain JSON data (`eaco.energy/1`)."""
    return {
        "schema": SCHEMA,
        "rule": report.rule,
        "simulated": report.simulated,
        "from_ns": report.window[0],
        "to_ns": report.window[1],
        "jobs": [_job(job) for job in report.jobs],
        "users": [
            {
                "user": user.user,
                "jobs": user.jobs,
                **_amount(user.amount, is_known=user.is_measured),
                "gpu_s": user.gpu_s,
                "covered_ratio": user.covered_ratio,
            }
            for user in report.users
        ],
        "parts": {
            "jobs": _amount(report.of_jobs, is_known=report.has_measured_jobs),
            "idle": _amount(report.idle, is_known=report.is_measured),
            "unattributed": _amount(report.unattributed, is_known=report.is_measured),
        },
        "total": _amount(report.total, is_known=report.is_measured),
        "difference_j": report.difference_j if report.is_measured else None,
        "active_split_j": dict(sorted(report.active_j.items())),
        "nodes": [_node(node) for node in report.nodes],
        "notes": sentences(report),
    }


def _amount(amount: Amount, *, is_known: bool) -> dict[str, Any]:
    """Give an amount; what nobody measured is null, never 0."""
    if not is_known:
        return dict.fromkeys(("energy_j", "energy_kwh", "cost", "co2_g"))
    return {
        "energy_j": amount.energy_j,
        "energy_kwh": amount.energy_kwh,
        "cost": amount.cost,
        "co2_g": amount.co2_g,
    }


def _job(job: JobEnergy) -> dict[str, Any]:
    return {
        "job": job.job_id,
        "user": job.user,
        **_amount(job.amount, is_known=job.is_measured),
        "mean_w": job.mean_w,
        "held_s": job.held_s,
        "gpu_s": job.gpu_s,
        "covered_ratio": job.covered_ratio,
    }


def _node(node: NodeGrounds) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "simulated": node.simulated,
        "from_ns": node.from_ns,
        "to_ns": node.to_ns,
        "gpus": node.gpus,
        "energy_j": node.energy_j if node.is_measured else None,
        "gpu_j": node.gpu_j if node.gpu_covered_ratio else None,
        "server_j": node.server_j if node.server_covered_ratio else None,
        "server_source": node.server_source,
        "gpu_covered_ratio": node.gpu_covered_ratio,
        "server_covered_ratio": node.server_covered_ratio,
        "gpu_idle_w": {gpu_id: _idle(idle) for gpu_id, idle in sorted(node.gpu_idle.items())},
        "server_idle_w": None if node.server_idle is None else _idle(node.server_idle),
        "bridged_s": node.bridged_s,
        "rebases": node.rebases,
    }


def _idle(idle: IdlePower) -> dict[str, Any]:
    return {"watts": None if idle.source == "none" else idle.watts, "source": idle.source}
