#!/usr/bin/env python3
"""Runs the client suites, each against a broker of its own, and checks the table in README.md. See tests/README.md."""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import table
from broker import Broker, BrokerDied
from catalogue import CLIENTS, REPOSITORY, TARGET, Client
from cluster import Cluster

#: No case needs a third of this on two busy cores.
CASE_SECONDS = 240

KAAS = "{binary} --data-dir {{dir}} --listen 127.0.0.1:{{port}} --admin-listen 127.0.0.1:0"


@dataclass
class Outcome:
    status: str  # PASS, FAIL or SKIP
    detail: str
    seconds: float


@dataclass
class Report:
    """What one suite found."""

    client: Client
    version: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    broker_failure: str = ""

    def count(self, status: str) -> int:
        return sum(outcome.status == status for outcome in self.outcomes.values())


class Suite:
    """One client's cases against one broker."""

    def __init__(self, client: Client, cases: list[str], options: argparse.Namespace) -> None:
        self.client = client
        self.waiting = list(cases)
        self.strict_stop = not options.broker
        self.directory = TARGET / "test-results" / client.name
        command = options.broker or KAAS.format(binary=options.kaas)
        if client.brokers > 1:
            self.broker = Cluster(options.kaas, self.directory, client.brokers)
        else:
            self.broker = Broker(command, self.directory, chooses_port=not options.broker)
        self.report = Report(client)

    def run(self) -> Report:
        try:
            self.broker.start()
            while self.waiting:
                if not self.broker.alive():
                    self.broker.start()
                self.run_client()
            self.stop_broker()
        except BrokerDied as died:
            self.report.broker_failure = str(died)
            for case in self.waiting:
                self.record(case, Outcome("FAIL", "the broker was gone", 0))
        finally:
            if self.broker.alive():
                self.broker.kill()
        if not self.report.count("FAIL") and not self.report.broker_failure:
            shutil.rmtree(self.directory / "data", ignore_errors=True)
        return self.report

    def stop_broker(self) -> None:
        code = self.broker.stop()
        if code != 0 and self.strict_stop:
            raise BrokerDied(f"the broker ended with {code} after SIGTERM: {self.broker.log_tail()}")

    def run_client(self) -> None:
        """Runs the waiting cases in one process; when it dies or hangs, the case at hand fails and the rest waits."""
        with (self.directory / "client.log").open("a") as log:
            process = subprocess.Popen(
                [*self.client.command, self.broker.bootstrap, *self.waiting],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.directory,
            )
            lines: queue.Queue[str | None] = queue.Queue()
            threading.Thread(target=read_lines, args=(process, lines), daemon=True).start()
            try:
                self.converse(process, lines)
            finally:
                process.kill()
                process.wait()

    def converse(self, process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        started = time.monotonic()
        while self.waiting:
            try:
                line = lines.get(timeout=max(0.0, started + CASE_SECONDS - time.monotonic()))
            except queue.Empty:
                return self.fail_current(f"no result within {CASE_SECONDS} s", started)
            if line is None:
                return self.fail_current(f"the client program ended with {process.wait()}: {self.client_log_tail()}", started)
            word, _, rest = line.partition(" ")
            if word == "VERSION":
                self.report.version = rest
            elif word in ("KILL", "RESTART"):
                if word == "KILL":
                    self.broker.kill_and_restart()
                else:
                    self.broker.restart_all()
                process.stdin.write("RESTARTED\n")
                process.stdin.flush()
            elif word == "CASE":
                case, status, detail = (rest + "  ").split(" ", 2)
                if case != self.waiting[0] or status not in ("PASS", "FAIL", "SKIP"):
                    return self.fail_current(f"the client program answered out of turn: {line}", started)
                outcome = Outcome(status, detail.strip(), time.monotonic() - started)
                if not self.broker.alive():
                    outcome = Outcome("FAIL", f"the broker died: {self.broker.log_tail()}", outcome.seconds)
                self.record(self.waiting.pop(0), outcome)
                if not self.broker.alive():
                    return None
                started = time.monotonic()
        return None

    def fail_current(self, reason: str, started: float) -> None:
        if not self.broker.alive():
            reason += f"; the broker died: {self.broker.log_tail()}"
        self.record(self.waiting.pop(0), Outcome("FAIL", reason, time.monotonic() - started))

    def record(self, case: str, outcome: Outcome) -> None:
        self.report.outcomes[case] = outcome
        say(f"{outcome.status:4}  {self.client.name:15}  {case:18}  {outcome.seconds:5.1f} s  {outcome.detail}")

    def client_log_tail(self) -> str:
        return " | ".join((self.directory / "client.log").read_text(errors="replace").splitlines()[-5:])


def read_lines(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    for line in process.stdout:
        lines.put(line.rstrip("\n"))
    lines.put(None)


def say(line: str) -> None:
    print(line, flush=True)


def options() -> argparse.Namespace:
    names = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--case", action="append", metavar="NAME", help="only this case (repeatable)")
    parser.add_argument("--jobs", type=int, default=2, help="suites at the same time (default 2)")
    parser.add_argument("--kaas", type=Path, default=TARGET / "debug" / "kaas", help="the broker (default target/debug/kaas)")
    parser.add_argument("--broker", metavar="COMMAND", help="another broker: a command with {dir} and {port} in it")
    chosen = parser.parse_args()
    if unknown := set(chosen.clients) - set(names):
        parser.error(f"no such client: {', '.join(unknown)}; there are {', '.join(names)}")
    return chosen


def main() -> int:
    chosen = options()
    clients = [client for client in CLIENTS if not chosen.clients or client.name in chosen.clients]
    suites = []
    for client in clients:
        cases = [case for case in client.cases if not chosen.case or case in chosen.case]
        if cases:
            suites.append(Suite(client, cases, chosen))
    with ThreadPoolExecutor(chosen.jobs) as pool:
        # The last one in the list takes longest.
        runs = [pool.submit(suite.run) for suite in reversed(suites)]
        reports = [run.result() for run in reversed(runs)]

    passed = sum(report.count("PASS") for report in reports)
    skipped = sum(report.count("SKIP") for report in reports)
    failures = [
        f"{report.client.name} {case}: {outcome.detail}"
        for report in reports
        for case, outcome in report.outcomes.items()
        if outcome.status == "FAIL"
    ]
    failures += [f"{report.client.name} broker: {report.broker_failure}" for report in reports if report.broker_failure]
    if not chosen.clients and not chosen.case and not chosen.broker:
        passed, failures = check_table(reports, passed, failures)

    if failures:
        say("\nFailures (logs under target/test-results/CLIENT/):")
        for failure in failures:
            say(f"  {failure}")
    say(f"\n{passed} passed, {len(failures)} failed, {skipped} skipped")
    return 1 if failures or not passed else 0


def check_table(reports: list[Report], passed: int, failures: list[str]) -> tuple[int, list[str]]:
    """The table in README.md is what the run produced: compared, or written with UPDATE=1."""
    found = table.render(reports)
    readme = REPOSITORY / "README.md"
    if os.environ.get("UPDATE") == "1":
        table.write(readme, found)
    if difference := table.difference(readme, found):
        return passed, [*failures, f"README.md: {difference}"]
    return passed + 1, failures


if __name__ == "__main__":
    sys.exit(main())
