"""Names of folders for job ids: any text in, one short and inert folder name out."""

from __future__ import annotations

import hashlib

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_LONGEST = 120


def quoted(job_id: str) -> str:
    """Give a folder name for a job id: different ids never get the same one.

    Letters, digits, `_` and `-` stay; any other byte becomes `%XX`. What would be too long for a
    file system ends in `~` and a digest, which no other name has.
    """
    raw = job_id.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(name) <= _LONGEST:
        return name
    return f"{name[:60]}~{hashlib.sha256(raw).hexdigest()[:40]}"


def attempt_name(job_id: str, attempt: int) -> str:
    """Give the name of the folder of one attempt."""
    return f"{quoted(job_id)}@{attempt}"
