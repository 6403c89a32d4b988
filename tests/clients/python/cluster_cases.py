"""confluent-kafka with several brokers: an idempotent producer and a group go on, whatever happens to one of them."""

import sys
import threading
import time
import uuid
from collections.abc import Callable

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from protocol import STEP_SECONDS, kill_broker, restart_brokers, run, wait_until

PARTITIONS = 6
MEMBERS = 2
#: Between two records.
PACE_SECONDS = 0.002
#: Acknowledged and consumed before it begins, and after it is over.
RECORDS_AROUND = 300


class Load:
    """Record n of a partition is to be at its offset n. What a group has read twice, after a rebalance, has to be the same, and it
    begins behind what a member has committed before: offsets that are lost show.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = f"cluster-{uuid.uuid4().hex[:8]}"
        self.sent = [0] * PARTITIONS
        self.acknowledged = [0] * PARTITIONS
        self.read: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        #: The highest that a member was told is committed.
        self.committed = [0] * PARTITIONS
        self.wrong: list[str] = []
        self.longest_gap = 0.0
        self.stop_producing = threading.Event()
        self.stop_consuming = threading.Event()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(STEP_SECONDS)
        self.threads = [threading.Thread(target=self.guarded, args=(self.produce,))]
        self.threads += [threading.Thread(target=self.guarded, args=(self.consume,)) for _ in range(MEMBERS)]
        for thread in self.threads:
            thread.start()

    def guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the case has to hear of it
            self.wrong.append(repr(error))

    def fatal(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            self.wrong.append(str(error))

    def produce(self) -> None:
        producer = Producer({
            "bootstrap.servers": self.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "error_cb": self.fatal,
        })
        last = [time.monotonic()] * PARTITIONS

        def delivered(error: confluent_kafka.KafkaError | None, message: Message) -> None:
            if error:
                self.wrong.append(f"not acknowledged: {error}")
                return
            partition, now = message.partition(), time.monotonic()
            if int(message.value()) != message.offset():
                self.wrong.append(f"partition {partition}: {message.value()!r} acknowledged at {message.offset()}")
            self.acknowledged[partition] += 1
            self.longest_gap = max(self.longest_gap, now - last[partition])
            last[partition] = now

        while not self.stop_producing.is_set():
            for partition in range(PARTITIONS):
                producer.produce(self.topic, str(self.sent[partition]), partition=partition, on_delivery=delivered)
                self.sent[partition] += 1
                producer.poll(PACE_SECONDS)
        if producer.flush(STEP_SECONDS):
            self.wrong.append("not all records were acknowledged at the end")

    def consume(self) -> None:
        floors: dict[int, int] = {}

        def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
            floors.update({one.partition: self.committed[one.partition] for one in partitions})

        def committed(error: confluent_kafka.KafkaError | None, partitions: list[TopicPartition]) -> None:
            for one in [] if error else partitions:
                if not one.error:
                    self.committed[one.partition] = max(self.committed[one.partition], one.offset)

        consumer = Consumer({
            "bootstrap.servers": self.bootstrap,
            "group.id": self.topic,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 6_000,
            "error_cb": self.fatal,
            "on_commit": committed,
        })
        consumer.subscribe([self.topic], on_assign=assigned)
        while not self.stop_consuming.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                if message.error().retriable():
                    continue
                raise KafkaException(message.error())
            partition, offset, number = message.partition(), message.offset(), int(message.value())
            if offset < floors.pop(partition, 0):
                self.wrong.append(f"partition {partition}: the group begins at {offset}, behind what was committed")
            if number != offset:
                self.wrong.append(f"partition {partition}: record {number} is at offset {offset}")
            self.read[partition][offset] = number
        consumer.close()

    def wait_for_more(self) -> None:
        """Until each partition has acknowledged more, and the group has read what it has."""
        goals = [count + RECORDS_AROUND // PARTITIONS for count in self.acknowledged]

        def reached() -> bool:
            self.check()
            pairs = zip(goals, self.acknowledged, self.read, strict=True)
            return all(done >= goal and len(read) >= goal for goal, done, read in pairs)

        wait_until("producer and group go on", reached)

    def check(self) -> None:
        if self.wrong:
            raise AssertionError("; ".join(self.wrong[:5]))

    def finish(self) -> str:
        self.stop_producing.set()
        self.threads[0].join()
        wait_until("the group has everything", lambda: all(map(self.complete, self.acknowledged, self.read)))
        self.stop_consuming.set()
        for thread in self.threads:
            thread.join()
        self.check()
        self.check_committed()
        assert self.acknowledged == self.sent, f"{self.acknowledged} of {self.sent} acknowledged"
        return f"{sum(self.sent)} records, longest time without an acknowledgement {self.longest_gap:.2f} s"

    def check_committed(self) -> None:
        """What the coordinator has, against what members were told."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.topic})
        partitions = [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]
        found = [one.offset for one in consumer.committed(partitions, STEP_SECONDS)]
        consumer.close()
        assert any(self.committed), "something was committed"
        pairs = zip(self.committed, found, self.acknowledged, strict=True)
        assert all(told <= offset <= end for told, offset, end in pairs), f"told {self.committed}, found {found}"

    @staticmethod
    def complete(acknowledged: int, read: dict[int, int]) -> bool:
        return len(read) >= acknowledged


def case(bootstrap: str, happen: Callable[[], None]) -> Callable[[], str]:
    def with_load() -> str:
        load = Load(bootstrap)
        try:
            load.wait_for_more()
            happen()
            load.wait_for_more()
            return load.finish()
        finally:
            load.stop_producing.set()
            load.stop_consuming.set()

    return with_load


if __name__ == "__main__":
    servers, *names = sys.argv[1:]
    version = f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"
    cases = {"killed_broker": case(servers, kill_broker), "rolling_restart": case(servers, restart_brokers)}
    run(version, cases, names)
