"""Synthetic tasks (METHOD section 4): from a configuration and a generator to rows of tokens."""

from effstate.tasks.base import (
    BLOCK,
    IGNORE,
    SPLITS,
    Rows,
    Task,
    check,
    generate_splits,
    task_for,
)

__all__ = ["BLOCK", "IGNORE", "SPLITS", "Rows", "Task", "check", "generate_splits", "task_for"]
