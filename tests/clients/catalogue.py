"""Which clients there are, how each is started, and which cases it runs."""

import os
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
DEPENDENCIES = TARGET / "test-deps"

CASES = (
    "create_topic",
    "produce_none",
    "produce_gzip",
    "produce_snappy",
    "produce_lz4",
    "produce_zstd",
    "keyed",
    "headers",
    "tombstones",
    "group_rebalance",
    "seek_by_time",
    "commit_resume",
    "idempotent_restart",
)

TOOL_CASES = {
    "topics": "`kafka-topics`: create, list, describe, add partitions, delete",
    "configs_topic": "`kafka-configs`: topic add, describe, delete, refuse a bad value",
    "configs_broker": "`kafka-configs`: broker describe; a change is refused, it is made at start",
    "console": "`kafka-console-producer`, `kafka-console-consumer`: keys, headers, a group",
    "compaction": "`kafka-topics` with `cleanup.policy=compact`; of many values of few keys the console consumer gets the last ones",
    "groups": "`kafka-consumer-groups`: list, describe, members, state",
    "groups_reset": "`kafka-consumer-groups`: reset offsets to earliest, by shift, by time, to a file's offsets",
    "groups_delete": "`kafka-consumer-groups`: delete offsets, delete the group",
    "producer_perf": "`kafka-producer-perf-test`",
    "consumer_perf": "`kafka-consumer-perf-test`",
    "verifiable": "`kafka-verifiable-producer`, `kafka-verifiable-consumer`",
    "get_offsets": "`kafka-get-offsets`: latest, earliest, max-timestamp, by time",
    "delete_records": "`kafka-delete-records`",
    "log_dirs": "`kafka-log-dirs`",
    "api_versions": "`kafka-broker-api-versions`",
}

CLUSTER_CASES = {
    "killed_broker": "an idempotent producer and a group of two while a broker of three is killed and comes back",
    "rolling_restart": "the same while all three are told to stop and started again, one after the other",
}


@dataclass(frozen=True)
class Client:
    name: str
    command: tuple[str, ...]
    cases: tuple[str, ...] = CASES
    #: Heads a table of its own, with a text for each case.
    title: str = ""
    texts: dict[str, str] = field(default_factory=dict)
    brokers: int = 1


PYTHON = str(DEPENDENCIES / "venv" / "bin" / "python")
JAVA_CLASSPATH = DEPENDENCIES / "java" / "classpath"
JAVA = (
    "java",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    f"@{JAVA_CLASSPATH}",
)


def python(program: str) -> tuple[str, ...]:
    return (PYTHON, str(HERE / "python" / program))


CLIENTS = (
    Client("kcat", python("kcat.py")),
    Client("confluent-kafka", python("confluent.py")),
    Client("kafka-python", python("kafka_python.py")),
    Client("aiokafka", python("aio.py")),
    Client("kafkajs", ("env", f"NODE_PATH={DEPENDENCIES}/node/node_modules", "node", str(HERE / "node" / "kafkajs.js"))),
    Client("rdkafka", (str(TARGET / "clients" / "debug" / "kaas-client-rdkafka"),)),
    Client("kafka-clients", (*JAVA, "Cases")),
    Client("franz-go", (str(DEPENDENCIES / "go" / "franz"),)),
    Client("sarama", (str(DEPENDENCIES / "go" / "sarama"),)),
    Client("kafka-tools", python("tools.py"), tuple(TOOL_CASES), "command line tools", TOOL_CASES),
    Client("cluster", python("cluster_cases.py"), tuple(CLUSTER_CASES), "three brokers, confluent-kafka", CLUSTER_CASES, 3),
)
