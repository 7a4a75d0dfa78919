"""`eaco serve`: the scheduler as a daemon, and the client that talks to it.

`config` reads its file, `service` is the scheduler with everything around it, `http` is its face
on a unix socket or a loopback port, `client` is what the commands use.
"""
