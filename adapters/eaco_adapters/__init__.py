"""Everything that touches the world: executors, traces, simulator, command line.

This room may import the other three. None of them imports it.
"""
