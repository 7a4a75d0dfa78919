"""The journal: the history of a scheduler as a log that survives a crash.

Every step is durable before its effects are carried out (I22), and replaying the log
gives the state that was live (I21). `frame` is the form on disk, `reader` reads a whole-record
prefix of any file, `writer` appends, one process at a time.
"""
