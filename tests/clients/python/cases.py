"""The case list, written once for every client that Python drives. A client is an `Adapter`."""

import random
import secrets
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field

from protocol import NotSupported, kill_broker, run, wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    offset: int = -1


class TopicExists(Exception):
    """What `Adapter.create_topic` raises when the broker says TOPIC_ALREADY_EXISTS."""


class Member(ABC):
    """A group member that consumes and commits in the background until it is stopped."""

    def __init__(self) -> None:
        self.assignment: set[int] = set()
        self.records: list[Record] = []
        self.error: BaseException | None = None

    def check(self) -> None:
        if self.error:
            raise self.error

    @abstractmethod
    def stop(self) -> None:
        """Commits what was delivered and leaves the group."""


class ThreadMember(Member):
    """A member for clients with a blocking poll: `consume` runs in a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.consume()
        except BaseException as error:  # noqa: BLE001 - handed to the case by `check`
            self.error = error

    @abstractmethod
    def consume(self) -> None:
        """Polls, records, commits until `stopping`, then leaves."""

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join()
        self.check()


@dataclass
class Numbered:
    """Numbers sent by a producer that goes on until `stop`, and what became of them."""

    stop: threading.Event = field(default_factory=threading.Event)
    acknowledged: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)

    def count(self) -> int:
        return sum(len(numbers) for numbers in list(self.acknowledged.values()))

    def pace(self, number: int) -> None:
        """About two thousand records a second, so that the topic stays small enough to read back."""
        if number % 10 == 0:
            time.sleep(0.005)


class Adapter(ABC):
    """One client library."""

    name: str
    #: What the client's interface cannot express; the case leaves it out and its detail says so.
    null_headers = True
    empty_values = True
    #: Cases that the client has no means for, with the reason.
    not_supported: dict[str, str] = {}

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def create_topic(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def partition_count(self, topic: str) -> int: ...

    @abstractmethod
    def produce(self, topic: str, records: list[Record], compression: str = "none", by_key: bool = False) -> None:
        """Sends with acks=all and returns when all are acknowledged.

        `by_key`: the client's partitioner decides, and the producer is idempotent, since only that keeps the order when
        a batch has to be sent again.
        """

    @abstractmethod
    def read(self, topic: str, starts: dict[int, int]) -> list[Record]:
        """Reads from the given offsets to the present end, without a group."""

    @abstractmethod
    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None: ...

    @abstractmethod
    def member(self, group: str, topic: str) -> Member: ...

    @abstractmethod
    def consume(self, group: str, topic: str, count: int) -> list[Record]:
        """Joins the group, takes `count` records, commits exactly those, and leaves."""

    @abstractmethod
    def produce_numbers(self, topic: str, partitions: int, numbers: Numbered) -> None:
        """Idempotent, acks=all: number n as text to partition n % partitions, until told to stop; then flushes."""


class Cases:
    def __init__(self, client: Adapter) -> None:
        self.client = client

    def topic(self, case: str, partitions: int) -> str:
        name = self.name(case)
        self.client.create_topic(name, partitions)
        return name

    def name(self, case: str) -> str:
        return f"{self.client.name}-{case}-{secrets.token_hex(3)}"

    def read_all(self, topic: str, partitions: int) -> list[Record]:
        return self.client.read(topic, dict.fromkeys(range(partitions), 0))

    # -- the cases ---------------------------------------------------------------------------------------------

    def create_topic(self) -> str:
        topic = self.topic("create", 3)
        wait_until("three partitions in the metadata", lambda: self.client.partition_count(topic) == 3)
        try:
            self.client.create_topic(topic, 3)
        except TopicExists:
            return "3 partitions; a second time: TOPIC_ALREADY_EXISTS"
        raise AssertionError("creating the topic a second time was accepted")

    def compression(self, codec: str) -> str:
        topic = self.topic(f"produce-{codec}", 3)
        generator = random.Random(codec)
        sent = [
            Record(
                key=f"key-{number}".encode(),
                value=f"{number:06} ".encode() + b"words that repeat " * generator.randrange(20) + generator.randbytes(40).hex().encode(),
                partition=number % 3,
            )
            for number in range(1500)
        ]
        self.client.produce(topic, sent, compression=codec)
        received = self.read_all(topic, 3)
        expect_equal("records", sorted(contents(received)), sorted(contents(sent)))
        for partition in range(3):
            in_order("offsets", [record.offset for record in received if record.partition == partition])
        return f"{len(sent)} records"

    def keyed(self) -> str:
        topic = self.topic("keyed", 4)
        keys = [f"key-{number}".encode() for number in range(20)]
        sent = [Record(key=key, value=str(turn).encode()) for turn in range(50) for key in keys]
        self.client.produce(topic, sent, by_key=True)
        turns, places = defaultdict(list), defaultdict(set)
        for record in self.read_all(topic, 4):
            turns[record.key].append(int(record.value))
            places[record.key].add(record.partition)
        for key in keys:
            expect_equal(f"values of {key}", turns[key], list(range(50)))
            expect_equal(f"number of partitions of {key}", len(places[key]), 1)
        used = len(set().union(*places.values()))
        assert used > 1, "all keys went to one partition"
        return f"20 keys on {used} of 4 partitions"

    def headers(self) -> str:
        topic = self.topic("headers", 1)
        sent = [
            Record(value=b"several", headers=(("a", b"1"), ("b", bytes(range(128, 256))), ("a", b"2"), ("empty", b""))),
            Record(value=b"none"),
            Record(value=b"unicode", headers=(("schlüssel", "größe".encode()),)),
        ]
        if self.client.null_headers:
            sent.append(Record(value=b"null", headers=(("null", None),)))
        self.client.produce(topic, sent)
        received = self.read_all(topic, 1)
        expect_equal("headers", [(r.value, r.headers) for r in received], [(r.value, r.headers) for r in sent])
        return "repeated, empty, binary, unicode" + (", null" if self.client.null_headers else "")

    def tombstones(self) -> str:
        topic = self.topic("tombstones", 1)
        sent = [Record(key=b"k", value=b"v"), Record(key=b"k", value=None)]
        if self.client.empty_values:
            sent.append(Record(key=b"k", value=b""))
        sent.append(Record(key=b"other", value=None))
        self.client.produce(topic, sent)
        received = self.read_all(topic, 1)
        expect_equal("records", [(r.key, r.value) for r in received], [(r.key, r.value) for r in sent])
        return "null values stay null"

    def group_rebalance(self) -> str:
        topic, group = self.topic("rebalance", 4), self.name("group")
        produced = 0

        def produce(count: int) -> None:
            nonlocal produced
            numbers = range(produced, produced + count)
            self.client.produce(topic, [Record(value=str(n).encode(), partition=n % 4) for n in numbers])
            produced += count

        members: list[Member] = []

        def seen() -> set[int]:
            for member in members:
                member.check()
            return {int(record.value) for member in members for record in list(member.records)}

        def all_arrived() -> None:
            wait_until(f"all {produced} records", lambda: len(seen()) == produced)

        def join() -> Member:
            members.append(self.client.member(group, topic))
            return members[-1]

        everything = {0, 1, 2, 3}
        produce(200)
        first = join()
        wait_until("the first member to get all partitions", lambda: seen() is not None and first.assignment == everything)
        all_arrived()
        second = join()
        wait_until(
            "both members to share the partitions",
            lambda: seen() is not None
            and bool(first.assignment and second.assignment)
            and not first.assignment & second.assignment
            and first.assignment | second.assignment == everything,
        )
        shared = f"{len(first.assignment)}+{len(second.assignment)}"
        produce(200)
        all_arrived()
        assert second.records, "the second member consumed nothing"
        second.stop()
        wait_until("the first member to get all partitions back", lambda: seen() is not None and first.assignment == everything)
        produce(200)
        all_arrived()
        first.stop()
        delivered = sum(len(member.records) for member in members)
        produce(40)
        third = join()
        wait_until("the third member to get the newest records", lambda: seen() is not None and len(third.records) >= 40)
        third.stop()
        expect_equal("what is behind the committed offsets", sorted(int(r.value) for r in third.records), list(range(600, 640)))
        return f"4, then {shared}, then 4 partitions; {delivered - 600} redelivered"

    def seek_by_time(self) -> str:
        topic = self.topic("time", 2)
        base = int(time.time() * 1000) - 100_000
        sent = [Record(value=str(n).encode(), partition=p, timestamp=base + n * 1000) for n in range(100) for p in (0, 1)]
        self.client.produce(topic, sent)
        for timestamp, expected in ((base + 50_000, 50), (base + 49_500, 50), (base - 10_000, 0), (base + 99_001, None)):
            for partition in (0, 1):
                found = self.client.offset_for_time(topic, partition, timestamp)
                expect_equal(f"offset {timestamp - base} ms after the first record", found, expected)
        received = self.client.read(topic, {0: 50, 1: 50})
        expect_equal("records from there", sorted(int(r.value) for r in received), sorted([*range(50, 100)] * 2))
        expect_equal("timestamps", {r.timestamp - int(r.value) * 1000 for r in received}, {base})
        return "exact, between, before and after all"

    def commit_resume(self) -> str:
        topic, group = self.topic("resume", 2), self.name("group")

        def produce(first: int, end: int) -> None:
            self.client.produce(topic, [Record(value=str(n).encode(), partition=n % 2) for n in range(first, end)])

        produce(0, 1000)
        before = self.client.consume(group, topic, 400)
        produce(1000, 1200)
        kill_broker()
        produce(1200, 1400)
        after = self.client.consume(group, topic, 1400 - len(before))
        numbers = [int(record.value) for record in before + after]
        expect_equal("numbers consumed before and after", sorted(numbers), list(range(1400)))
        for partition in (0, 1):
            offsets = [record.offset for record in before + after if record.partition == partition]
            expect_equal(f"offsets of partition {partition}", offsets, list(range(700)))
        return f"{len(before)} before, {len(after)} after the restart"

    def idempotent_restart(self) -> str:
        partitions = 3
        topic = self.topic("idempotent", partitions)
        numbers = Numbered()
        failure: list[BaseException] = []

        def produce() -> None:
            try:
                self.client.produce_numbers(topic, partitions, numbers)
            except BaseException as error:  # noqa: BLE001 - handed to the case
                failure.append(error)

        producer = threading.Thread(target=produce, daemon=True)
        producer.start()

        def acknowledged(more: int) -> None:
            goal = numbers.count() + more
            wait_until(f"{more} more acknowledgements", lambda: bool(failure) or numbers.count() >= goal)
            if failure:
                raise failure[0]

        for _ in range(2):
            acknowledged(500)
            kill_broker()
        acknowledged(500)
        numbers.stop.set()
        wait_until("the producer to flush", lambda: not producer.is_alive())
        if failure:
            raise failure[0]
        expect_equal("failed sends", numbers.failures[:3], [])
        self.verify_numbers(topic, partitions, numbers.acknowledged)
        return f"{numbers.count()} acknowledged, each there once and in order"

    def verify_numbers(self, topic: str, partitions: int, acknowledged: dict[int, list[int]]) -> None:
        stored = defaultdict(list)
        for record in self.read_all(topic, partitions):
            stored[record.partition].append(int(record.value))
        for partition in range(partitions):
            in_order(f"numbers in partition {partition}", stored[partition])
            lost = set(acknowledged[partition]) - set(stored[partition])
            assert not lost, f"{len(lost)} acknowledged records lost in partition {partition}, such as {min(lost)}"


def contents(records: list[Record]) -> list[tuple[int, bytes, bytes]]:
    return [(record.partition, record.key, record.value) for record in records]


def expect_equal(what: str, found: object, expected: object) -> None:
    if found == expected:
        return
    found_text, expected_text = repr(found), repr(expected)
    raise AssertionError(f"{what}: found {found_text[:300]} where {expected_text[:300]} was expected")


def in_order(what: str, numbers: list[int]) -> None:
    for earlier, later in zip(numbers, numbers[1:], strict=False):
        assert earlier < later, f"{what}: {later} comes after {earlier}"


def main(adapter: type[Adapter], written_for: type[Cases] = Cases) -> None:
    """`PROGRAM BOOTSTRAP CASE…`; `written_for` replaces cases that the client must do in its own way."""
    client = adapter(sys.argv[1])
    cases = written_for(client)
    table = {f"produce_{codec}": lambda codec=codec: cases.compression(codec) for codec in CODECS}
    for name in ("create_topic", "keyed", "headers", "tombstones", "group_rebalance", "seek_by_time", "commit_resume", "idempotent_restart"):
        reason = client.not_supported.get(name)
        table[name] = unsupported(reason) if reason else getattr(cases, name)
    run(client.version(), table, sys.argv[2:])


def unsupported(reason: str):
    def case() -> str:
        raise NotSupported(reason)

    return case
