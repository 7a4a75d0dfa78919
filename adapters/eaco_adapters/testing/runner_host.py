"""A node runner as a process of its own, for tests that kill it.

`python -m eaco_adapters.testing.runner_host ROOT GPU...` reads one JSON command a line from its
input and writes one JSON object a line: answers (with the command's `id`) and reports.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from eaco_adapters.launch import launch_from_dict
from eaco_adapters.node import NodeRunner, RunnerOptions


async def _carry_out(runner: NodeRunner, data: dict[str, Any]) -> Any:  # noqa: ANN401 - plain JSON data
    job_id, attempt = data.get("job_id", ""), data.get("attempt", 0)
    term = data.get("term", 1)
    if data["do"] == "start":
        await runner.start(
            job_id,
            attempt,
            term,
            gpus=tuple(data["gpus"]),
            resume_epoch=data.get("resume_epoch", 0),
            launch=launch_from_dict(data["launch"]),
        )
    elif data["do"] == "stop":
        await runner.request_stop(job_id, attempt, term)
    elif data["do"] == "kill":
        await runner.kill(job_id, attempt, term, grace_s=data.get("grace_s", 0.5))
    elif data["do"] == "forget":
        await runner.forget(job_id, attempt)
    else:
        return [list(item) for item in await runner.list_running()]
    return None


def _say(**data: Any) -> None:  # noqa: ANN401 - plain JSON data
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


async def _answer(runner: NodeRunner, data: dict[str, Any]) -> None:
    try:
        result = await _carry_out(runner, data)
    except Exception as error:  # noqa: BLE001 - the test must see it
        _say(id=data["id"], error=f"{type(error).__name__}: {error}")
    else:
        _say(id=data["id"], result=result)


async def _tell(runner: NodeRunner) -> None:
    async for report in runner.reports():
        _say(
            event=type(report.event).__name__,
            job_id=report.job_id,
            attempt=report.attempt,
            seq=report.seq,
            age_s=report.age_s,
            detail=repr(report.event),
        )


async def _main(root: Path, gpus: list[str]) -> None:
    options = RunnerOptions(poll_s=0.05, use_cgroups=False)
    async with NodeRunner(root, node_id="n1", gpu_ids=gpus, options=options) as runner:
        _say(ready=True)
        told = asyncio.create_task(_tell(runner))
        tasks: set[asyncio.Task[None]] = set()
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            task = asyncio.create_task(_answer(runner, json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        told.cancel()
        await asyncio.gather(told, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2:]))
