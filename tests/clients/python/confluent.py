"""confluent-kafka: librdkafka from Python."""

import confluent_kafka
from cases import Adapter, Member, Numbered, Record, ThreadMember, TopicExists, main
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from protocol import STEP_SECONDS, wait_until


class ConfluentKafka(Adapter):
    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def version(self) -> str:
        return f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"

    def consumer(self, group: str | None = None) -> Consumer:
        return Consumer({
            "bootstrap.servers": self.bootstrap,
            "group.id": group or "no-group",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 10_000,
        })

    def create_topic(self, topic: str, partitions: int) -> None:
        future = self.admin.create_topics([NewTopic(topic, partitions, 1)], operation_timeout=STEP_SECONDS)[topic]
        try:
            future.result(STEP_SECONDS)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicExists from error
            raise

    def partition_count(self, topic: str) -> int:
        return len(self.admin.list_topics(topic, timeout=STEP_SECONDS).topics[topic].partitions)

    def produce(self, topic: str, records: list[Record], compression: str = "none", by_key: bool = False) -> None:
        producer = Producer({
            "bootstrap.servers": self.bootstrap,
            "acks": "all",
            "compression.type": compression,
            "enable.idempotence": by_key,
        })
        errors = []
        for record in records:
            place = {} if by_key else {"partition": record.partition}
            if record.timestamp is not None:
                place["timestamp"] = record.timestamp
            producer.produce(
                topic,
                record.value,
                record.key,
                headers=list(record.headers) or None,
                on_delivery=lambda error, _: error and errors.append(error),
                **place,
            )
            producer.poll(0)
        if producer.flush(STEP_SECONDS):
            raise TimeoutError("not all records were acknowledged")
        if errors:
            raise KafkaException(errors[0])

    def read(self, topic: str, starts: dict[int, int]) -> list[Record]:
        consumer = self.consumer()
        try:
            ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), STEP_SECONDS)[1] for p in starts}
            consumer.assign([TopicPartition(topic, partition, start) for partition, start in starts.items()])
            records: list[Record] = []
            positions = dict(starts)

            def finished() -> bool:
                for record in taken(consumer):
                    records.append(record)
                    positions[record.partition] = record.offset + 1
                return all(positions[partition] >= end for partition, end in ends.items())

            wait_until("the end of the topic", finished)
            return records
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        consumer = self.consumer()
        try:
            found = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp)], STEP_SECONDS)[0]
            if found.error:
                raise KafkaException(found.error)
            return found.offset if found.offset >= 0 else None
        finally:
            consumer.close()

    def member(self, group: str, topic: str) -> Member:
        return ConfluentMember(self.consumer(group), topic)

    def consume(self, group: str, topic: str, count: int) -> list[Record]:
        consumer = self.consumer(group)
        try:
            consumer.subscribe([topic])
            records: list[Record] = []

            def enough() -> bool:
                records.extend(taken(consumer, min(100, count - len(records))))
                return len(records) >= count

            wait_until(f"{count} records", enough)
            positions = {record.partition: record.offset + 1 for record in records}
            committed = consumer.commit(offsets=[TopicPartition(topic, p, o) for p, o in positions.items()], asynchronous=False)
            for partition in committed:
                if partition.error:
                    raise KafkaException(partition.error)
            return records
        finally:
            consumer.close()

    def produce_numbers(self, topic: str, partitions: int, numbers: Numbered) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5})

        def delivered(number: int):
            def callback(error, message) -> None:
                if error:
                    numbers.failures.append(f"{number}: {error}")
                else:
                    numbers.acknowledged[message.partition()].append(number)

            return callback

        number = 0
        while not numbers.stop.is_set():
            producer.produce(topic, str(number), partition=number % partitions, on_delivery=delivered(number))
            producer.poll(0)
            number += 1
            numbers.pace(number)
        if producer.flush(STEP_SECONDS):
            raise TimeoutError("not all records were acknowledged")


class ConfluentMember(ThreadMember):
    def __init__(self, consumer: Consumer, topic: str) -> None:
        super().__init__()
        self.consumer = consumer
        consumer.subscribe([topic], on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.revoked)
        self.thread.start()

    def assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignment = {partition.partition for partition in partitions}

    def revoked(self, *_: object) -> None:
        self.assignment = set()

    def consume(self) -> None:
        try:
            while not self.stopping.is_set():
                records = taken(self.consumer)
                if records:
                    self.records.extend(records)
                    commit_unless_rebalancing(self.consumer)
        finally:
            self.consumer.close()


def commit_unless_rebalancing(consumer: Consumer) -> None:
    """A commit that a rebalance overtakes only means that the records come again."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() not in (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError._NO_OFFSET):
            raise


def taken(consumer: Consumer, limit: int = 500) -> list[Record]:
    records = []
    for message in consumer.consume(limit, timeout=0.1):
        if message.error():
            # Errors that librdkafka retries by itself (a broker that restarts) are not the case's concern.
            if message.error().fatal():
                raise KafkaException(message.error())
            continue
        records.append(
            Record(
                value=message.value(),
                key=message.key(),
                partition=message.partition(),
                headers=tuple(message.headers() or ()),
                timestamp=message.timestamp()[1],
                offset=message.offset(),
            )
        )
    return records


if __name__ == "__main__":
    main(ConfluentKafka)
