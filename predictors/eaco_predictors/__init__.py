"""What sharing will cost: history of observations, slowdown bounds, profile tables.

This room may import `eaco_telemetry` and `eaco_core`.
"""
