"""Executors: what runs jobs for a scheduler."""

from eaco_adapters.executors.local import LocalExecutor

__all__ = ["LocalExecutor"]
