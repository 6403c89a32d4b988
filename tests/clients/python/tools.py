"""Kafka's command line tools, each run by its class as kafka-*.sh would."""

import datetime
import json
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from cases import Record, expect_equal
from confluent import ConfluentKafka
from protocol import STEP_SECONDS, run, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from catalogue import JAVA, JAVA_CLASSPATH  # noqa: E402

TOOLS = "org.apache.kafka.tools."


class Tools:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    # -- running a tool ----------------------------------------------------------------------------------------

    def command(self, tool: str, *arguments: str) -> list[str]:
        return [*JAVA, tool, "--bootstrap-server", self.bootstrap, *arguments]

    def try_run(self, tool: str, *arguments: str, input: str = "") -> tuple[int, str]:
        """The exit code and what the tool said on both outputs."""
        done = subprocess.run(
            self.command(tool, *arguments), input=input, capture_output=True, text=True, timeout=STEP_SECONDS * 2, check=False
        )
        print(f"$ {tool} {' '.join(arguments)}\n{done.stdout}{done.stderr}", file=sys.stderr)
        return done.returncode, done.stdout + done.stderr

    def run(self, tool: str, *arguments: str, input: str = "") -> str:
        code, said = self.try_run(tool, *arguments, input=input)
        if code or "Error while executing" in said:
            raise RuntimeError(f"{tool} {' '.join(arguments)}: exit code {code}: {said[-400:]}")
        return said

    def topics(self, *arguments: str) -> str:
        return self.run(TOOLS + "TopicCommand", *arguments)

    def groups(self, *arguments: str) -> str:
        return self.run(TOOLS + "consumer.group.ConsumerGroupCommand", *arguments)

    def configs(self, kind: str, name: str, *arguments: str) -> str:
        return self.run("kafka.admin.ConfigCommand", "--entity-type", kind, "--entity-name", name, *arguments)

    def new_topic(self, partitions: int = 1) -> str:
        topic = f"tools-{secrets.token_hex(3)}"
        self.topics("--create", "--topic", topic, "--partitions", str(partitions), "--replication-factor", "1")
        return topic

    def produce_verifiable(self, topic: str, count: int, *more: str) -> list[dict]:
        arguments = ("--topic", topic, "--max-messages", str(count), "--throughput", "-1", "--acks", "-1", *more)
        return events(self.run(TOOLS + "VerifiableProducer", *arguments))

    def consume_verifiable(self, topic: str, group: str, count: int) -> list[dict]:
        arguments = ("--topic", topic, "--group-id", group, "--max-messages", str(count), "--reset-policy", "earliest")
        return events(self.run(TOOLS + "VerifiableConsumer", *arguments))

    def offsets(self, topic: str, time: str) -> dict[int, int]:
        lines = re.findall(rf"^{topic}:(\d+):(-?\d+)$", self.run(TOOLS + "GetOffsetShell", "--topic", topic, "--time", time), re.M)
        return {int(partition): int(offset) for partition, offset in lines}

    def ends(self, topic: str) -> dict[int, int]:
        """Of the partitions that have records: the verifiable consumer commits no others."""
        return {partition: offset for partition, offset in self.offsets(topic, "latest").items() if offset}

    def committed(self, group: str, topic: str) -> dict[int, int]:
        rows = re.findall(rf"^{group}\s+{topic}\s+(\d+)\s+(\d+|-)\s", self.groups("--describe", "--group", group), re.M)
        return {int(partition): int(offset) for partition, offset in rows if offset != "-"}

    # -- the cases ---------------------------------------------------------------------------------------------

    def case_topics(self) -> str:
        topic = f"tools-{secrets.token_hex(3)}"
        create = ("--create", "--topic", topic, "--partitions", "3", "--replication-factor", "1", "--config", "retention.ms=3600000")
        expect_in("creation", f"Created topic {topic}.", self.topics(*create))
        expect_in("list", topic, self.topics("--list").splitlines())
        described = self.topics("--describe", "--topic", topic)
        for part in ("PartitionCount: 3", "ReplicationFactor: 1", "retention.ms=3600000", "Isr: "):
            expect_in("description", part, described)
        expect_equal("partitions with a leader", len(re.findall(r"Leader: \d+", described)), 3)
        code, said = self.try_run(TOOLS + "TopicCommand", *create)
        expect_equal("exit code of a second creation", code, 1)
        expect_in("a second creation", "already exists", said)
        self.topics(*create, "--if-not-exists")
        self.topics("--alter", "--topic", topic, "--partitions", "5")
        expect_in("description", "PartitionCount: 5", self.topics("--describe", "--topic", topic))
        self.topics("--delete", "--topic", topic)
        wait_until("the topic to be gone", lambda: topic not in self.topics("--list").splitlines())
        return "3, then 5 partitions, then gone"

    def case_configs_topic(self) -> str:
        topic = self.new_topic()
        self.configs("topics", topic, "--alter", "--add-config", "retention.ms=1000000,cleanup.policy=compact")
        described = self.configs("topics", topic, "--describe")
        expect_in("description", "retention.ms=1000000", described)
        expect_in("description", "DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact", described)
        everything = self.configs("topics", topic, "--describe", "--all")
        for key in ("segment.bytes=", "max.message.bytes=", "min.insync.replicas=", "message.timestamp.type=CreateTime"):
            expect_in("all configurations", key, everything)
        self.configs("topics", topic, "--alter", "--delete-config", "retention.ms")
        described = self.configs("topics", topic, "--describe")
        expect_equal("retention.ms is still set", "retention.ms" in described, False)
        expect_in("description", "cleanup.policy=compact", described)
        alter = ("--entity-type", "topics", "--entity-name", topic, "--alter", "--add-config", "retention.ms=soon")
        code, said = self.try_run("kafka.admin.ConfigCommand", *alter)
        expect_equal("a bad value is refused", code != 0 and "InvalidConfigurationException" in said, True)
        return "set, described with synonyms, deleted, a bad value refused"

    def case_configs_broker(self) -> str:
        broker = re.search(r"\(id: (\d+)", self.run(TOOLS + "BrokerApiVersionsCommand"))[1]
        everything = self.configs("brokers", broker, "--describe", "--all")
        for key in ("num.partitions=", "auto.create.topics.enable=", "log.retention.ms=", "message.max.bytes="):
            expect_in("all configurations", key, everything)
        alter = ("--entity-type", "brokers", "--entity-name", broker, "--alter", "--add-config", "message.max.bytes=2000000")
        code, said = self.try_run("kafka.admin.ConfigCommand", *alter)
        expect_equal("a change is refused", code != 0 and "--set name=value" in said, True)
        return f"broker {broker}: described; a change is refused and told where to make it"

    def case_console(self) -> str:
        topic, group = self.new_topic(), f"console-{secrets.token_hex(3)}"
        reader = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
        self.run(TOOLS + "ConsoleProducer", "--topic", topic, *reader, input="a:1,b:2\tk1\tv1\na:3\tk2\tv2\n")
        formatter = [f"--formatter-property=print.{part}=true" for part in ("key", "headers", "offset")]
        arguments = ("--topic", topic, "--from-beginning", "--max-messages", "2", "--group", group, *formatter)
        said = self.run(TOOLS + "consumer.ConsoleConsumer", *arguments)
        for line in ("Offset:0\ta:1,b:2\tk1\tv1", "Offset:1\ta:3\tk2\tv2"):
            expect_in("the console consumer's output", line, said)
        expect_equal("committed offsets", self.committed(group, topic), {0: 2})
        return "2 records with keys and headers, then committed"

    def case_compaction(self) -> str:
        topic = f"tools-{secrets.token_hex(3)}"
        configs = ("cleanup.policy=compact", "segment.ms=100", "segment.bytes=1048576", "min.cleanable.dirty.ratio=0.01", "delete.retention.ms=0")
        named = [argument for config in configs for argument in ("--config", config)]
        self.topics("--create", "--topic", topic, "--partitions", "1", "--replication-factor", "1", *named)
        keys, turns = 5, 200
        lines = [f"k{key}\t{turn}" for turn in range(turns) for key in range(keys)] + ["k0\tNULL"]
        reader = ("--reader-property", "parse.key=true", "--reader-property", "null.marker=NULL")
        self.run(TOOLS + "ConsoleProducer", "--topic", topic, *reader, input="\n".join(lines) + "\n")
        last = [((turns - 1) * keys + key, f"k{key}", str(turns - 1)) for key in range(1, keys)]
        tombstone = (turns * keys, "k0", None)
        # Starting a tool for each look would take longer than what is waited for.
        client = ConfluentKafka(self.bootstrap)

        def left() -> list[tuple[int, str, str | None]]:
            # The newest segment is not compacted: another record begins one.
            client.produce(topic, [Record(key=b"beat", value=b"beat")])
            records = [r for r in client.read(topic, {0: 0}) if r.key != b"beat"]
            found = [(r.offset, r.key.decode(), r.value.decode() if r.value is not None else None) for r in records]
            expect_equal("last values", [record for record in found if record in last], last)
            return found

        wait_until("only the last value of each key", lambda: left() in ([*last, tombstone], last))
        wait_until("the tombstone to be gone", lambda: left() == last)
        formatter = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
        place = ("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", str(len(last)))
        said = self.run(TOOLS + "consumer.ConsoleConsumer", *place, *formatter)
        expect_equal("what the console consumer gets", re.findall(r"^Offset:(\d+)\t(\w+)\t(\w+)$", said, re.M), [(str(o), k, v) for o, k, v in last])
        return f"{turns} values of {keys} keys and a tombstone; {len(last)} are left, where they were"

    def case_groups(self) -> str:
        topic, group = self.new_topic(3), f"group-{secrets.token_hex(3)}"
        self.produce_verifiable(topic, 100)
        with RunningConsumer(self, topic, group, 100):
            expect_in("list", group, self.groups("--list").splitlines())
            state = self.groups("--describe", "--group", group, "--state")
            expect_matches("state", rf"{group}\s+.*\s+range\s+Stable\s+1", state)
            members = self.groups("--describe", "--group", group, "--members", "--verbose")
            expect_matches("members", rf"{group}\s+\S+\s+\S+\s+\S+\s+3\s+.*{topic}", members)
            expect_equal("committed offsets", self.committed(group, topic), self.ends(topic))
        wait_until("the group to be empty", lambda: "Empty" in self.groups("--describe", "--group", group, "--state"))
        expect_matches("list with state", rf"{group}\s+Empty", self.groups("--list", "--state", "Empty"))
        return "stable with 1 member, then empty"

    def case_groups_reset(self) -> str:
        topic, group = self.new_topic(), f"group-{secrets.token_hex(3)}"
        early = 1_600_000_000_000
        self.produce_verifiable(topic, 60, "--message-create-time", str(early))
        self.produce_verifiable(topic, 40)
        self.consume_verifiable(topic, group, 100)

        def reset(*how: str) -> dict[int, int]:
            self.groups("--reset-offsets", "--group", group, "--topic", topic, "--execute", *how)
            return self.committed(group, topic)

        expect_equal("committed offsets", self.committed(group, topic), {0: 100})
        expect_equal("to earliest", reset("--to-earliest"), {0: 0})
        expect_equal("by shift", reset("--shift-by", "30"), {0: 30})
        with tempfile.NamedTemporaryFile("w+", suffix=".csv") as exported:
            plan = self.groups("--reset-offsets", "--group", group, "--topic", topic, "--to-current", "--export", "--dry-run")
            exported.write(re.search(rf"^{topic},0,\d+$", plan, re.M)[0] + "\n")
            exported.flush()
            expect_equal("to latest", reset("--to-latest"), {0: 100})
            self.groups("--reset-offsets", "--group", group, "--from-file", exported.name, "--execute")
            expect_equal("from a file", self.committed(group, topic), {0: 30})
        later = datetime.datetime.fromtimestamp(early / 1000 + 86_400, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        expect_equal("to a time", reset("--to-datetime", later), {0: 60})
        return "earliest, shift, latest, file, time"

    def case_groups_delete(self) -> str:
        first, second, group = self.new_topic(), self.new_topic(), f"group-{secrets.token_hex(3)}"
        for topic in (first, second):
            self.produce_verifiable(topic, 10)
            self.consume_verifiable(topic, group, 10)
        expect_equal("committed offsets", (self.committed(group, first), self.committed(group, second)), ({0: 10}, {0: 10}))
        expect_in("delete offsets", "Successful", self.groups("--delete-offsets", "--group", group, "--topic", first))
        expect_equal("committed offsets", (self.committed(group, first), self.committed(group, second)), ({}, {0: 10}))
        expect_in("delete", "was successful", self.groups("--delete", "--group", group))
        expect_equal("the group is still listed", group in self.groups("--list").splitlines(), False)
        return "offsets of one topic, then the group"

    def case_producer_perf(self) -> str:
        topic = self.new_topic(2)
        arguments = ("--topic", topic, "--num-records", "20000", "--record-size", "1024", "--throughput", "-1")
        said = self.run(TOOLS + "ProducerPerformance", *arguments, "--command-property", "acks=all", "compression.type=lz4")
        expect_in("summary", "20000 records sent", said)
        expect_equal("records in the topic", sum(self.offsets(topic, "latest").values()), 20000)
        return "20000 records of 1 KiB"

    def case_consumer_perf(self) -> str:
        topic = self.new_topic(2)
        self.produce_verifiable(topic, 5000)
        arguments = ("--topic", topic, "--num-records", "5000", "--hide-header", "--group", f"perf-{secrets.token_hex(3)}")
        said = self.run(TOOLS + "ConsumerPerformance", *arguments)
        numbers = [line.split(", ") for line in said.splitlines() if line.count(", ") >= 8][-1]
        expect_equal("records consumed", int(numbers[4]), 5000)
        return "5000 records"

    def case_verifiable(self) -> str:
        topic, group = self.new_topic(3), f"verifiable-{secrets.token_hex(3)}"
        produced = self.produce_verifiable(topic, 5000)
        summary = [event for event in produced if event["name"] == "tool_data"][-1]
        expect_equal("sent and acknowledged", (summary["sent"], summary["acked"]), (5000, 5000))
        consumed = self.consume_verifiable(topic, group, 5000)
        expect_equal("consumed", sum(event["count"] for event in consumed if event["name"] == "records_consumed"), 5000)
        expect_equal("committed offsets", self.committed(group, topic), self.ends(topic))
        return "5000 sent, acknowledged and consumed"

    def case_get_offsets(self) -> str:
        topic = self.new_topic()
        early = 1_600_000_000_000
        self.produce_verifiable(topic, 50, "--message-create-time", str(early))
        self.produce_verifiable(topic, 10, "--message-create-time", str(early + 60_000))
        self.produce_verifiable(topic, 40, "--message-create-time", str(early + 30_000))
        for time, expected in (("latest", 100), ("earliest", 0), (str(early + 59_000), 50), (str(early), 0)):
            expect_equal(f"offset at {time}", self.offsets(topic, time), {0: expected})
        # Create times go up by one with each record: the youngest is the last of the second run.
        expect_equal("offset of the largest timestamp", self.offsets(topic, "max-timestamp"), {0: 59})
        return "latest, earliest, max-timestamp, by time"

    def case_delete_records(self) -> str:
        topic = self.new_topic(2)
        self.produce_verifiable(topic, 200)
        latest = self.offsets(topic, "latest")
        partition = max(latest, key=latest.get)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"partitions": [{"topic": topic, "partition": partition, "offset": 7}], "version": 1}, file)
            file.flush()
            said = self.run(TOOLS + "DeleteRecordsCommand", "--offset-json-file", file.name)
        expect_in("result", f"partition: {topic}-{partition}\tlow_watermark: 7", said)
        expect_equal("earliest offset", self.offsets(topic, "earliest")[partition], 7)
        expect_equal("latest offsets", self.offsets(topic, "latest"), latest)
        return "the log starts at 7"

    def case_log_dirs(self) -> str:
        topic = self.new_topic(2)
        self.produce_verifiable(topic, 100)
        said = self.run(TOOLS + "LogDirsCommand", "--describe", "--topic-list", topic)
        answer = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
        directories = answer["brokers"][0]["logDirs"]
        expect_equal("errors", [directory["error"] for directory in directories], [None] * len(directories))
        sizes = {place["partition"]: place["size"] for directory in directories for place in directory["partitions"]}
        expect_equal("partitions", sorted(sizes), [f"{topic}-0", f"{topic}-1"])
        expect_equal("the records take space", sum(sizes.values()) > 0, True)
        return f"2 partitions, {sum(sizes.values())} bytes"

    def case_api_versions(self) -> str:
        said = self.run(TOOLS + "BrokerApiVersionsCommand")
        for api in ("Produce(0)", "Fetch(1)", "ListOffsets(2)", "Metadata(3)", "ApiVersions(18)"):
            expect_in("APIs", f"{api}: ", said)
        return f"{len(re.findall('usable', said))} APIs usable by this client"


