"""`eaco simulate`: a job trace on a simulated cluster, under one or more policies."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from eaco_adapters.cli import _output
from eaco_adapters.cli._option_types import count_range, file_name, names, number
from eaco_adapters.cli._simulation_tables import print_tables
from eaco_adapters.experiment import ExperimentConfig, prepare, run_experiment
from eaco_core.errors import InputError
from eaco_core.policies import POLICIES
from eaco_core.rules import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eaco_adapters.experiment import ExperimentResult

    F = TypeVar("F", bound=Callable[..., Any])

_DEFAULT = ExperimentConfig()
_COUNT = click.IntRange(min=1, max=1_000_000)
_RATIO = number(0.0, 1.0)
_SECONDS = number()
_LIFETIME = number(above=True)

# Options that are parameters of the rules: given, they override those of every policy.
_RULES = {
    "explore": "explore",
    "alpha": "alpha",
    "order": "order",
    "util_threshold": "util_threshold_ratio",
    "mem_threshold": "mem_busy_threshold_ratio",
    "max_degree": "max_degree",
    "max_wait_s": "starvation_s",
    "late_jobs": "late_jobs",
}
_BUILT_IN_ONLY = ("jobs", "job_gpus", "epochs", "load")

_EXAMPLES = """\
\b
Examples:
  eaco simulate
  eaco simulate --policy fifo,eaco --seed 1 --interference 1.4 --deadlines 1h:1.3,2,10
  eaco simulate --trace jobs.csv --nodes 4 --output result.json --events history.jsonl
