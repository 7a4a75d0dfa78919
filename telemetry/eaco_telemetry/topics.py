"""The tree of topics: ``eaco/v1/<site>/<node>/<state|meta|sample|event>``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from attrs import Attribute

ROOT: Final = "eaco/v1"
"""All topics begin with this; the number goes up when old receivers could not go on."""

KINDS: Final = ("meta", "state", "event", "sample")
MAX_NAME: Final = 64

_QOS: Final = {"sample": 0, "meta": 1, "state": 1, "event": 1}
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME}}}")
_MAX_TOPIC: Final = len(ROOT) + 2 * MAX_NAME + len("/sample") + 2
_HEAD: Final = tuple(ROOT.split("/"))
_LEVELS: Final = len(_HEAD) + 3


def check_name(name: str, what: str) -> str:
    """Give the name back if it can be a level of a topic, else raise `InputError`.

    `what` says whose name it is, as in ``the node``. Letters, digits, ``.``, ``_`` and
    ``-``, at most 64: then it also fits a file name, a client id and a label.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{what} is named {name[:80]!r}: use 1 to {MAX_NAME} letters, digits, '.', '_' or '-'"
        )
    return name


@frozen
class Topic:
    """Where a message of the tree belongs. `kind` is one of `KINDS`."""

    site: str
    node_id: str
    kind: str


def parse_topic(topic: str) -> Topic | None:
    """Take a topic apart. None: it is not one of the tree, or a name in it is no name."""
    if len(topic) > _MAX_TOPIC:
        return None
    levels = topic.split("/")
    if len(levels) != _LEVELS or tuple(levels[: len(_HEAD)]) != _HEAD:
        return None
    site, node_id, kind = levels[len(_HEAD) :]
    if kind not in KINDS or not _NAME.fullmatch(site) or not _NAME.fullmatch(node_id):
        return None
    return Topic(site, node_id, kind)


def _check_field(_instance: object, attribute: Attribute[str], value: str) -> None:
    check_name(value, "the site" if attribute.name == "site" else "the node")


@frozen
class NodeTopics:
    """The topics of one node."""

    site: str = field(validator=_check_field)
    node_id: str = field(validator=_check_field)

    @property
    def state(self) -> str:
        """Retained, QoS 1; also the topic of the last will."""
        return self._of("state")

    @property
    def meta(self) -> str:
        """Retained, QoS 1."""
        return self._of("meta")

    @property
    def sample(self) -> str:
        """QoS 0, not retained."""
        return self._of("sample")

    @property
    def event(self) -> str:
        """QoS 1, not retained."""
        return self._of("event")

    def _of(self, kind: str) -> str:
        return f"{ROOT}/{self.site}/{self.node_id}/{kind}"


def filters(site: str = "+", node_id: str = "+") -> tuple[tuple[str, int], ...]:
    """Give what to subscribe to, each with its QoS. ``+`` stands for every site or node.

    The order is that in which a broker gives what it has retained: what explains comes first.
    """
    if site != "+":
        check_name(site, "the site")
    if node_id != "+":
        check_name(node_id, "the node")
    return tuple((f"{ROOT}/{site}/{node_id}/{kind}", _QOS[kind]) for kind in KINDS)
