"""SIGTERM and SIGINT as a flag that a loop looks at between steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from effstate.cohorts import Interrupted


class StopFlag:
    """Set by a signal; ``check`` raises Interrupted once it is."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def check(self) -> None:
        """Raise Interrupted if a signal came."""
        if self.signal_number is not None:
            raise Interrupted(self.signal_number)


@contextlib.contextmanager
def stop_flag() -> Iterator[StopFlag]:
    """A StopFlag that SIGTERM and SIGINT set while the block runs (main thread only)."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def note(number: int, frame: object) -> None:
        if flag:
            # A second signal means: do not wait for the end of the step.
            raise KeyboardInterrupt
        flag.signal_number = number

    previous = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
