"""`eaco demo`: the whole live loop on one machine in about a minute, with real processes.

`workload` is the program that trains, `cast` says which jobs there are, `alone` measures workloads
by themselves, `stage` runs everything, `table` shows what came out.
"""
