"""What the hardware says: samples, power, and the booking of every joule.

This room may import `eaco_core` only.
"""