class RunningConsumer:
    """A verifiable consumer that stays in its group, from when it has committed `count` records to the end of `with`."""

    def __init__(self, tools: Tools, topic: str, group: str, count: int) -> None:
        arguments = ("--topic", topic, "--group-id", group, "--reset-policy", "earliest")
        self.command = tools.command(TOOLS + "VerifiableConsumer", *arguments)
        self.count = count
        self.committed = 0

    def __enter__(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()
        wait_until("the consumer to commit", lambda: self.committed >= self.count)

    def follow(self) -> None:
        for line in self.process.stdout:
            for event in events(line):
                if event["name"] == "offsets_committed" and event["success"]:
                    self.committed = max(self.committed, sum(place["offset"] for place in event["offsets"]))

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(STEP_SECONDS)
        self.thread.join()


def events(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def expect_in(what: str, part: str, whole: str | list[str]) -> None:
    assert part in whole, f"{what}: no {part!r} in {str(whole)[:300]!r}"


def expect_matches(what: str, pattern: str, text: str) -> None:
    assert re.search(pattern, text), f"{what}: nothing like {pattern!r} in {text[:300]!r}"


def version() -> str:
    return re.search(r"kafka-tools-([\d.]+)\.jar", JAVA_CLASSPATH.read_text())[1]


if __name__ == "__main__":
    tools = Tools(sys.argv[1])
    named = {name.removeprefix("case_"): getattr(tools, name) for name in dir(tools) if name.startswith("case_")}
    run(version(), named, sys.argv[2:])
