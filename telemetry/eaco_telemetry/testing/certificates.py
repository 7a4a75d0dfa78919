"""Certificates for one test, made by the program `openssl`."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from attrs import frozen

from eaco_core.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 60.0
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@frozen
class Certificates:
    """Files of an authority, of a server on 127.0.0.1, and of a client."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def has_openssl() -> bool:
    """Tell whether certificates can be made here."""
    return shutil.which("openssl") is not None


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and what it signs, valid for a day."""
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    _openssl(
        "req", "-x509", *_KEY, "-days", "1", "-subj", "/CN=eaco test authority",
        "-keyout", str(ca_key), "-out", str(ca),
    )  # fmt: skip
    made = {
        name: _signed(folder, name, ca, ca_key)
        for name in ("server", "client")
    }  # fmt: skip
    return Certificates(ca, *made["server"], *made["client"])


def _signed(folder: Path, name: str, ca: Path, ca_key: Path) -> tuple[Path, Path]:
    certificate, key, request = (folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
    _openssl(
        "req", *_KEY, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request),
    )  # fmt: skip
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n", encoding="ascii")
    _openssl(
        "x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey", str(ca_key),
        "-CAcreateserial", "-days", "1", "-extfile", str(extensions), "-out", str(certificate),
    )  # fmt: skip
    return certificate, key


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise EnvironmentFault("the program openssl is not installed")
    done = subprocess.run(  # noqa: S603 - our own arguments
        [program, *arguments], capture_output=True, check=False, timeout=_TIMEOUT_S
    )
    if done.returncode != 0:
        raise EnvironmentFault(f"openssl failed: {done.stderr.decode(errors='replace')[-300:]}")
