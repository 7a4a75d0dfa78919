"""Samples in the forms of other programs: Prometheus, Home Assistant.

`prometheus` needs ``pip install 'eaco[prometheus]'``; `home_assistant` needs nothing. See
docs/exporters.md.
"""
