"""Parts of the server on their own: output in pieces, followers, connections that do nothing."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_adapters.node.shim import Log
from eaco_adapters.server.connection import Connection
from eaco_adapters.server.listen import listen_on_path, serve_http
from eaco_adapters.server.output import read_output
from eaco_adapters.server.streams import Streams
from eaco_core import events as ev
from eaco_core.history import Step

if TYPE_CHECKING:
    from pathlib import Path


@given(
    texts=st.lists(st.text("aé日😀\n", max_size=40), min_size=1, max_size=2),
    limit=st.integers(1, 30),
)
def test_output_in_pieces_is_the_output(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("output")
    whole = "".join(texts).encode()
    cut = len(whole) // 2  # files are cut anywhere, also in a character
    paths = [folder / "1", folder / "2"]
    paths[0].write_bytes(whole[:cut])
    paths[1].write_bytes(whole[cut:])
    got, offset = "", 0
    while True:
        part = read_output(paths, offset, limit, ended=True)
        assert part.offset == offset
        got, offset = got + part.text, part.next_offset
        if part.is_last:
            break
    assert got.encode() == whole


def test_a_torn_character_waits_until_it_is_whole_or_the_job_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"a\xe6\x97")
    part = read_output([path], 0, 100, ended=False)
    assert (part.text, part.next_offset) == ("a", 1)
    path.write_bytes("a日".encode())
    assert read_output([path], 1, 100, ended=False).text == "日"
    path.write_bytes(b"a\xe6\x97")
    part = read_output([path], 1, 100, ended=True)
    assert (part.text, part.next_offset, part.is_last) == ("\ufffd", 3, True)
    path.write_bytes(b"\xff\xfe\x80" * 30)  # no text at all: it goes on all the same
    assert read_output([path], 0, 4, ended=False).next_offset == 4


def test_places_count_from_the_first_byte_that_a_job_wrote(tmp_path: Path) -> None:
    old, new = tmp_path / "1", tmp_path / "2"
    note = b"[eaco: 500 bytes of earlier output are left out]\n"
    old.write_bytes(b"x" * 10)
    new.write_bytes(note + b"new")
    part = read_output([old, new], 0, 5, ended=False)
    assert (part.text, part.offset, part.next_offset) == ("xxxxx", 500, 505)
    part = read_output([old, new], 505, 100, ended=False)
    assert part.text == "xxxxx" + note.decode() + "new"
    assert part.next_offset == 510 + len(note) + 3
    part = read_output([old, new], 10_000, 100, ended=False)
    assert (part.text, part.offset, part.is_last) == ("", 513 + len(note), True)
    part = read_output([new], 0, 4, ended=False)  # a job that writes such a line itself
    assert part.offset == 0
    part = read_output([], 7, 100, ended=False)
    assert (part.text, part.offset, part.is_last) == ("", 0, True)
    with pytest.raises(FileNotFoundError):
        read_output([tmp_path / "gone"], 0, 10, ended=False)


def test_a_log_that_turns_over_is_followed_without_a_gap_that_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = Log(20_000)
    paths = [tmp_path / "output.log.1", tmp_path / "output.log"]
    got, offset = "", 0
    for number in range(6000):
        log.write(b"line %d\n" % number)
        if number % 7 == 0:
            there = [path for path in paths if path.exists()]
            part = read_output(there, offset, 100_000, ended=False)
            got, offset = got + part.text, part.next_offset
    os.close(log._fd)
    notes = re.findall(r"\[eaco: \d+ bytes of earlier output are left out\]\n", got)
    assert len(notes) > 2
    for note in notes:  # in the middle of a line, where the file was full
        got = got.replace(note, "")
    lines = got.splitlines()
    assert lines == [f"line {number}" for number in range(len(lines))]
    assert len(lines) > 5990


def _step(seq: int) -> Step:
    return Step(seq, float(seq), 1, ev.Tick(float(seq)), (), ())


def test_a_follower_gets_each_step_and_a_slow_one_is_told() -> None:
    async def play() -> None:
        streams = Streams(size=3)
        quick, slow = streams.follow(), streams.follow()
        asked = [asyncio.ensure_future(anext(one)) for one in (quick, slow)]
        await asyncio.sleep(0)
        assert len(streams) == 2
        for seq in range(1, 6):
            streams.give(_step(seq))
            await asyncio.sleep(0)
            if seq > 1:
                assert f'"seq":{seq}' in (await anext(quick)).decode()
        assert b'"seq":1' in await asked[0]
        assert b'"seq":1' in await asked[1]
        assert b"too slow" in await anext(slow)
        with pytest.raises(StopAsyncIteration):
            await anext(slow)
        assert len(streams) == 1
        streams.close()
        with pytest.raises(StopAsyncIteration):
            await anext(quick)
        with pytest.raises(StopAsyncIteration):
            await anext(streams.follow())
        assert len(streams) == 0

    asyncio.run(play())


async def _big(_scope: Any, _receive: Any, send: Any) -> None:  # noqa: ANN401 - an ASGI app
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(5000):
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})


def _is_closed(connection: socket.socket) -> bool:
    """Read what there is; tell whether it ends."""
    connection.settimeout(0.05)
    try:
        for _ in range(200):  # more than waits for us anywhere
            if not connection.recv(1 << 20):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def test_a_connection_that_makes_no_move_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "look_s", 0.2)
    monkeypatch.setattr(Connection, "most", 3)
    path = tmp_path / "s"

    def rude() -> list[bool]:
        silent, half, mute, extra = (socket.socket(socket.AF_UNIX) for _ in range(4))
        try:
            for one in (silent, half, mute):
                one.connect(str(path))
                time.sleep(0.05)
            half.sendall(b"GET / HTTP/1.1\r\nhost: ")
            mute.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            extra.connect(str(path))
            time.sleep(0.1)
            found = [_is_closed(extra), not _is_closed(silent), not _is_closed(half)]
            time.sleep(1.5)
            return [*found, _is_closed(silent), _is_closed(half), _is_closed(mute)]
        finally:
            for one in (silent, half, mute, extra):
                one.close()

    async def play() -> list[bool]:
        stop = asyncio.Event()
        listener = listen_on_path(path)
        serving = asyncio.create_task(serve_http(_big, listener, stop))
        try:
            return await asyncio.to_thread(rude)
        finally:
            stop.set()
            await serving
            listener.close()
            os.unlink(path)  # noqa: PTH108 - in a loop

    assert asyncio.run(play()) == [True] * 6
