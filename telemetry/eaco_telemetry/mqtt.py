"""Connections to a real MQTT broker, where the extra is installed.

connect = mqtt_connector(MqttOptions(host="broker.lab"))
async with connect() as transport:
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_telemetry.transport import Connect, MqttOptions


def mqtt_connector(options: MqttOptions) -> Connect:
    """Give what makes connections to a real broker (MQTT 3.1.1). Needs the extra ``mqtt``.

    Raises `InputError` if a file for TLS is unusable, `EnvironmentFault` without the extra.
    """
    return _loaded()(options)


def _loaded() -> Callable[[MqttOptions], Connect]:
    try:
        from eaco_telemetry._aiomqtt import aiomqtt_connector  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name not in {"aiomqtt", "paho"}:
            raise
        raise EnvironmentFault(
            f"MQTT needs the package {error.name}, which is not installed;"
            " install it with: pip install 'eaco[mqtt]'"
        ) from None
    return aiomqtt_connector
