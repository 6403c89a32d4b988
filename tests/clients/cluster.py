"""Several brokers on one directory, under control like a single one."""

import re
import shlex
import shutil
import time
import urllib.request
from pathlib import Path

from broker import Broker, BrokerDied

#: How long a broker may take until it leads what it is to lead.
READY_SECONDS = 60

ADMIN = re.compile(r"admin on (\S+)")
COMMAND = (
    "{binary} --data-dir {volume} --cluster-stand-in {stand_in} --broker-id {id} --shards 1 "
    "--listen 127.0.0.1:{{port}} --admin-listen 127.0.0.1:0 --heartbeat-listen 127.0.0.1:0"
)


class Cluster:
    """The one that is killed is the second: a client's bootstrap is the first, which most likely is the controller."""

    def __init__(self, binary: Path, directory: Path, count: int) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.directory = directory
        volume, stand_in = (shlex.quote(str(directory / name)) for name in ("data", "stand-in"))
        self.brokers = []
        for number in range(count):
            command = COMMAND.format(binary=shlex.quote(str(binary)), volume=volume, stand_in=stand_in, id=number)
            self.brokers.append(Broker(command, directory / f"broker-{number}"))

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        for broker in self.brokers:
            if not broker.alive():
                broker.start()
        for broker in self.brokers:
            wait_until_ready(broker)

    def alive(self) -> bool:
        return all(broker.alive() for broker in self.brokers)

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()

    def kill_and_restart(self) -> None:
        self.brokers[1].kill_and_restart()
        wait_until_ready(self.brokers[1])

    def restart_all(self) -> None:
        for broker in self.brokers:
            if code := broker.stop():
                raise BrokerDied(f"a broker ended with {code} after SIGTERM: {broker.log_tail()}")
            broker.start()
            wait_until_ready(broker)

    def stop(self) -> int:
        """SIGTERM for one after the other; the first exit code that is not 0."""
        codes = [broker.stop() for broker in self.brokers]
        return next((code for code in codes if code), 0)

    def log_tail(self) -> str:
        return " || ".join(broker.log_tail() for broker in self.brokers)


def wait_until_ready(broker: Broker) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not is_ready(broker):
        if not broker.alive() or time.monotonic() > deadline:
            raise BrokerDied(f"a broker is not ready after {READY_SECONDS} s: {broker.log_tail()}")
        time.sleep(0.02)


def is_ready(broker: Broker) -> bool:
    # The log has those before a restart, too.
    addresses = ADMIN.findall(broker.log_file.read_text(errors="replace"))
    try:
        with urllib.request.urlopen(f"http://{addresses[-1]}/readyz", timeout=5) as answer:
            return answer.status == 200
    except (IndexError, OSError):
        return False
