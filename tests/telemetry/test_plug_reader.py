"""Smart plugs: what Tasmota and Shelly send, what strangers send, and what silence means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import InputError
from eaco_telemetry.readers.base import Reader, Reading, node_sample
from eaco_telemetry.readers.plug import PlugReader, parse_plug
from eaco_telemetry.samples import HostSample, Moment


def host(reader: PlugReader, now_s: float) -> HostSample:
    found = reader.read(Moment(1, int(now_s * 1e9))).host
    assert found is not None
    assert found.unexplained == ()
    return found


def tasmota(power: object, total_kwh: object) -> bytes:
    """A message as Tasmota 12 sends it."""
    energy = {
        "TotalStartTime": "2022-03-20T15:20:48",
        "Total": total_kwh,
        "Yesterday": 1.495,
        "Today": 0.537,
        "Period": 0,
        "Power": power,
        "ApparentPower": 92,
        "Factor": 0.61,
        "Voltage": 234,
    }
    return json.dumps({"Time": "2023-05-19T20:52:56", "ENERGY": energy}).encode()


def test_a_plug_reader_is_a_reader() -> None:
    assert isinstance(parse_plug("tasmota:desk"), Reader)


def test_tasmota_gives_watts_and_joules_since_the_first_message() -> None:
    plug = parse_plug("tasmota:desk")
    assert plug.filters[:2] == (("tele/desk/SENSOR", 0), ("stat/desk/STATUS8", 0))
    plug.feed("tele/desk/SENSOR", tasmota(56, 514.153), 10)
    assert (host(plug, 11).node_power_w, host(plug, 11).node_energy_j) == (56, 0)
    plug.feed("tele/desk/SENSOR", tasmota(120, 514.163), 310)
    assert host(plug, 311).node_power_w == 120
    assert host(plug, 311).node_energy_j == pytest.approx(36_000)


@pytest.mark.parametrize("topic", ["stat/desk/STATUS8", "stat/desk/STATUS10"])
def test_tasmota_answers_a_question_in_another_form(topic: str) -> None:
    plug = parse_plug("tasmota:desk")
    document = json.loads(tasmota(56, 1.0))
    plug.feed(topic, json.dumps({"StatusSNS": document}).encode(), 1)
    assert host(plug, 2).node_power_w == 56


def test_a_tasmota_meter_with_two_channels_gives_the_one_that_was_named() -> None:
    message = tasmota([52, 5], [2.813, 0.254])
    for name, watts in (("tasmota:m", 52), ("tasmota:m:2", 5), ("tasmota:m:3", None)):
        plug = parse_plug(name)
        plug.feed("tele/m/SENSOR", message, 1)
        assert host(plug, 2).node_power_w == watts


def test_shelly_generation_1_counts_watt_minutes() -> None:
    plug = parse_plug("shelly1:shellyplug-s-C18B12")
    relay = "shellies/shellyplug-s-C18B12/relay/0"
    assert (f"{relay}/energy", 0) in plug.filters
    plug.feed(f"{relay}/power", b"61.54", 1)
    plug.feed(f"{relay}/energy", b"1000", 1)
    plug.feed(f"{relay}/energy", b"1060", 61)
    assert host(plug, 62).node_power_w == 61.54
    assert host(plug, 62).node_energy_j == 3600
    plug.feed(f"{relay}/energy", b"2", 121)  # it was plugged out: its counter starts anew
    assert host(plug, 122).node_energy_j == 3600
    assert host(plug, 122).flags == ("node_energy_rebased",)


def test_shelly_generation_2_tells_its_state_and_its_changes() -> None:
    plug = parse_plug("shelly:shellyplusplugs-80646f")
    status = {
        "id": 0,
        "source": "init",
        "output": True,
        "apower": 8.6,
        "voltage": 231.7,
        "aenergy": {"total": 13652.762, "by_minute": [0.0, 1.1, 2.2], "minute_ts": 1675718520},
    }
    plug.feed("shellyplusplugs-80646f/status/switch:0", json.dumps(status).encode(), 1)
    assert host(plug, 2).node_power_w == 8.6
    change: dict[str, Any] = {
        "src": "shellyplusplugs-80646f",
        "dst": "shellyplusplugs-80646f/events",
        "method": "NotifyStatus",
        "params": {"ts": 1.5, "switch:0": {"id": 0, "aenergy": {"total": 13653.762}}},
    }
    plug.feed("shellyplusplugs-80646f/events/rpc", json.dumps(change).encode(), 61)
    change["params"]["switch:0"] = {"id": 0, "apower": 40.25}
    plug.feed("shellyplusplugs-80646f/events/rpc", json.dumps(change).encode(), 62)
    change["params"] = {"ts": 2, "wifi": {"rssi": -40}}
    plug.feed("shellyplusplugs-80646f/events/rpc", json.dumps(change).encode(), 63)
    assert host(plug, 64).node_power_w == 40.25
    assert host(plug, 64).node_energy_j == pytest.approx(3600)
    assert (plug.messages, plug.ignored) == (4, 1)


def test_a_plug_that_falls_silent_gives_nothing_after_5_minutes() -> None:
    plug = parse_plug("tasmota:desk")
    assert "sent nothing yet" in host(plug, 0).missing["node_power_w"]
    for second in range(0, 100, 10):
        plug.feed("tele/desk/SENSOR", tasmota(56, 1.0), second)
    assert host(plug, 389).node_power_w == 56
    reading = plug.read(Moment(1, 392_000_000_000))
    assert reading.problem is not None
    assert "tasmota:desk has sent nothing for 5 min" in reading.problem
    assert (host(plug, 392).node_power_w, host(plug, 392).node_energy_j) == (None, None)
    assert host(plug, 392).missing["node_power_w"] == reading.problem
    plug.feed("tele/desk/SENSOR", tasmota(70, 1.001), 400)
    assert host(plug, 401).node_power_w == 70
    assert host(plug, 401).node_energy_j == 3600  # what was used meanwhile was counted by the plug


def test_a_plug_that_speaks_rarely_is_given_three_of_its_periods() -> None:
    plug = parse_plug("tasmota:desk")
    for second in (0, 300, 600):
        plug.feed("tele/desk/SENSOR", tasmota(56, 1.0), second)
    assert host(plug, 1499).node_power_w == 56
    assert host(plug, 1501).node_power_w is None


@pytest.mark.parametrize(
    ("name", "topic", "off", "on"),
    [
        ("tasmota:p", "tele/p/LWT", b"Offline", b"Online"),
        ("shelly1:p", "shellies/p/online", b"false", b"true"),
        ("shelly:p", "p/online", b"false", b"true"),
    ],
)
def test_the_last_will_of_a_plug_is_believed(name: str, topic: str, off: bytes, on: bytes) -> None:
    plug = parse_plug(name)
    assert topic in dict(plug.filters)
    plug.feed(topic, off, 1)
    assert "is offline" in host(plug, 2).missing["node_power_w"]
    plug.feed(topic, on, 3)
    assert "sent nothing yet" in host(plug, 4).missing["node_power_w"]


def test_a_retained_message_is_a_base_for_joules_and_no_power() -> None:
    plug = parse_plug("tasmota:desk")
    plug.feed("tele/desk/SENSOR", tasmota(999, 1.0), 1, retain=True)
    assert host(plug, 2).node_power_w is None
    plug.feed("tele/desk/SENSOR", tasmota(50, 1.001), 10)
    assert (host(plug, 11).node_power_w, host(plug, 11).node_energy_j) == (50, 3600)


HOSTILE = [
    b"",
    b"[" * 10_000,
    b'{"ENERGY":' * 3000,
    b'{"ENERGY":{"Power":1e999,"Total":NaN}}',
    b'{"ENERGY":{"Power":-5,"Total":-1}}',
    b'{"ENERGY":{"Power":' + b"9" * 5000 + b"}}",
    b'{"ENERGY":{"Power":' + b"9" * 4000 + b"}}",
    b'{"ENERGY":{"Power":true,"Total":"7"}}',
    b'{"ENERGY":{"Power":20001}}',
    b'{"ENERGY":[1]}',
    b'{"ENERGY":{"Power":50}}' + b" " * 20_000,
    b"\xff\xfe\x00",
    b"null",
]


@pytest.mark.parametrize("payload", HOSTILE)
def test_hostile_payloads_are_ignored_and_counted(payload: bytes) -> None:
    plug = parse_plug("tasmota:desk")
    plug.feed("tele/desk/SENSOR", payload, 1)
    plug.feed("tele/other/SENSOR", tasmota(56, 1.0), 1)
    assert (plug.messages, plug.ignored) == (2, 2)
    assert host(plug, 2).node_power_w is None


WORDS = [
    *("ENERGY", "Power", "Total", "StatusSNS", "apower", "aenergy", "total"),
    *("method", "params", "switch:0"),
]


@given(
    kind=st.sampled_from(["tasmota", "shelly", "shelly1"]),
    messages=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.binary(max_size=40)
            | st.recursive(
                st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
                lambda inner: st.dictionaries(
                    st.sampled_from(WORDS),
                    inner,
                    max_size=4,
                ),
                max_leaves=8,
            ).map(lambda document: json.dumps(document).encode()),
            st.floats(0, 1e6),
        ),
        max_size=20,
    ),
)
def test_no_messages_make_a_plug_raise_or_its_joules_fall(
    kind: str, messages: list[tuple[int, bytes, float]]
) -> None:
    plug = parse_plug(f"{kind}:p")
    last_j = 0.0
    for place, payload, now_s in messages:
        plug.feed(plug.filters[place % len(plug.filters)][0], payload, now_s)
        seen = host(plug, now_s)
        assert seen.node_power_w is None or 0 <= seen.node_power_w <= 20_000
        if seen.node_energy_j is not None:
            assert seen.node_energy_j >= last_j
            last_j = seen.node_energy_j


@pytest.mark.parametrize(
    "text",
    ["", "desk", "tasmota:", "hue:desk", "tasmota:#", "tasmota:a/+/b", "shelly:x:y", "shelly:/x"],
)
def test_what_names_no_plug_is_refused_with_the_right_spelling(text: str) -> None:
    with pytest.raises(InputError, match="plug"):
        parse_plug(text)


def test_a_plug_that_was_named_counts_more_than_a_meter_that_was_found() -> None:
    plug = parse_plug("tasmota:desk")
    plug.feed("tele/desk/SENSOR", tasmota(56, 1.0), 1)
    found = HostSample(
        cpu_util_ratio=0.5,
        node_power_w=80.0,
        node_energy_j=9.0,
        missing={"dram_power_w": "root rights would add it"},
        capabilities=("node_energy_j", "node_power_w"),
    )
    for now_s, watts in ((2, 56), (2000, None)):
        now = Moment(1, now_s * 10**9)
        readings = {"plug": plug.read(now), "host": Reading(host=found)}
        joined = node_sample(readings, node_id="n", session_id="s", seq=0, now=now).host
        assert joined is not None
        assert (joined.cpu_util_ratio, joined.node_power_w) == (0.5, watts)
        assert joined.missing["dram_power_w"] == "root rights would add it"
