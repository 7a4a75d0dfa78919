"""The job book: on disk before anyone knows, whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eaco_adapters.server.api import SubmitRequest
from eaco_adapters.server.job_book import JobBook, JobEntry
from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from pathlib import Path


def _entry(job_id: str = "train-1") -> JobEntry:
    request = SubmitRequest(command=["python", "train.py", "$(rm -rf /)"], env={"A": "b; c"})
    return JobEntry(job_id, request, "ada", 1.9e9, deadline_wall_s=1.9e9 + 60)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    book = JobBook(tmp_path / "jobs")
    entry = _entry()
    book.reserve(entry)
    book.write(entry)
    entry.ended_wall_s, entry.exit_code = 1.9e9 + 5, 3
    book.write(entry)
    again = JobBook(tmp_path / "jobs")
    assert list(again) == [entry]
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["train-1.json"]


def test_an_id_is_taken_once(tmp_path: Path) -> None:
    book = JobBook(tmp_path)
    book.reserve(_entry())
    with pytest.raises(InputError, match="is taken"):
        book.reserve(_entry())
    assert book.free_id("train") == "train-2"
    assert book.free_id("../../etc/pass wd\n") == "etc-pass-wd-2"
    assert book.free_id("日本") == "job-2"


def test_a_job_that_the_scheduler_never_took_is_dropped(tmp_path: Path) -> None:
    book = JobBook(tmp_path)
    book.reserve(_entry())
    book.write(_entry())
    book.drop("train-1")
    book.drop("train-1")
    assert len(JobBook(tmp_path)) == 0


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"schema":"eaco.job/2"}', b"\xff"])
def test_a_file_that_is_no_job_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.json"):
        JobBook(tmp_path)
    assert path.read_bytes() == content


def test_a_renamed_file_is_noticed(tmp_path: Path) -> None:
    book = JobBook(tmp_path)
    book.write(_entry())
    (tmp_path / "train-1.json").rename(tmp_path / "other.json")
    with pytest.raises(InputError, match="another job"):
        JobBook(tmp_path)


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot be used"):
        JobBook(tmp_path / "file" / "jobs")
    book = JobBook(tmp_path / "jobs")
    (tmp_path / "jobs").rmdir()
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        book.write(_entry())
