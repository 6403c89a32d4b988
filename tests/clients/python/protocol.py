"""What a client program and the driver say to each other: lines on standard input and output (see tests/README.md)."""

import sys
import threading
import time
import traceback
from collections.abc import Callable

#: How long any single wait of a case may take before the case fails.
STEP_SECONDS = 60


class NotSupported(Exception):
    """The client has no way to do this; the reason goes into the table."""


def say(line: str) -> None:
    print(" ".join(line.split()), flush=True)


def kill_broker() -> None:
    """Asks the driver to kill -9 the broker and to start it again; returns when it answers."""
    ask("KILL")


def restart_brokers() -> None:
    """Asks the driver to restart one broker after the other; returns when all are ready."""
    ask("RESTART")


def ask(what: str) -> None:
    say(what)
    answer = sys.stdin.readline().strip()
    if answer != "RESTARTED":
        raise RuntimeError(f"the driver answered {answer!r} instead of RESTARTED")


def wait_until(what: str, condition: Callable[[], bool], seconds: float = STEP_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for: {what}")
        time.sleep(0.01)


def run(version: str, cases: dict[str, Callable[[], str]], names: list[str]) -> None:
    """Runs the named cases in order; each returns the detail of its result line."""
    say(f"VERSION {version}")
    for name in names:
        try:
            result = f"PASS {cases[name]()}"
        except NotSupported as reason:
            result = f"SKIP {reason}"
        except Exception as error:  # noqa: BLE001 - whatever a client throws fails this one case
            traceback.print_exc()
            result = f"FAIL {type(error).__name__}: {error}"
        say(f"CASE {name} {result}")
    # A client's own background threads must not keep the process alive.
    sys.stdout.flush()
    if threading.active_count() > 1:
        import os

        os._exit(0)
