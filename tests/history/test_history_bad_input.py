"""A wrong line is refused in one sentence that names the file and the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eaco_core import history
from eaco_core.errors import InputError
from eaco_core.events import Tick
from eaco_core.history import Header, Step

if TYPE_CHECKING:
    from pathlib import Path

HEADER = history.encode_header(policy="eaco")
TICK = history.encode_step(1, 1.0, 1, Tick(1.0))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[1]", "must be an object"),
        ('{"kind":"stride"}', 'a "kind" of header, step or energy'),
        ('{"kind":[]}', 'a "kind" of header, step or energy'),
        ('{"kind":{}}', 'a "kind" of header, step or energy'),
        ('{"kind":"step","t_s":1.0,"event":{"type":"Tick","t_s":1}}', "lacks the field 'seq'"),
        ('{"kind":"step","seq":1,"t_s":1.0}', "lacks the field 'event'"),
        ('{"kind":"step","seq":true,"t_s":1,"event":{"type":"Tick","t_s":1}}', "seq must be a wh"),
        ('{"kind":"step","seq":1,"t_s":NaN,"event":{"type":"Tick","t_s":1}}', "holds NaN"),
        ('{"kind":"step","seq":1,"t_s":1e999,"event":{"type":"Tick","t_s":1}}', "too large"),
        ('{"kind":"step","seq":1,"t_s":-1,"event":{"type":"Tick","t_s":1}}', "t_s must be a fin"),
        ('{"kind":"step","seq":1,"t_s":"inf","event":{"type":"Tick","t_s":1}}', "t_s must be a f"),
        ('{"kind":"step","seq":1,"t_s":1,"event":{"type":"Tock"}}', 'type of event: "Tock"'),
        ('{"kind":"step","seq":1,"t_s":1,"event":{"type":[]}}', "unknown type of event"),
        ('{"kind":"step","seq":1,"t_s":1,"event":{"type":"Tick"}}', "event lacks the field 't_s'"),
        ('{"kind":"step","seq":1,"t_s":1,"event":{"type":"Tick","t_s":"1"}}', "event.t_s must be"),
        (
            '{"kind":"step","seq":1,"t_s":1,"event":{"type":"Tick","t_s":-1}}',
            "must not be negative",
        ),
        (
            '{"kind":"step","seq":1,"t_s":1,"event":{"type":"Tick","t_s":1},"effects":[{}]}',
            "effects has an unknown type of effect: null",
        ),
        (
            '{"kind":"step","seq":1,"t_s":1,'  # noqa: ISC004 - one line of a file
            '"event":{"type":"GpusReleased","t_s":1,"job_id":"a","attempt":1,"gpus":["g",2]}}',
            r"event.gpus\[1\] must be a string, not 2",
        ),
        (
            '{"kind":"step","seq":1,"t_s":1,'  # noqa: ISC004 - one line of a file
            '"event":{"type":"JobSubmitted","t_s":1,"job":{"job_id":"a","gpus":1,"submit_s":0,"share_with":"all"}}}',
            "event.job.share_with must be one of any, none, same_group, same_user",
        ),
        ('{"kind":"energy","t0_s":0,"t1_s":1,"node_id":"n"}', "lacks the field 'node_j'"),
        (
            '{"kind":"energy","t0_s":0,"t1_s":1,"node_id":"n","node_j":1,"jobs_j":{"a":"x"}}',
            "jobs_j.a must be a number",
        ),
        ('{"kind":"header","schema":"eaco.history/2"}', 'the schema "eaco.history/1"'),
        ('{"kind":"header","schema":"eaco.history/1","rules":{"max_degree":0}}', "at least 1"),
    ],
)
def test_a_wrong_line_is_refused(line: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        history.decode_line(line, "run.jsonl, line 7")
    assert caught.value.where == "run.jsonl, line 7"
    assert str(caught.value).startswith("run.jsonl, line 7: this line of the history is ")
    assert "\n" not in str(caught.value)


def test_what_is_not_known_is_read_over_and_whole_numbers_are_numbers() -> None:
    line = '{"kind":"step","seq":1,"t_s":1,"new":{},"event":{"type":"Tick","t_s":1,"x":[]}}'
    assert history.decode_line(line) == Step(1, 1.0, 1, Tick(1.0))
    assert history.decode_line('{"kind":"header","schema":"eaco.history/1"}') == Header()


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read_line_by_line_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", f"\n{HEADER}\n\n{TICK}\n")
    assert list(history.read_history(path)) == [Header(policy="eaco"), Step(1, 1.0, 1, Tick(1.0))]
    path = write(tmp_path / "no_line_end.jsonl", f"{HEADER}\n{TICK}")
    assert len(list(history.read_history(path))) == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "this history is empty"),
        (f"{TICK}\n", "line 1: the first line must be the header"),
        (f"{HEADER}\n{TICK}\n{HEADER}\n", "line 3: a second header"),
        (f"{HEADER}\n{TICK}\n{TICK[:-5]}", "line 3: the file ends in the middle of this line"),
        (f"{HEADER}\n{TICK[:-5]}\n{TICK}\n", "line 2: this line of the history is not JSON"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        list(history.read_history(write(tmp_path / "run.jsonl", text)))


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        list(history.read_history(tmp_path / "none.jsonl"))
    with pytest.raises(InputError, match="a folder"):
        list(history.read_history(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        list(history.read_history(tmp_path / "binary"))
