"""Launch facts of the `EPOCH_STARTED` in force: job, log and driver."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from coordlog.limits import PARALLELISM_MAX
from coordlog.schemas.payload_address import STORE_ATTRIBUTE

__all__ = ["FORMER_LOGS", "LaunchInfo", "LaunchedOperator"]

FORMER_LOGS: Final = "former_logs"
"""Attribute of `EPOCH_STARTED` with the logs that the job has left by adoptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedOperator:
    """An operator of the chain that the job was launched with."""

    operator_id: str
    is_coordinated: bool
    projection: str | None
    """Name and version of its coordinator's projection, as in `coordlog.splits@1`; None without one."""
    destination: str | None
    """Destination of its rows, or None if undeclared."""
    location: str | None
    """Location of a source's input, or None if undeclared."""
    inputs: tuple[str, ...]
    """URLs of a source's inputs that are no location, such as topics."""
    has_format: bool
    """Whether the operator reads files of a format."""


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """Typed view of the attributes of an `EPOCH_STARTED`. Missing texts are empty."""

    attributes: Mapping[str, str]

    @property
    def operators(self) -> tuple[LaunchedOperator, ...]:
        """The operators of the chain, in its order."""
        return _operators_in(self.attributes.get("operators", "[]"))

    @property
    def destinations(self) -> Mapping[str, str]:
        """Declared destinations of the operators, by operator id."""
        return {
            operator.operator_id: operator.destination
            for operator in self.operators
            if operator.destination is not None
        }

    @property
    def log(self) -> tuple[str, str]:
        """Cluster id and topic id of the log that the record was written to."""
        return self._log("")

    def is_of(self, cluster_id: str, topic_id: str) -> bool:
        """Whether the record was written to this log; True if it does not name its log."""
        attributes = self.attributes
        log = attributes.get("cluster_id", cluster_id), attributes.get("topic_id", topic_id)
        return log == (cluster_id, topic_id)

    @property
    def adopted_from(self) -> tuple[str, str] | None:
        """Cluster id and topic id of the log that the job left in this epoch, or None if it left none."""
        return self._log("adopted_") if "adopted_topic_id" in self.attributes else None

    @property
    def former_logs(self) -> tuple[tuple[str, str], ...]:
        """Cluster id and topic id of each log that the job has left, the oldest first."""
        left = json.loads(self.attributes.get(FORMER_LOGS, "[]"))
        former = [(str(cluster), str(topic)) for cluster, topic in left]
        if self.adopted_from is not None:
            former.append(self.adopted_from)
        return tuple(dict.fromkeys(former))

    @property
    def parallelism(self) -> int:
        """Number of subtasks; 0 if the record does not name it.

        Raises:
            ValueError: It is no number of subtasks that a job may have.
        """
        text = self.attributes.get("parallelism", "0")
        if len(text) <= len(str(PARALLELISM_MAX)) and 0 <= int(text) <= PARALLELISM_MAX:
            return int(text)
        raise ValueError(f"{text:.20} subtasks; a job has at most {PARALLELISM_MAX}")

    @property
    def payload_store(self) -> str:
        """The folder of large payloads."""
        return self.attributes.get(STORE_ATTRIBUTE, "")

    @property
    def endpoint(self) -> str:
        """Address of the driver; commands have none."""
        return self.attributes.get("endpoint", "")

    @property
    def host(self) -> str:
        """Name of the driver's machine."""
        return self.attributes.get("host", "")

    @property
    def pid(self) -> int | None:
        """Number of the driver's process on its machine, or None if it is not recorded."""
        pid = self.attributes.get("pid", "")
        return int(pid) if pid.isdecimal() else None

    @property
    def coordlog_version(self) -> str:
        """Version of coordlog that wrote the record."""
        return self.attributes.get("coordlog_version", "")

    @property
    def checkpoint_interval_s(self) -> float | None:
        """Seconds between periodic checkpoints, or None if there are none or the record does not name them."""
        text = self.attributes.get("checkpoint_interval_s", "")
        try:
            seconds = float(text)
        except ValueError:  # records are untrusted
            return None
        return seconds if 0 < seconds < math.inf else None

    @property
    def is_command(self) -> bool:
        """Whether a command has begun the epoch, and no driver."""
        return "command" in self.attributes

    def _log(self, prefix: str) -> tuple[str, str]:
        attributes = self.attributes
        return attributes.get(f"{prefix}cluster_id", ""), attributes.get(f"{prefix}topic_id", "")


@lru_cache(maxsize=16)
def _operators_in(text: str) -> tuple[LaunchedOperator, ...]:
    return tuple(
        LaunchedOperator(
            operator_id=operator["id"],
            is_coordinated=bool(operator.get("coordinated")),
            projection=operator.get("projection"),
            destination=operator.get("destination"),
            location=operator.get("location"),
            inputs=tuple(operator.get("inputs", ())),
            has_format="format" in operator.get("options", {}),
        )
        for operator in json.loads(text)
    )
