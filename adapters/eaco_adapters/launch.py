"""How a job is started on a node: command, folder, environment and limits. Never a shell.

A `LaunchSpec` is plain data: `to_dict` and `launch_from_dict` carry it as JSON. It says nothing
of GPUs, attempts or nodes; those come with each start.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from attrs import Attribute, asdict, field, fields, frozen
from attrs.validators import optional

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAUNCH_SCHEMA = "eaco.launch/1"

MIB = 1 << 20
COMMAND_PLACE = "{command}"
GPUS_PLACE = "{gpus}"

# Signals that can mean "stop at the next epoch end". Others cannot be caught, or mean a crash.
STOP_SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _argv(instance: object, attribute: Attribute[Any], value: object) -> None:
    del instance
    parts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    for part in parts:
        _inert(attribute.name, part)


def _inert(key: str, value: object) -> None:
    """Refuse what cannot be handed to a process: a NUL byte, or half a character."""
    if not isinstance(value, str):
        raise InputError(f"{key} must hold texts, not {value!r}")
    if "\0" in value:
        raise InputError(f"{key}: {value!r} has a NUL byte, which no process can be given")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise InputError(f"{key}: {value!r} has a character that no file can hold") from error


def _command(instance: object, attribute: Attribute[Any], value: tuple[str, ...]) -> None:
    if not isinstance(value, tuple) or not value:
        raise InputError(f"command must be a program and its arguments, not {value!r}")
    _argv(instance, attribute, value)
    if not value[0]:
        raise InputError("command must begin with the name of a program, not with an empty text")


def _cwd(instance: object, attribute: Attribute[Any], value: str) -> None:
    _argv(instance, attribute, value)
    if not value:
        raise InputError("cwd must be a folder or null, not an empty text")


def _env(instance: object, attribute: Attribute[Any], value: Mapping[str, str]) -> None:
    del instance
    for name, content in value.items():
        _inert(attribute.name, name)
        _inert(f"{attribute.name}.{name}", content)
        if not name or "=" in name:
            raise InputError(f"env: {name!r} is no name of an environment variable")
        if name.startswith("EACO_"):
            raise InputError(f"env: {name} is set by eaco itself; choose another name")


def _stop_signal(_: object, __: Attribute[Any], value: str) -> None:
    if value and value not in STOP_SIGNALS:
        known = ", ".join(STOP_SIGNALS)
        raise InputError(f"stop_signal must be one of {known}, or empty for none, not {value!r}")


def _exit_codes(_: object, __: Attribute[Any], value: tuple[int, ...]) -> None:
    for code in value:
        if not _is_whole(code) or not 1 <= code <= 255:  # noqa: PLR2004 - what the kernel keeps of a code
            raise InputError(f"stop_exit_codes must be whole numbers from 1 to 255, not {code!r}")


def _seconds(_: object, attribute: Attribute[Any], value: float) -> None:
    if not _is_number(value) or not 0 <= value < 1e9:  # noqa: PLR2004 - thirty years
        raise InputError(f"{attribute.name} must be a number of seconds from 0 on, not {value!r}")


def _bytes(_: object, attribute: Attribute[Any], value: int) -> None:
    if not _is_whole(value) or value < 0:
        raise InputError(f"{attribute.name} must be a number of bytes from 0 on, not {value!r}")


def _container(instance: object, attribute: Attribute[Any], value: tuple[str, ...]) -> None:
    _argv(instance, attribute, value)
    if value and value.count(COMMAND_PLACE) != 1:
        raise InputError(f"container must have {COMMAND_PLACE} as one element of its own")
    if value and value[0] == COMMAND_PLACE:
        raise InputError(f"container must name a program before {COMMAND_PLACE}")


def _cpus(_: object, __: Attribute[Any], value: tuple[int, ...]) -> None:
    if not value or not all(_is_whole(cpu) and 0 <= cpu < 1 << 16 for cpu in value):
        raise InputError(f"pin_cpus must be numbers of CPU cores, at least one, not {value!r}")


def _flag(_: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{attribute.name} must be true or false, not {value!r}")


def _to_dict(env: Mapping[str, str]) -> dict[str, str]:
    if not hasattr(env, "items"):
        raise InputError(f"env must be names with their values, not {env!r}")
    return dict(env)


@frozen
class LaunchSpec:
    """How to start a job. Raises InputError with the key for what cannot be started.

    - `command`: the program and its arguments, as they are; no shell sees them.
    - `cwd`: the folder to start in; None: the job's own checkpoint folder.
    - `env`: variables on top of the runner's own environment.
    - `stop_signal`: what asks for a stop at the next epoch end, to those processes that catch it;
      empty: only the stop file asks. `stop_exit_codes`: exit codes that mean "checkpoint written,
      resume me".
    - `kill_grace_s`: time between TERM and KILL for what the job's first process leaves behind.
    - `first_event_timeout_s`: a job silent for so long after its start counts as unknown.
    - `log_bytes_max`: most bytes of output that are kept; the newest win.
    - `container`: a command around the command: `{command}` stands for its elements, `{gpus}`
      inside an element for the GPU ids with commas.
    - `pin_cpus`: CPU cores for the job's processes.
    - `memory_bytes_max`: most host memory, where the node can limit it.
    - `mps`: go through the node's CUDA MPS daemon.
    """

    command: tuple[str, ...] = field(validator=_command)
    cwd: str | None = field(default=None, validator=optional(_cwd))
    env: Mapping[str, str] = field(factory=dict[str, str], converter=_to_dict, validator=_env)
    stop_signal: str = field(default="USR2", validator=_stop_signal)
    stop_exit_codes: tuple[int, ...] = field(default=(85, 75), validator=_exit_codes)
    kill_grace_s: float = field(default=10.0, validator=_seconds)
    first_event_timeout_s: float | None = field(default=None, validator=optional(_seconds))
    log_bytes_max: int = field(default=16 * MIB, validator=_bytes)
    container: tuple[str, ...] = field(default=(), validator=_container)
    pin_cpus: tuple[int, ...] | None = field(default=None, validator=optional(_cpus))
    memory_bytes_max: int | None = field(default=None, validator=optional(_bytes))
    mps: bool = field(default=False, validator=_flag)

    def argv(self, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """Give the command as it is started, with the container's around it."""
        if not self.container:
            return self.command
        listed = ",".join(gpus)
        parts: list[str] = []
        for part in self.container:
            if part == COMMAND_PLACE:
                parts += self.command
            else:
                parts.append(part.replace(GPUS_PLACE, listed))
        return tuple(parts)

    def stop_signal_number(self) -> int:
        """Give the number of the stop signal on this machine; 0 for none."""
        return int(signal.Signals[f"SIG{self.stop_signal}"]) if self.stop_signal else 0

    def to_dict(self) -> dict[str, Any]:
        """Give plain JSON data that `launch_from_dict` reads back."""
        data = asdict(self, recurse=False)
        for name in ("command", "stop_exit_codes", "container", "pin_cpus"):
            data[name] = None if data[name] is None else list(data[name])
        return {"schema": LAUNCH_SCHEMA, **data}


_TUPLES = ("command", "stop_exit_codes", "container", "pin_cpus")


def launch_from_dict(data: object) -> LaunchSpec:
    """Read what `to_dict` wrote, or what a user wrote. Raises InputError with the key."""
    if not isinstance(data, dict):
        raise InputError(f"a launch must be an object, not {data!r}")
    values = dict(cast("dict[str, Any]", data))
    schema = values.pop("schema", LAUNCH_SCHEMA)
    if schema != LAUNCH_SCHEMA:
        raise InputError(f"the schema of a launch must be {LAUNCH_SCHEMA!r}, not {schema!r}")
    known = {attribute.name for attribute in fields(LaunchSpec)}
    for name in values:
        if name not in known:
            raise InputError(f"a launch has no {name!r}; it has {', '.join(sorted(known))}")
    if values.get("command") is None:
        raise InputError("a launch needs a command: the program and its arguments")
    for name in _TUPLES:
        values[name] = _tuple(name, values[name]) if name in values else None
    # What may be left out may also be null.
    return LaunchSpec(**{name: value for name, value in values.items() if value is not None})


def _tuple(name: str, value: object) -> tuple[Any, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise InputError(f"{name} must be a list, not {value!r}")
    return tuple(cast("Sequence[Any]", value))
