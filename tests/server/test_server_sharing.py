"""Jobs that share a virtual GPU on a real server: one beside which all goes well, and one not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from eaco_adapters.testing.server_process import ServerProcess
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core.jobs import SoloProfile
from eaco_predictors.own_profiles import format_profiles
from eaco_predictors.profile_table import ProfileTable

if TYPE_CHECKING:
    from pathlib import Path

EPOCH_S = 0.4
MIB = 1 << 20


def profiles(folder: Path) -> str:
    """Write what two workloads do alone; of `wrong` it is not true."""
    found = {
        name: SoloProfile(
            "simulated",
            epoch_s=EPOCH_S,
            util_ratio=0.2,
            mem_busy_ratio=0.1,
            peak_mem_bytes=50 * MIB,
        )
        for name in ("right", "wrong")
    }
    path = folder / "profiles.jsonl"
    path.write_text(format_profiles(ProfileTable("a test", "simulated", found, {})))
    return str(path)


def test_a_shared_placement_is_kept_and_another_one_undone(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, gpus=1, profiles=profiles(tmp_path)) as server:
        server.start()

        def submit(
            name: str, workload: str, epochs: int, epoch_s: float, deadline: str | None = None
        ) -> str:
            command = toy_command(epochs=epochs, epoch_s=epoch_s)
            return server.submit(
                *command,
                job_id=name,
                workload=workload,
                epochs=epochs,
                deadline=deadline,
                user="ada",
            )

        host = submit("host", "right", 60, EPOCH_S)
        assert server.client.job(host)["hint"] is None
        server.wait_for(host, "settled")
        guest = submit("guest", "right", 6, EPOCH_S)
        server.wait_for(guest, "settled")
        assert server.client.job(guest)["sharing_with"] == [host]
        assert server.client.job(host)["sharing_with"] == [guest]
        server.wait_for(guest, "finished")
        slow = submit("slow", "wrong", 6, 3 * EPOCH_S, "in 6s")
        while server.client.job(slow)["undos"] == 0:
            time.sleep(0.05)
        server.wait_for(slow, "queued")
        server.client.cancel(host)
        ended = server.wait_for(slow, "finished")
        assert (ended["epochs_done"], ended["undos"]) == (6, 1)
        assert ended["attempt"] == 2
        story = " ".join(one["text"] for one in server.client.story(slow)["sentences"])
        assert "beside" in story
        assert "undone" in story
        assert server.wait_for(host)["state"] == "cancelled"
        log = server.client.log(slow)["text"]
        assert log.splitlines()[-1] == "epoch 6"
        assert log.splitlines()[0] != "epoch 1"  # it went on from its checkpoint