"""


def _grouped(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Put several options on a command, in the order of `--help`."""

    def put(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return put


_input_options = _grouped(
    click.option(
        "--trace",
        type=file_name,
        metavar="FILE",
        help="Job trace: Gavel, Philly, or our own CSV or JSON Lines (docs/formats.md)."
        "  [default: a generated workload]",
    ),
    click.option(
        "--profiles",
        type=file_name,
        metavar="paper|FILE",
        default=_DEFAULT.profiles,
        show_default=True,
        help="What workloads do alone and together: the EaCO paper's tables, Gavel's throughputs"
        " or our own format.",
    ),
    click.option(
        "--gpu-type",
        metavar="TYPE",
        default=_DEFAULT.gpu_type,
        show_default=True,
        help="Type of all GPUs; the profiles must know it.",
    ),
    click.option(
        "--deadlines",
        metavar="none|BASE:M,...",
        help="Deadline = arrival + BASE + one of the multiples of the solo run time, by the seed;"
        " replaces those of the trace.  [default: the trace's own, else 24h:1.2,2,10]",
    ),
    click.option(
        "--history",
        type=file_name,
        metavar="none|paper|truth|FILE",
        default=_DEFAULT.history,
        show_default=True,
        help="Observations that the policies start with: the paper's six sets, all that is"
        " measured in the profiles, or a file of profiles or history.",
    ),
    click.option("--jobs", type=_COUNT, default=_DEFAULT.jobs, show_default=True,
                 help="Generated workload: number of jobs."),
    click.option("--job-gpus", type=_COUNT, default=_DEFAULT.job_gpus, show_default=True,
                 help="Generated workload: GPUs of every job."),
    click.option(
        "--epochs",
        type=count_range,
        metavar="A..B",
        default=f"{_DEFAULT.epochs_min}..{_DEFAULT.epochs_max}",
        show_default=True,
        help="Generated workload: epochs of a job, uniform.",
    ),
    click.option(
        "--load",
        type=number(above=True),
        default=_DEFAULT.load_ratio,
        show_default=True,
        help="Generated workload: share of the cluster that its jobs need, each alone.",
    ),
)  # fmt: skip

_cluster_options = _grouped(
    click.option("--nodes", type=_COUNT, default=_DEFAULT.nodes, show_default=True,
                 help="Number of nodes."),
    click.option("--gpus-per-node", type=_COUNT, default=_DEFAULT.gpus_per_node,
                 show_default=True, help="GPUs of each node."),
    click.option("--gpu-mem-gib", type=number(1e-3, 1e6), metavar="GIB",
                 help="Memory of each GPU.  [default: what is known of the type]"),
    click.option("--seed", type=click.IntRange(min=0), default=_DEFAULT.seed, show_default=True,
                 help="Seed of all chance: workload, deadlines, noise, faults."),
    click.option(
        "--interference",
        type=number(1.0, 1e6),
        default=_DEFAULT.interference_ratio,
        show_default=True,
        help="Factor on the true slowdown of sets that nobody measured.",
    ),
    click.option("--noise", type=number(0.0, 10.0), default=_DEFAULT.noise_sigma,
                 show_default=True, metavar="SIGMA",
                 help="Spread of the logarithm of epoch times."),
    click.option("--start-s", type=_SECONDS, default=_DEFAULT.start_s, show_default=True,
                 help="Time from the command until a job computes."),
    click.option("--restart-s", type=_SECONDS, default=_DEFAULT.restart_s, show_default=True,
                 help="The same, from a checkpoint."),
    click.option("--checkpoint-s", type=_SECONDS, default=_DEFAULT.checkpoint_s,
                 show_default=True, help="Time to write a checkpoint and leave."),
    click.option("--node-mtbf-s", "--node-mtbf", type=_LIFETIME,
                 help="Mean time between failures of a node.  [default: never]"),
    click.option("--gpu-mtbf-s", "--gpu-mtbf", type=_LIFETIME,
                 help="Mean time between failures of a GPU.  [default: never]"),
    click.option("--repair-s", type=_LIFETIME, default=_DEFAULT.repair_s, show_default=True,
                 help="Time until a lost node, or one with a broken GPU, is back."),
)  # fmt: skip

_power_options = _grouped(
    click.option("--no-sleep", type=names, metavar="POLICY,...",
                 help="Policies whose nodes are always awake."),
    click.option("--power-model", type=click.Choice(["default", "none"]),
                 default=_DEFAULT.power_model, show_default=True,
                 help="The fitted 8 x V100 server, or none: then no energy is known."),
    click.option("--idle-w", type=_SECONDS, metavar="W",
                 help="Power of an idle node.  [default: that of the power model]"),
    click.option("--sleep-w", type=_SECONDS, metavar="W", default=_DEFAULT.sleep_w,
                 show_default=True, help="Power of a node asleep."),
    click.option("--wake-s", type=_SECONDS, default=_DEFAULT.wake_s, show_default=True,
                 help="Time to wake a node."),
    click.option("--assume-gpu-util", type=_RATIO, metavar="RATIO",
                 help="GPU utilisation of workloads whose profiles have none."),
)  # fmt: skip

_policy_options = _grouped(
    click.option(
        "--policy",
        "policies",
        type=names,
        metavar="A,B,...",
        default=",".join(_DEFAULT.policies),
        show_default=True,
        help=f"Policies to compare, of: {', '.join(POLICIES)}.",
    ),
    click.option("--explore", is_flag=True,
                 help="Try sets about which nothing is known, one at a time (R5)."),
    click.option("--order", type=click.Choice(["utilisation", "objective"]),
                 help="Order in which shared sets are tried (R4)."),
    click.option("--alpha", type=_RATIO,
                 help="Weight of energy against slowdown, with --order objective (R4)."),
    click.option("--util-threshold", type=number(), metavar="RATIO",
                 help="GPUs at least this busy are not shared (R2)."),
    click.option("--mem-threshold", type=number(), metavar="RATIO",
                 help="GPUs whose memory is at least this busy are not shared (R2)."),
    click.option("--max-degree", type=_COUNT, help="Most jobs on one GPU (R2)."),
    click.option("--max-wait-s", type=number(inf=True), metavar="S|inf",
                 help="A job that waited longer gets a reservation (R11)."),
    click.option("--late-jobs", type=click.Choice(["share", "exclusive", "refuse"]),
                 help="What a job may do that will be late even alone (R8)."),
)  # fmt: skip

_output_options = _grouped(
    click.option("--json", "as_json", is_flag=True,
                 help="Print JSON alone on standard output (docs/simulate.md)."),
    click.option("--output", type=file_name, metavar="FILE",
                 help="Write the JSON to a file as well."),
    click.option("--events", type=file_name, metavar="FILE",
                 help="Write the history of every decision; with several policies one file each,"
                 " the policy's name before the suffix."),
    click.option("--energy-lines/--no-energy-lines", default=True, show_default=True,
                 help="Put the energy of every node and interval into the history."),
)  # fmt: skip


@click.command("simulate", epilog=_EXAMPLES)
@_input_options
@_policy_options
@_cluster_options
@_power_options
@_output_options
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    as_json: bool,
    output: str | None,
    events: str | None,
    energy_lines: bool,
    **options: Any,  # noqa: ANN401 - one value for each option above, typed by click
) -> None:
    """Replay a job trace on a simulated cluster under one or more policies.

    Without arguments: 400 generated jobs on 28 nodes of 8 GPUs, under fifo,
    eaco-paper and eaco. Options marked (R..) are parameters of the rules; given,
    they replace those of every policy.
    """
    _refuse_idle_options(context)
    config = _config(options)
    targets = _history_files(events, config.policies)
    _check_targets(output, targets, config)
    experiment = prepare(config)
    with ExitStack() as files:
        histories = {
            name: _output.writer(files.enter_context(_output.new_file(path)), path)
            for name, path in targets.items()
        }
        report = None if output is None else files.enter_context(_output.new_file(output))
        bar = files.enter_context(_output.progress("simulating"))
        outcome = run_experiment(
            experiment,
            histories=histories,
            energy_lines=energy_lines,
            progress=bar,
        )
        document = outcome.to_json()
        if report is not None:
            report.write(_output.json_text(document))
    _show(outcome, document if as_json else None)


