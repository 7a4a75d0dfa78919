"""Recordings of samples in Parquet files: writing, reading, replaying.

Needs polars: ``pip install 'eaco[record]'``. See docs/recording.md for the columns.
"""

from __future__ import annotations

try:
    from eaco_telemetry.recording.columns import COLUMNS, RECORDING_SCHEMA
    from eaco_telemetry.recording.reading import read_frame, scan_recording
    from eaco_telemetry.recording.recorder import Recorder
    from eaco_telemetry.recording.replay import ReplayReader, replay
    from eaco_telemetry.recording.samples import Recorded, read_recorded, read_samples
except ModuleNotFoundError as missing:
    if missing.name != "polars":
        raise
    raise ModuleNotFoundError(
        "recordings need the package polars, which is not installed;"
        " install it with: pip install 'eaco[record]'",
        name=missing.name,
    ) from None

__all__ = [
    "COLUMNS",
    "RECORDING_SCHEMA",
    "Recorded",
    "Recorder",
    "ReplayReader",
    "read_frame",
    "read_recorded",
    "read_samples",
    "replay",
    "scan_recording",
]
