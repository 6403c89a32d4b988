"""A broker process under control: started, killed with SIGKILL, restarted on its data and port, stopped."""

import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

#: How long a broker may take until it answers on its port, and to stop after SIGTERM.
START_SECONDS = 60
STOP_SECONDS = 60

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LISTENING = re.compile(r"listening on \S+:(\d+) \(Kafka\)")


class BrokerDied(Exception):
    pass


class Broker:
    """`command` is a template with {dir} and {port}; port 0 is for the broker to choose, and read from its log."""

    def __init__(self, command: str, directory: Path, chooses_port: bool = True) -> None:
        self.command = command
        self.directory = directory
        self.chooses_port = chooses_port
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.log_file = directory / "broker.log"
        self.port = 0 if chooses_port else free_port()
        self.process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = self.command.format(dir=shlex.quote(str(self.directory / "data")), port=self.port)
        self.process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        announced = threading.Event()
        threading.Thread(target=self._copy_log, args=(self.process, announced), daemon=True).start()
        deadline = time.monotonic() + START_SECONDS
        while not (announced.wait(0.01) and answers(self.port)):
            if self.process.poll() is not None:
                raise BrokerDied(f"the broker ended with {self.process.returncode} at start: {self.log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerDied(f"the broker did not answer within {START_SECONDS} s: {self.log_tail()}")

    def _copy_log(self, process: subprocess.Popen[str], announced: threading.Event) -> None:
        """Copies the log to its file, and learns the port from the line that names it."""
        with self.log_file.open("a") as log:
            for line in process.stdout:
                plain = COLOUR.sub("", line)
                log.write(plain)
                log.flush()
                if match := LISTENING.search(plain):
                    self.port = int(match[1])
                    announced.set()

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_and_restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> int:
        """SIGTERM; the exit code, negative for a signal."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerDied(f"the broker did not stop within {STOP_SECONDS} s after SIGTERM") from None

    def log_tail(self, lines: int = 8) -> str:
        if not self.log_file.exists():
            return "(no log)"
        return " | ".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
