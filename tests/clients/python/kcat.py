"""kcat: each operation is a run of the program."""

import contextlib
import re
import subprocess
import threading
import time
from collections import deque

from cases import Adapter, Cases, Member, Numbered, Record, expect_equal, main
from confluent import ConfluentKafka
from protocol import STEP_SECONDS, wait_until

#: One record on standard output: numbers, then key, value and headers as they are.
FORMAT = r"%p %o %T %K %S\n%k%s%h\x1e\n"
END = b"\x1e\n"


class Kcat(Adapter):
    name = "kcat"
    empty_values = False  # -Z makes every empty value of a run null

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        # kcat has no admin calls: topics with several partitions are made by another client.
        self.admin = ConfluentKafka(bootstrap)

    def version(self) -> str:
        said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
        return re.sub(r".*Version (\S+) .*librdkafka (\S+) .*", r"\1 (librdkafka \2)", said, flags=re.DOTALL)

    def command(self, *arguments: str | bytes) -> list[str | bytes]:
        return ["kcat", "-b", self.bootstrap, "-m", str(STEP_SECONDS), *arguments]

    def run(self, *arguments: str | bytes, input: bytes | None = None) -> bytes:
        done = subprocess.run(self.command(*arguments), input=input, capture_output=True, timeout=STEP_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"kcat ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
        return done.stdout

    def create_topic(self, topic: str, partitions: int) -> None:
        self.admin.create_topic(topic, partitions)

    def partition_count(self, topic: str) -> int:
        return len(re.findall(r"^    partition ", self.run("-L", "-t", topic).decode(), re.MULTILINE))

    def produce(self, topic: str, records: list[Record], compression: str = "none", by_key: bool = False) -> None:
        """One run for all records that share the options that a run has."""
        runs: dict[tuple, list[Record]] = {}
        for record in records:
            place = -1 if by_key else record.partition
            runs.setdefault((place, record.headers, record.value is None), []).append(record)
        for (partition, headers, null), together in runs.items():
            options = ["-P", "-t", topic, "-p", str(partition), "-z", compression, "-X", "acks=all"]
            options += ["-X", f"enable.idempotence={str(by_key).lower()}"]
            if null:
                options.append("-Z")
            for name, value in headers:
                options += ["-H", name.encode() + (b"" if value is None else b"=" + value)]
            if together[0].key is not None:
                options += ["-K", "\t"]
                lines = [record.key + b"\t" + (record.value or b"") for record in together]
            else:
                lines = [record.value for record in together]
            self.run(*options, input=b"\n".join(lines))

    def read(self, topic: str, starts: dict[int, int]) -> list[Record]:
        records = []
        for partition, start in starts.items():
            records += parsed(self.run("-C", "-t", topic, "-p", str(partition), "-o", str(start), "-e", "-q", "-f", FORMAT))
        return records

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        said = self.run("-Q", "-t", f"{topic}:{partition}:{timestamp}").decode()
        offset = int(re.search(r"offset (-?\d+)", said)[1])
        return offset if offset >= 0 else None

    def group_command(self, group: str, topic: str, *options: str) -> list[str | bytes]:
        quick = ["-X", "heartbeat.interval.ms=300", "-X", "auto.commit.interval.ms=100", "-X", "auto.offset.reset=earliest"]
        return self.command("-u", "-f", FORMAT, *quick, *options, "-G", group, topic)

    def member(self, group: str, topic: str) -> Member:
        return KcatMember(self.group_command(group, topic))

    def consume(self, group: str, topic: str, count: int) -> list[Record]:
        done = subprocess.run(
            self.group_command(group, topic, "-q", "-c", str(count)), capture_output=True, timeout=STEP_SECONDS, check=True
        )
        return parsed(done.stdout)

    def produce_numbers(self, topic: str, partitions: int, numbers: Numbered) -> None:
        """kcat ends by itself when its only broker is down: then the next number starts the next run."""
        runs = [self.numbered_run(topic, partition, numbers) for partition in range(partitions)]
        number = 0
        while not numbers.stop.is_set():
            partition = number % partitions
            if not runs[partition].send(number):
                runs[partition].finish()
                runs[partition] = self.numbered_run(topic, partition, numbers)
                continue
            number += 1
            numbers.pace(number)
        for run in runs:
            run.finish()

    def numbered_run(self, topic: str, partition: int, numbers: Numbered) -> "NumberedRun":
        options = ("-P", "-t", topic, "-p", str(partition), "-vvv", "-X", "enable.idempotence=true", "-X", "linger.ms=5")
        return NumberedRun(self.command(*options), numbers.acknowledged[partition])


class NumberedRun:
    """A run that says on standard error when a record was delivered; that happens in the order of sending."""

    def __init__(self, command: list[str | bytes], acknowledged: list[int]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        self.acknowledged = acknowledged
        self.sent: deque[int] = deque()
        self.follower = threading.Thread(target=self.follow, daemon=True)
        self.follower.start()

    def follow(self) -> None:
        for line in self.process.stderr:
            if b"Message delivered" in line:
                self.acknowledged.append(self.sent.popleft())

    def send(self, number: int) -> bool:
        self.sent.append(number)
        try:
            self.process.stdin.write(f"{number}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def finish(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(STEP_SECONDS)
        self.follower.join()


class KcatMember(Member):
    def __init__(self, command: list[str | bytes]) -> None:
        super().__init__()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.follow_records, self.follow_assignment)]
        for thread in self.threads:
            thread.start()

    def follow_records(self) -> None:
        pending = b""
        while read := self.process.stdout.read1():
            complete, end, pending = (pending + read).rpartition(END)
            self.records += parsed(complete + end)

    def follow_assignment(self) -> None:
        for line in self.process.stderr:
            if b"assigned:" in line:
                self.assignment = {int(number) for number in re.findall(rb"\[(\d+)\]", line)}
            elif b"revoked:" in line:
                self.assignment = set()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(STEP_SECONDS)
        for thread in self.threads:
            thread.join()


class KcatCases(Cases):
    def create_topic(self) -> str:
        """No admin calls: the first record creates the topic."""
        topic = self.name("create")
        self.client.produce(topic, [Record(value=b"first", partition=-1)])
        expect_equal("records", [record.value for record in self.read_all(topic, 1)], [b"first"])
        return f"created by the first record, {self.client.partition_count(topic)} partition(s)"

    def seek_by_time(self) -> str:
        """kcat cannot set a timestamp: the middle is a moment between two runs."""
        topic = self.topic("time", 1)

        def produce(first: int, end: int) -> None:
            self.client.produce(topic, [Record(value=str(number).encode()) for number in range(first, end)])

        def next_millisecond() -> int:
            now = time.time_ns() // 1_000_000
            wait_until("the clock to move", lambda: time.time_ns() // 1_000_000 > now)
            return now + 1

        before = next_millisecond()
        produce(0, 50)
        middle = next_millisecond()
        produce(50, 100)
        after = next_millisecond()
        for timestamp, expected in ((before, 0), (middle, 50), (after, None)):
            expect_equal("offset by time", self.client.offset_for_time(topic, 0, timestamp), expected)
        output = self.client.run("-C", "-t", topic, "-p", "0", "-o", f"s@{middle}", "-e", "-q", "-f", FORMAT)
        expect_equal("records from there", [int(record.value) for record in parsed(output)], list(range(50, 100)))
        return "before, between and after all"


def parsed(output: bytes) -> list[Record]:
    records, position = [], 0
    while position < len(output):
        line_end = output.index(b"\n", position)
        partition, offset, timestamp, key_length, value_length = map(int, output[position:line_end].split())
        position = line_end + 1
        key, position = field(output, position, key_length)
        value, position = field(output, position, value_length)
        end = output.index(END, position)
        records.append(Record(value, key, partition, headers(output[position:end]), timestamp, offset))
        position = end + len(END)
    return records


def field(output: bytes, position: int, length: int) -> tuple[bytes | None, int]:
    """A length of −1 is null."""
    return (None, position) if length < 0 else (output[position : position + length], position + length)


def headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
    pairs = (pair.partition(b"=") for pair in text.split(b",") if pair)
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)


if __name__ == "__main__":
    main(Kcat, KcatCases)
