"""The async driver: feeds a `SchedulerMachine` and carries out what it asks for.

`Driver` is the loop; `lanes` gives commands to the executor, in order for each job. This is the
only part of the core that waits. It has no threads of its own, no global state and reads no clock
but the one that it is given, so that several schedulers can live in one process.
"""

from eaco_core.driver.lanes import DriverOptions, Fault
from eaco_core.driver.loop import Driver

__all__ = ["Driver", "DriverOptions", "Fault"]
