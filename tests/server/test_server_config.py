"""The configuration of `eaco serve`: defaults, and every mistake told at once."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_adapters.server.config import NodeConfig, ServerConfig, parse_config, read_config
from eaco_core.cluster import GpuSpec
from eaco_core.errors import InputError

EXAMPLE = """
name = "lab"
state_dir = "/tmp/eaco-state"
policy = "eaco"
power_model = true

[listen]
http = "127.0.0.1:8470"
token_file = "/etc/eaco/token"

[rules]
starvation_s = 600
max_degree = 2

[nodes.box-1]
gpus = [{ id = "GPU-1", type = "a100", mem_gib = 80 }]
labels = { room = "cellar" }

[nodes.box-2]
simulated_gpus = 2

[telemetry]
broker = "mqtt://127.0.0.1"
site = "lab"
"""


def test_an_empty_file_is_this_machine_with_its_own_gpus() -> None:
    config = parse_config({"state_dir": "/x"})
    assert config.nodes == (NodeConfig("local"),)
    assert config.listen.socket == Path("/x/eaco.sock")
    assert config.listen.http is None
    assert config.policy == "eaco"


def test_everything_that_can_be_said_is_read(tmp_path: Path) -> None:
    path = tmp_path / "eaco.toml"
    path.write_text(EXAMPLE)
    config = read_config(path)
    assert config.listen.http == ("127.0.0.1", 8470)
    assert config.rules.starvation_s == 600.0
    assert config.rules.max_degree == 2
    first, second = config.nodes
    assert first.gpus == (GpuSpec("GPU-1", "a100", 80 << 30),)
    assert first.labels == (("room", "cellar"),)
    assert second.simulated
    assert second.gpus is not None
    assert [gpu.gpu_id for gpu in second.gpus] == ["SIM-box-2-0", "SIM-box-2-1"]
    assert config.telemetry.broker == "mqtt://127.0.0.1"


def test_a_gpu_is_in_one_node_once() -> None:
    gpu = {"id": "GPU-1", "type": "a100"}
    with pytest.raises(InputError, match="GPU GPU-1, which node a has already"):
        parse_config({"nodes": {"a": {"gpus": [gpu]}, "b": {"gpus": [gpu]}}})
    with pytest.raises(InputError, match="GPU GPU-1, which node a has already"):
        parse_config({"nodes": {"a": {"gpus": [gpu, gpu]}}})
    with pytest.raises(InputError, match=r"`nodes\.b` needs `gpus`"):
        parse_config({"nodes": {"a": {}, "b": {}, "c": {"simulated_gpus": 1}}})


def test_all_mistakes_are_told_at_once_with_their_keys() -> None:
    wrong = {
        "polcy": "eaco",
        "policy": "best",
        "listen": {"http": "8470"},
        "rules": {"max_degree": 0, "alpha": "high", "headrom_ratio": 0.1},
        "nodes": {"a/b": {}, "box": {"simulated_gpus": -1, "gpus": [{"id": "x"}, 3]}},
        "telemetry": {"local": "yes", "period_s": 0},
    }
    with pytest.raises(InputError) as caught:
        parse_config(wrong, where="eaco.toml")
    told = str(caught.value)
    assert told.startswith("eaco.toml: 12 mistakes: ")
    for part in (
        "`polcy` is not known; do you mean `policy`?",
        "`policy` must be one of fifo",
        "`listen.http` must be an address and a port",
        "`rules.max_degree` is wrong",
        "`rules.alpha` is wrong",
        "`rules.headrom_ratio` is not known; do you mean `headroom_ratio`?",
        "`nodes.a/b` is no name for a node",
        "`nodes.box.simulated_gpus` must be a whole number",
        "`nodes.box.gpus[0].id` and `type` are needed",
        "`nodes.box.gpus` must hold tables; item 1 is 3",
        "`telemetry.local` must be true or false",
        "`telemetry.period_s` must be a number above 0",
    ):
        assert part in told, part


def test_a_port_needs_a_token() -> None:
    with pytest.raises(InputError, match="needs `token_file`"):
        parse_config({"listen": {"http": "127.0.0.1:80"}})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"a = ", "it is not TOML"), (b"\xff\xfe", "it cannot be read")],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "eaco.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_config(path)
    with pytest.raises(InputError, match="no such configuration"):
        read_config(tmp_path / "missing.toml")


TOML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["listen", "rules", "nodes", "gpus", "id", "http", "alpha", "local"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["name", "listen", "rules", "nodes", "telemetry", "policy", "state_dir"]),
        TOML_VALUES,
    )
)
def test_whatever_the_file_holds_it_is_a_configuration_or_one_error(
    data: dict[str, object],
) -> None:
    config: ServerConfig | None = None
    with suppress(InputError):
        config = parse_config(data)
    assert config is None or len(config.nodes) >= 1
