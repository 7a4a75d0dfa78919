"""The errors of eaco, one class for each party that has to act.

Every message says what is wrong, where (file and line, job, GPU, node) and what
to do about it. The facts are also attributes, so that a program can use them.
"""

from __future__ import annotations


class EacoError(Exception):
    """Base of every error that eaco raises on purpose."""


class InputError(EacoError, ValueError):
    """The user must act: a file, an option or a job description is wrong.

    `where` names the place (``"jobs.csv, line 7"``) when there is one.
    """

    def __init__(self, message: str, *, where: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class EventRefused(EacoError):
    """The embedding program must act: this event is not possible in this state.

    The machine that raised it is exactly as it was before the call.
    """

    def __init__(self, message: str, *, event: object, job_id: str | None = None) -> None:
        super().__init__(message)
        self.event = event
        self.job_id = job_id


class ActionRefused(EacoError):
    """The author of a policy must act: it asked for something that is not possible.

    The action was not applied; actions of the same pass that came before it were.
    """

    def __init__(self, message: str, *, action: object, job_id: str | None = None) -> None:
        super().__init__(message)
        self.action = action
        self.job_id = job_id


class EnvironmentFault(EacoError):
    """The operator must act: something outside (a broker, an engine, a disk) failed."""


class InternalError(EacoError):
    """We must act: eaco contradicts itself. Please report it with the history file."""
