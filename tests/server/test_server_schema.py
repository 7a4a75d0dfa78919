"""The OpenAPI document against a real server, by schemathesis: no 5xx, and answers as promised."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.server.client import Client, ServerAddress
from eaco_adapters.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef"  # noqa: S105 - made up
# Not among them: that every request that fits the schema is accepted, and that a job is gone after
# DELETE. A program that does not exist fits the schema, and a cancelled job stays on record.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance,negative_data_rejection,"
    "unsupported_method,ignored_auth,missing_required_header"
)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed"
)
def test_no_request_brings_out_a_fault_or_an_answer_of_another_form(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listen = {"http": f"127.0.0.1:{port}", "token_file": str(token_file)}
    with ServerProcess(tmp_path, listen=listen) as server:
        server.start()
        server.submit("echo", "é", job_id="0")
        server.wait_for("0", "finished")
        words = [
            "run",
            f"http://127.0.0.1:{port}/openapi.json",
            f"--header=Authorization: Bearer {TOKEN}",
            f"--checks={CHECKS}",
            "--phases=coverage,fuzzing",
            "--max-examples=6",
            "--seed=1",
            "--no-color",
            "--request-timeout=30",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", *words],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "CI"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert Client(ServerAddress(port=port, token=TOKEN)).job("0")["state"] == "finished"
        assert "Traceback" not in server.words()
