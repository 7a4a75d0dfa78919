"""What goes over the wire between `eaco serve` and its clients: JSON, checked while it is parsed.

The forms are msgspec structs; their JSON Schemas make the OpenAPI document. Sizes are bounded, so
that a request costs what it should.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

MAX_BODY_BYTES: Final = 1 << 20

JobId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Letters, digits, `.`, `_` and `-`.",
    ),
]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]
Argument = Annotated[str, Meta(max_length=131_072)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]


class SubmitRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A job to run. Only `command` is needed; what is not said is not known.

    - `job_id`: yours, so that the same request given twice is one job; else the server makes one.
    - `gpus`: how many. `epochs`: how many the job will report; without, it always runs alone.
    - `deadline`: "in 6h", or a time with its zone.
    - `workload`: what the job trains; jobs of one workload are alike for prediction.
    - `mem_bytes`: peak memory on each GPU, if you know it better than the profile does.
    """

    command: Annotated[list[Argument], Meta(min_length=1, max_length=4096)]
    job_id: JobId | None = None
    name: Name | None = None
    cwd: Text | None = None
    env: Annotated[dict[Name, Argument], Meta(max_length=1024)] = {}
    gpus: Annotated[int, Meta(ge=1, le=1024)] = 1
    epochs: Count | None = None
    deadline: Annotated[str, Meta(max_length=64)] | None = None
    workload: Name | None = None
    mem_bytes: Bytes | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    exclusive: bool = False
    share_with: Literal["any", "same_group", "same_user", "none"] = "same_user"
    user: Name | None = None
    group: Name | None = None
    gpu_types: Annotated[list[Name], Meta(min_length=1, max_length=64)] | None = None
    node_selector: Annotated[dict[Name, Name], Meta(max_length=64)] = {}
    checkpoints: Literal["shared", "node", "none"] = "shared"
    max_slowdown_ratio: Annotated[float, Meta(ge=1.0, le=100.0)] | None = None
    max_restarts: Annotated[int, Meta(ge=0, le=1000)] | None = None
    stop_signal: Annotated[str, Meta(pattern="^[A-Z0-9]{1,10}$")] = "USR2"

    def __post_init__(self) -> None:
        """Refuse what Python's `$` lets pass: a line feed at the end."""
        if self.job_id is not None and self.job_id.endswith("\n"):
            raise ValueError("`job_id` ends in a line feed")


class JobView(Struct, kw_only=True):
    """One job as it is now. Times are UTC; what is not known is null."""

    job_id: str
    name: str
    state: str
    command: list[str]
    gpus: int
    submitted: str
    user: str | None = None
    workload: str | None = None
    started: str | None = None
    ended: str | None = None
    deadline: str | None = None
    late: bool | None = None
    attempt: int = 0
    epochs_done: int = 0
    epochs: int | None = None
    gpu_ids: list[str] = []
    sharing_with: list[str] = []
    undos: int = 0
    why: str | None = None
    hint: str | None = None
    exit_code: int | None = None


class JobList(Struct, kw_only=True):
    """Jobs in the order in which they were submitted."""

    jobs: list[JobView]
    total: int


class GpuView(Struct, kw_only=True):
    """One GPU: who holds it, and what was last read from it."""

    gpu_id: str
    gpu_type: str
    up: bool
    jobs: list[str]
    mem_bytes: int | None = None
    util_ratio: float | None = None
    mem_used_bytes: int | None = None
    power_w: float | None = None
    foreign: bool | None = None


class NodeView(Struct, kw_only=True):
    """One node. `simulated`: its GPUs are CPU cores that play GPUs."""

    node_id: str
    state: str
    drained: bool
    simulated: bool
    gpus: list[GpuView]


class NodeList(Struct, kw_only=True):
    """All nodes."""

    nodes: list[NodeView]


class DrainRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Let no new job start on a node, or let them again."""

    drained: bool = True


class Sentence(Struct, kw_only=True):
    """One sentence of the story of a job."""

    t_s: float
    time: str
    text: str


class Story(Struct, kw_only=True):
    """What was decided about a job, and why."""

    job_id: str
    sentences: list[Sentence]


class LogPart(Struct, kw_only=True):
    """A piece of what a job printed; go on at `next_offset`. `ended`: there will be no more."""

    job_id: str
    attempt: int
    text: str
    offset: int
    next_offset: int
    ended: bool


class Status(Struct, kw_only=True):
    """The server itself."""

    name: str
    version: str
    policy: str
    term: int
    now_s: float
    steps: int
    queued: int
    running: int
    ended: int
    faults: int
    last_fault: str | None = None
    journal: str


class Problem(Struct, kw_only=True):
    """Why a request was not done, in one sentence that says what to do."""

    error: str


FORMS: Final[tuple[Any, ...]] = (
    SubmitRequest,
    JobView,
    JobList,
    NodeList,
    DrainRequest,
    Story,
    LogPart,
    Status,
    Problem,
)
