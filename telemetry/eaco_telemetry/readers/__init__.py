"""Readers: one module for each kind of sensor, all of the same shape (`readers.base`).

A reader is usable alone: open it, read it at your own pace, close it. Importing this
package imports no vendor's library.
"""
