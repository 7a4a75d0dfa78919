"""How a command logs in at an MQTT broker: the options, alike for every command.

    @click.command("top")
    @mqtt_options
    def command(broker: str | None, **login: Any) -> None:
        options = connection(broker, Login(**login), client_id="eaco-top-1a2b")

A password is never an argument, because arguments of a process can be read by every
user of the machine: it comes from a file or from the environment.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from attrs import evolve, frozen

from eaco_adapters.cli._option_types import file_path
from eaco_adapters.cli._output import note
from eaco_core.errors import InputError
from eaco_telemetry.transport import (
    PASSWORD_VARIABLE,
    TlsOptions,
    parse_broker_url,
    read_password,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eaco_telemetry.transport import MqttOptions

    F = TypeVar("F", bound=Callable[..., Any])

_BROKER_HELP: Final = "MQTT broker: mqtt://HOST[:1883], or mqtts://HOST[:8883] for TLS."


@frozen
class Login:
    """What the options of `mqtt_options` say, except the broker. Files are not read yet."""

    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """The options that were given, as they are written on the command line."""
        values = {
            "--username": self.username,
            "--password-file": self.password_file,
            "--ca-file": self.ca_file,
            "--cert-file": self.cert_file,
            "--key-file": self.key_file,
        }
        return tuple(name for name, value in values.items() if value is not None)


def mqtt_options(function: F) -> F:
    """Put --broker and the options of the login on a command.

    The command gets `broker` (text or None) and the fields of `Login`.
    """
    return mqtt_options_with(_BROKER_HELP)(function)


def mqtt_options_with(broker_help: str) -> Callable[[F], F]:
    """As `mqtt_options`, with another text for --broker in the help."""
    options: tuple[Callable[[F], F], ...] = (
        click.option("--broker", metavar="URL", help=broker_help),
        click.option("--username", metavar="NAME", help="Name to log in with at the broker."),
        click.option("--password-file", type=file_path, metavar="FILE",
                     help="File with the password in its first line.  [default: the variable"
                     f" {PASSWORD_VARIABLE}]"),
        click.option("--ca-file", type=file_path, metavar="FILE",
                     help="Certificates (PEM) that the broker's is checked against."
                     "  [default: those of the system]"),
        click.option("--cert-file", type=file_path, metavar="FILE",
                     help="Client certificate (PEM), where the broker asks for one."),
        click.option("--key-file", type=file_path, metavar="FILE",
                     help="Private key (PEM), if it is not in the file of the certificate."),
    )  # fmt: skip

    def put(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return put


def connection(broker: str, login: Login, *, client_id: str = "") -> MqttOptions:
    """Give the options of a connection; reads the password.

    Raises InputError for an address or options that do not fit together. A password that
    would go over a network in the clear is told on stderr.
    """
    found = parse_broker_url(broker)
    tls_files = [name for name in login.given if name in {"--ca-file", "--cert-file", "--key-file"}]
    if tls_files and found.tls is None:
        raise InputError(
            f"{tls_files[0]} is for an encrypted connection; write --broker mqtts://{found.host}"
        )
    if login.key_file is not None and login.cert_file is None:
        raise InputError("--key-file needs --cert-file: a key alone is no certificate")
    for path in (login.ca_file, login.cert_file, login.key_file):
        _check_readable(path)
    if found.tls is not None:
        found = evolve(found, tls=TlsOptions(login.ca_file, login.cert_file, login.key_file))
    username = found.username if login.username is None else login.username
    if username is None and login.password_file is not None:
        raise InputError("--password-file needs --username: MQTT has no password without a name")
    password = None
    if username is not None:
        password = read_password(login.password_file)
    if password is not None and found.tls is None and not is_loopback(found.host):
        note(
            f"eaco: the password goes to {found.host} unencrypted, for everyone on the way to"
            f" read; write --broker mqtts://{found.host} where the broker has TLS."
        )
    return evolve(found, username=username, password=password, client_id=client_id)


def new_client_id(role: str) -> str:
    """Give a client id that no other client has: two with the same id throw each other out."""
    return f"eaco-{role}-{secrets.token_hex(4)}"


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address is this machine itself, without asking a name server."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_readable(path: Path | None) -> None:
    if path is None:
        return
    if not path.is_file():
        raise InputError("there is no such file", where=str(path))
    if not os.access(path, os.R_OK):
        raise InputError("this file may not be read", where=str(path))
