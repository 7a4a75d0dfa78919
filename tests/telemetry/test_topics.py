"""The topic tree: what is a topic of ours, and what is a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import InputError
from eaco_telemetry.topics import KINDS, NodeTopics, Topic, check_name, filters, parse_topic

NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)


@given(NAMES, NAMES)
def test_the_topics_of_a_node_are_taken_apart_again(site: str, node_id: str) -> None:
    topics = NodeTopics(site, node_id)
    for kind in KINDS:
        text: str = getattr(topics, kind)
        assert text == f"eaco/v1/{site}/{node_id}/{kind}"
        assert parse_topic(text) == Topic(site, node_id, kind)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "eaco/v1/lab/n1",
        "eaco/v1/lab/n1/sample/more",
        "eaco/v1/lab/n1/other",
        "eaco/v2/lab/n1/sample",
        "/eaco/v1/lab/n1/sample",
        "eaco/v1//n1/sample",
        "eaco/v1/lab/n 1/sample",
        "eaco/v1/lab/n1\n/sample",
        "eaco/v1/lab/n1\x00/sample",
        "eaco/v1/lab/+/sample",
        "eaco/v1/lab/#",
        "eaco/v1/lab/nö/sample",
        f"eaco/v1/lab/{'x' * 65}/sample",
        "x" * 65_535,
        "/" * 65_535,
    ],
)
def test_a_topic_that_is_not_of_the_tree_is_none(topic: str) -> None:
    assert parse_topic(topic) is None


@given(st.text())
def test_any_text_is_a_topic_or_none(text: str) -> None:
    topic = parse_topic(text)
    assert topic is None or getattr(NodeTopics(topic.site, topic.node_id), topic.kind) == text


@pytest.mark.parametrize("name", ["", "a/b", "a b", "+", "#", "$SYS", "x" * 65, "a\n", "ä"])
def test_a_name_that_cannot_be_a_level_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(InputError, match=r"the node is named .*: use 1 to 64 letters"):
        check_name(name, "the node")
    with pytest.raises(InputError, match="the site is named"):
        NodeTopics(name, "n1")
    with pytest.raises(InputError, match="the node is named"):
        NodeTopics("lab", name)


def test_filters_ask_for_samples_with_qos_0_and_for_the_rest_with_qos_1() -> None:
    assert set(filters()) == {
        ("eaco/v1/+/+/sample", 0),
        ("eaco/v1/+/+/meta", 1),
        ("eaco/v1/+/+/state", 1),
        ("eaco/v1/+/+/event", 1),
    }
    assert filters()[0][0].endswith("/meta"), "first what explains the rest"
    assert ("eaco/v1/lab/n1/sample", 0) in filters("lab", "n1")
    assert ("eaco/v1/lab/+/sample", 0) in filters("lab")
    with pytest.raises(InputError):
        filters("lab/#")
