"""A launch is plain data: out and in again without loss, refused with the key of what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_adapters.launch import LaunchSpec, launch_from_dict
from eaco_adapters.node.names import attempt_name
from eaco_core.errors import InputError

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
launches = st.builds(
    LaunchSpec,
    command=st.lists(texts.filter(bool), min_size=1, max_size=4).map(tuple),
    cwd=st.none() | texts.filter(bool),
    env=st.dictionaries(st.from_regex(r"[A-D][A-Z_]{0,5}", fullmatch=True), texts, max_size=3),
    stop_signal=st.sampled_from(("USR1", "USR2", "TERM", "")),
    stop_exit_codes=st.lists(st.integers(1, 255), max_size=3).map(tuple),
    kill_grace_s=st.floats(0, 1e6),
    first_event_timeout_s=st.none() | st.floats(0, 1e6),
    log_bytes_max=st.integers(0, 1 << 40),
    container=st.just(()) | st.just(("docker", "--gpus={gpus}", "{command}")),
    pin_cpus=st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple),
    memory_bytes_max=st.none() | st.integers(0, 1 << 40),
    mps=st.booleans(),
)


@given(launches)
def test_a_launch_comes_back_as_it_was(launch: LaunchSpec) -> None:
    assert launch_from_dict(json.loads(json.dumps(launch.to_dict()))) == launch


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ([], "object"),
        ({}, "command"),
        ({"command": "python train.py"}, "command"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": [1]}, "command"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"command": ["a\ud800"]}, "character"),
        ({"command": ["a"], "comand": 1}, "comand"),
        ({"command": ["a"], "schema": "eaco.launch/9"}, "schema"),
        ({"command": ["a"], "cwd": ""}, "cwd"),
        ({"command": ["a"], "cwd": 5}, "cwd"),
        ({"command": ["a"], "env": {"A=": "1"}}, "env"),
        ({"command": ["a"], "env": {"A": 1}}, "env"),
        ({"command": ["a"], "env": ["A"]}, "env"),
        ({"command": ["a"], "env": {"EACO_JOB_ID": "x"}}, "EACO_JOB_ID"),
        ({"command": ["a"], "stop_signal": "KILL"}, "stop_signal"),
        ({"command": ["a"], "stop_signal": 9}, "stop_signal"),
        ({"command": ["a"], "stop_exit_codes": [0]}, "stop_exit_codes"),
        ({"command": ["a"], "stop_exit_codes": 85}, "stop_exit_codes"),
        ({"command": ["a"], "kill_grace_s": -1}, "kill_grace_s"),
        ({"command": ["a"], "kill_grace_s": float("nan")}, "kill_grace_s"),
        ({"command": ["a"], "kill_grace_s": True}, "kill_grace_s"),
        ({"command": ["a"], "first_event_timeout_s": "soon"}, "first_event_timeout_s"),
        ({"command": ["a"], "log_bytes_max": 1.5}, "log_bytes_max"),
        ({"command": ["a"], "memory_bytes_max": -1}, "memory_bytes_max"),
        ({"command": ["a"], "container": ["docker", "run"]}, "container"),
        ({"command": ["a"], "container": ["{command}"]}, "container"),
        ({"command": ["a"], "pin_cpus": []}, "pin_cpus"),
        ({"command": ["a"], "pin_cpus": [-1]}, "pin_cpus"),
        ({"command": ["a"], "mps": 1}, "mps"),
    ],
)
def test_what_is_wrong_is_refused_with_its_key(data: object, word: str) -> None:
    with pytest.raises(InputError, match=word):
        launch_from_dict(data)


def test_null_is_the_default() -> None:
    data: dict[str, Any] = dict.fromkeys(LaunchSpec(("a",)).to_dict())
    assert launch_from_dict({**data, "schema": "eaco.launch/1", "command": ["a"]}) == LaunchSpec(
        ("a",)
    )


def test_a_container_gets_command_and_gpus() -> None:
    launch = LaunchSpec(("a", "b c"), container=("run", "--gpus=device={gpus}", "{command}", "z"))
    assert launch.argv(("G1", "G2")) == ("run", "--gpus=device=G1,G2", "a", "b c", "z")


@given(
    st.text(max_size=400) | st.text("/.%@~ ", max_size=200), st.text(max_size=400), st.integers(1)
)
def test_names_of_folders_are_inert_short_and_different(one: str, two: str, attempt: int) -> None:
    names = [attempt_name(one, attempt), attempt_name(two, attempt)]
    for name in names:
        assert not set(name) & set("/\0\n *?$;")
        assert not name.startswith(".")
        assert len(name.encode()) < 200 + len(str(attempt))
    assert (names[0] == names[1]) == (one == two)