def _show(outcome: ExperimentResult, document: object | None) -> None:
    if document is None:
        print_tables(outcome)
    else:
        _output.print_json(document)


def _config(options: Mapping[str, Any]) -> ExperimentConfig:
    rules = {
        rule: options[option]
        for option, rule in _RULES.items()
        if options[option] is not None and options[option] is not False
    }
    mem_gib = options["gpu_mem_gib"]
    return ExperimentConfig(
        trace=options["trace"],
        profiles=options["profiles"],
        gpu_type=options["gpu_type"],
        policies=options["policies"],
        nodes=options["nodes"],
        gpus_per_node=options["gpus_per_node"],
        gpu_mem_bytes=None if mem_gib is None else round(mem_gib * GIB),
        seed=options["seed"],
        deadlines=options["deadlines"],
        history=options["history"],
        interference_ratio=options["interference"],
        rules=rules,
        no_sleep=options["no_sleep"] or (),
        power_model=options["power_model"],
        idle_w=options["idle_w"],
        sleep_w=options["sleep_w"],
        wake_s=options["wake_s"],
        assume_gpu_util_ratio=options["assume_gpu_util"],
        jobs=options["jobs"],
        job_gpus=options["job_gpus"],
        epochs_min=options["epochs"][0],
        epochs_max=options["epochs"][1],
        load_ratio=options["load"],
        start_s=options["start_s"],
        restart_s=options["restart_s"],
        checkpoint_s=options["checkpoint_s"],
        noise_sigma=options["noise"],
        node_mtbf_s=options["node_mtbf_s"],
        gpu_mtbf_s=options["gpu_mtbf_s"],
        repair_s=options["repair_s"],
    )


def _refuse_idle_options(context: click.Context) -> None:
    """Refuse options that would do nothing: whoever gives one expects something of it."""
    if context.params["trace"] is None:
        return
    for name in _BUILT_IN_ONLY:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is for the generated workload, but --trace is given",
                context,
            )


def _history_files(events: str | None, policies: tuple[str, ...]) -> dict[str, Path]:
    """Give the history file of each policy: `a.jsonl` becomes `a.eaco.jsonl` if there are more."""
    if events is None:
        return {}
    path = Path(events)
    if path.is_dir():
        raise InputError(f"{events} is a folder; name a file in it")
    if len(policies) == 1:
        return {policies[0]: path}
    if _output.is_stream(path):
        raise InputError(
            f"{events} is not a regular file, but each of the {len(policies)} policies writes a"
            " history file of its own; name a file, or run one policy"
        )
    return {name: path.with_name(f"{path.stem}.{name}{path.suffix}") for name in policies}


def _check_targets(
    output: str | None, histories: Mapping[str, Path], config: ExperimentConfig
) -> None:
    """Refuse files that cannot be written, and those that are read, before the work."""
    inputs = {_output.real_path(path) for path in config.input_files().values()}
    targets = [*histories.values(), *([] if output is None else [Path(output)])]
    for target in targets:
        _output.check_writable(target)
        if _output.real_path(target) in inputs:
            raise InputError(f"{target} is an input of this run; name another file to write")
    if len({_output.real_path(target) for target in targets}) < len(targets):
        raise InputError(f"{output} cannot hold both the result and a history; name two files")
