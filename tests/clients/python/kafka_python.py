"""kafka-python, a client in pure Python."""

from contextlib import closing

import kafka
from cases import Adapter, Member, Numbered, Record, ThreadMember, TopicExists, main
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import CommitFailedError, IllegalGenerationError, RebalanceInProgressError, TopicAlreadyExistsError
from protocol import STEP_SECONDS, wait_until

REBALANCING = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError)

#: Not 100: a poll that times out just when the topic's metadata arrives, 100 ms after the first join, makes
#: kafka-python 3.0.12 forget the assignment of the second join for ever.
POLL_MS = 500

#: It guesses the broker's version from the ranges in ApiVersions and chooses its features by that; a gap in the table would make it
#: choose an old one (kafka-python 2279).
LEAST_GUESS = (4, 0)


class KafkaPython(Adapter):
    name = "kafka-python"
    null_headers = False

    def version(self) -> str:
        return kafka.__version__

    def admin(self) -> closing:
        """A new one each time: it does not connect again after a restart of the broker (NodeNotReadyError)."""
        return closing(KafkaAdminClient(bootstrap_servers=self.bootstrap))

    def consumer(self, group: str | None = None) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            session_timeout_ms=10_000,
        )

    def create_topic(self, topic: str, partitions: int) -> None:
        with self.admin() as admin:
            try:
                admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1}})
            except TopicAlreadyExistsError as error:
                raise TopicExists from error

    def partition_count(self, topic: str) -> int:
        with self.admin() as admin:
            return len(admin.describe_topics([topic])[0]["partitions"])

    def produce(self, topic: str, records: list[Record], compression: str = "none", by_key: bool = False) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap, acks="all", compression_type=None if compression == "none" else compression
        )
        try:
            futures = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    list(record.headers),
                    partition=None if by_key else record.partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(STEP_SECONDS)
            for future in futures:
                future.get(timeout=STEP_SECONDS)
        finally:
            producer.close()

    def read(self, topic: str, starts: dict[int, int]) -> list[Record]:
        consumer = self.consumer()
        try:
            places = {TopicPartition(topic, partition): start for partition, start in starts.items()}
            ends = consumer.end_offsets(list(places))
            consumer.assign(list(places))
            for place, start in places.items():
                consumer.seek(place, start)
            records: list[Record] = []

            def finished() -> bool:
                records.extend(taken(consumer))
                return all(consumer.position(place) >= end for place, end in ends.items())

            wait_until("the end of the topic", finished)
            return records
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        consumer = self.consumer()
        try:
            place = TopicPartition(topic, partition)
            found = consumer.offsets_for_times({place: timestamp})[place]
            return found.offset if found else None
        finally:
            consumer.close()

    def member(self, group: str, topic: str) -> Member:
        return KafkaPythonMember(self.consumer(group), topic)

    def consume(self, group: str, topic: str, count: int) -> list[Record]:
        consumer = self.consumer(group)
        try:
            consumer.subscribe([topic])
            records: list[Record] = []

            def enough() -> bool:
                records.extend(taken(consumer, count - len(records)))
                return len(records) >= count

            wait_until(f"{count} records", enough)
            consumer.commit({
                TopicPartition(topic, record.partition): OffsetAndMetadata(record.offset + 1, "", -1) for record in records
            })
            return records
        finally:
            consumer.close(autocommit=False)

    def produce_numbers(self, topic: str, partitions: int, numbers: Numbered) -> None:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True, linger_ms=5)
        guess = producer.config["api_version"]
        assert guess >= LEAST_GUESS, f"taken for Kafka {guess}"

        def sent(number: int) -> None:
            partition = number % partitions
            future = producer.send(topic, str(number).encode(), partition=partition)
            future.add_callback(lambda _: numbers.acknowledged[partition].append(number))
            future.add_errback(lambda error: numbers.failures.append(f"{number}: {error!r}"))

        number = 0
        while not numbers.stop.is_set():
            sent(number)
            number += 1
            numbers.pace(number)
        producer.flush(STEP_SECONDS)
        producer.close()


class KafkaPythonMember(ThreadMember, ConsumerRebalanceListener):
    def __init__(self, consumer: KafkaConsumer, topic: str) -> None:
        super().__init__()
        self.consumer = consumer
        consumer.subscribe([topic], listener=self)
        self.thread.start()

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.assignment = {place.partition for place in self.consumer.assignment()}

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.assignment = self.assignment - {place.partition for place in revoked}

    def consume(self) -> None:
        try:
            while not self.stopping.is_set():
                records = taken(self.consumer)
                if records:
                    self.records.extend(records)
                    commit_unless_rebalancing(self.consumer)
        finally:
            self.consumer.close(autocommit=False)


def commit_unless_rebalancing(consumer: KafkaConsumer) -> None:
    """A commit that a rebalance overtakes only means that the records come again."""
    try:
        consumer.commit()
    except REBALANCING:
        pass


def taken(consumer: KafkaConsumer, limit: int = 500) -> list[Record]:
    return [
        Record(
            value=record.value,
            key=record.key,
            partition=record.partition,
            headers=tuple(record.headers or ()),
            timestamp=record.timestamp,
            offset=record.offset,
        )
        for records in consumer.poll(timeout_ms=POLL_MS, max_records=limit).values()
        for record in records
    ]


if __name__ == "__main__":
    main(KafkaPython)
