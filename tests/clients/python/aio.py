"""aiokafka: an event loop in a thread of its own, so that the cases can call it as they call the others."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import CommitFailedError, IllegalGenerationError, RebalanceInProgressError, TopicAlreadyExistsError, for_code
from cases import Adapter, Member, Numbered, Record, TopicExists, main
from protocol import STEP_SECONDS

REBALANCING = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError)


class AioKafka(Adapter):
    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, STEP_SECONDS), self.loop).result()

    def version(self) -> str:
        return aiokafka.__version__

    def consumer(self, group: str | None = None) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            session_timeout_ms=10_000,
            metadata_max_age_ms=1000,
        )

    def create_topic(self, topic: str, partitions: int) -> None:
        self.wait(self._create_topic(topic, partitions))

    async def _create_topic(self, topic: str, partitions: int) -> None:
        async with admin(self.bootstrap) as client:
            response = await client.create_topics([NewTopic(topic, partitions, 1)])
            code = response.topic_errors[0][1]
            if code:
                error = for_code(code)
                raise TopicExists if error is TopicAlreadyExistsError else error(topic)

    def partition_count(self, topic: str) -> int:
        return self.wait(self._partition_count(topic))

    async def _partition_count(self, topic: str) -> int:
        async with admin(self.bootstrap) as client:
            return len((await client.describe_topics([topic]))[0]["partitions"])

    def produce(self, topic: str, records: list[Record], compression: str = "none", by_key: bool = False) -> None:
        self.wait(self._produce(topic, records, compression, by_key))

    async def _produce(self, topic: str, records: list[Record], compression: str, by_key: bool) -> None:
        options = {"acks": "all", "compression_type": None if compression == "none" else compression, "enable_idempotence": by_key}
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, **options) as producer:
            sends = [
                await producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition=None if by_key else record.partition,
                    timestamp_ms=record.timestamp,
                    headers=list(record.headers),
                )
                for record in records
            ]
            await asyncio.gather(*sends)

    def read(self, topic: str, starts: dict[int, int]) -> list[Record]:
        return self.wait(self._read(topic, starts))

    async def _read(self, topic: str, starts: dict[int, int]) -> list[Record]:
        async with self.consumer() as consumer:
            places = {TopicPartition(topic, partition): start for partition, start in starts.items()}
            ends = await consumer.end_offsets(list(places))
            consumer.assign(list(places))
            for place, start in places.items():
                consumer.seek(place, start)
            records: list[Record] = []
            positions = dict(places)
            while any(positions[place] < end for place, end in ends.items()):
                for record in await taken(consumer):
                    records.append(record)
                    positions[TopicPartition(topic, record.partition)] = record.offset + 1
            return records

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        return self.wait(self._offset_for_time(TopicPartition(topic, partition), timestamp))

    async def _offset_for_time(self, place: TopicPartition, timestamp: int) -> int | None:
        async with self.consumer() as consumer:
            found = (await consumer.offsets_for_times({place: timestamp}))[place]
            return found.offset if found else None

    def member(self, group: str, topic: str) -> Member:
        return AioMember(self, group, topic)

    def consume(self, group: str, topic: str, count: int) -> list[Record]:
        return self.wait(self._consume(group, topic, count))

    async def _consume(self, group: str, topic: str, count: int) -> list[Record]:
        async with self.consumer(group) as consumer:
            consumer.subscribe([topic])
            records: list[Record] = []
            while len(records) < count:
                records += await taken(consumer, count - len(records))
            await consumer.commit({TopicPartition(topic, record.partition): record.offset + 1 for record in records})
            return records

    def produce_numbers(self, topic: str, partitions: int, numbers: Numbered) -> None:
        asyncio.run_coroutine_threadsafe(self._produce_numbers(topic, partitions, numbers), self.loop).result()

    async def _produce_numbers(self, topic: str, partitions: int, numbers: Numbered) -> None:
        def delivered(number: int):
            def callback(future: asyncio.Future) -> None:
                if error := future.exception():
                    numbers.failures.append(f"{number}: {error!r}")
                else:
                    numbers.acknowledged[number % partitions].append(number)

            return callback

        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True, linger_ms=5) as producer:
            number = 0
            while not numbers.stop.is_set():
                future = await producer.send(topic, str(number).encode(), partition=number % partitions)
                future.add_done_callback(delivered(number))
                number += 1
                if number % 10 == 0:
                    await asyncio.sleep(0.005)
            await producer.flush()


class AioMember(Member, ConsumerRebalanceListener):
    def __init__(self, client: AioKafka, group: str, topic: str) -> None:
        super().__init__()
        self.client = client
        self.stopping = False
        self.task = asyncio.run_coroutine_threadsafe(self._consume(group, topic), client.loop)
        self.task.add_done_callback(lambda task: setattr(self, "error", task.exception()))

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.assignment = {place.partition for place in assigned}

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.assignment = set()

    async def _consume(self, group: str, topic: str) -> None:
        async with self.client.consumer(group) as consumer:
            consumer.subscribe([topic], listener=self)
            while not self.stopping:
                records = await taken(consumer)
                if records:
                    self.records += records
                    try:
                        await consumer.commit()
                    except REBALANCING:
                        pass  # overtaken by a rebalance: the records come again

    def stop(self) -> None:
        self.stopping = True
        self.task.result(STEP_SECONDS)


class admin:  # noqa: N801 - reads as what it gives
    """An admin client for one `async with`."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    async def __aenter__(self) -> AIOKafkaAdminClient:
        self.client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await self.client.start()
        return self.client

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


async def taken(consumer: AIOKafkaConsumer, limit: int = 500) -> list[Record]:
    return [
        Record(
            value=record.value,
            key=record.key,
            partition=record.partition,
            headers=tuple(record.headers),
            timestamp=record.timestamp,
            offset=record.offset,
        )
        for records in (await consumer.getmany(timeout_ms=100, max_records=limit)).values()
        for record in records
    ]


if __name__ == "__main__":
    main(AioKafka)
