import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/** The case list for the Java client: {@code Cases BOOTSTRAP CASE…}. */
final class Cases {
    private final String bootstrap;
    private final Admin admin;

    private Cases(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    public static void main(String[] arguments) {
        Cases cases = new Cases(arguments[0]);
        Map<String, Callable<String>> table = new HashMap<>();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            table.put("produce_" + codec, () -> cases.compression(codec));
        table.put("create_topic", cases::createTopic);
        table.put("keyed", cases::keyed);
        table.put("headers", cases::headers);
        table.put("tombstones", cases::tombstones);
        table.put("group_rebalance", cases::groupRebalance);
        table.put("seek_by_time", cases::seekByTime);
        table.put("commit_resume", cases::commitResume);
        table.put("idempotent_restart", cases::idempotentRestart);
        Protocol.run(AppInfoParser.getVersion(), table, List.of(arguments).subList(1, arguments.length));
    }

    // The cases

    private String createTopic() throws Exception {
        String topic = topic("create", 3);
        Protocol.waitUntil("three partitions in the metadata", () ->
            admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() == 3);
        try {
            create(topic, 3);
        } catch (ExecutionException failure) {
            if (failure.getCause() instanceof TopicExistsException) return "3 partitions; a second time: TOPIC_ALREADY_EXISTS";
            throw failure;
        }
        throw new AssertionError("creating the topic a second time was accepted");
    }

    private String compression(String codec) throws Exception {
        String topic = topic("produce-" + codec, 3);
        Random random = new Random(codec.hashCode());
        List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
        for (int number = 0; number < 1500; number++) {
            String value = "%06d %s%x".formatted(number, "words that repeat ".repeat(random.nextInt(20)), random.nextLong());
            sent.add(new ProducerRecord<>(topic, number % 3, bytes("key-" + number), bytes(value)));
        }
        produce(sent, codec);
        Protocol.expectEqual("records",
            readAll(topic, 3).stream().map(r -> contents(r.partition(), r.key(), r.value())).sorted().toList(),
            sent.stream().map(r -> contents(r.partition(), r.key(), r.value())).sorted().toList());
        return sent.size() + " records";
    }

    private String keyed() throws Exception {
        String topic = topic("keyed", 4);
        List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
        for (int turn = 0; turn < 50; turn++)
            for (int key = 0; key < 20; key++) sent.add(new ProducerRecord<>(topic, bytes("key-" + key), bytes("" + turn)));
        produce(sent, "none");
        Map<String, List<Integer>> turns = new TreeMap<>();
        Map<String, Set<Integer>> places = new TreeMap<>();
        for (ConsumerRecord<byte[], byte[]> record : readAll(topic, 4)) {
            String key = new String(record.key(), UTF_8);
            turns.computeIfAbsent(key, k -> new ArrayList<>()).add(number(record));
            places.computeIfAbsent(key, k -> new HashSet<>()).add(record.partition());
        }
        Protocol.expectEqual("number of keys", turns.size(), 20);
        for (String key : turns.keySet()) {
            Protocol.expectEqual("values of " + key, turns.get(key), range(0, 50));
            Protocol.expectEqual("number of partitions of " + key, places.get(key).size(), 1);
        }
        long used = places.values().stream().flatMap(Set::stream).distinct().count();
        if (used < 2) throw new AssertionError("all keys went to one partition");
        return "20 keys on " + used + " of 4 partitions";
    }

    private String headers() throws Exception {
        String topic = topic("headers", 1);
        byte[] binary = new byte[128];
        for (int index = 0; index < binary.length; index++) binary[index] = (byte) (128 + index);
        List<Headers> sent = List.of(
            new RecordHeaders().add("a", bytes("1")).add("b", binary).add("a", bytes("2")).add("empty", new byte[0]),
            new RecordHeaders(),
            new RecordHeaders().add("schlüssel", bytes("größe")),
            new RecordHeaders().add("null", null));
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (Headers headers : sent) records.add(new ProducerRecord<>(topic, 0, (byte[]) null, bytes("value"), headers));
        produce(records, "none");
        Protocol.expectEqual("headers",
            readAll(topic, 1).stream().map(record -> Arrays.asList(record.headers().toArray())).toList(),
            sent.stream().map(headers -> Arrays.asList(headers.toArray())).toList());
        return "repeated, empty, binary, unicode, null";
    }

    private String tombstones() throws Exception {
        String topic = topic("tombstones", 1);
        List<String> sent = Arrays.asList("v", null, "", null);
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (String value : sent) records.add(new ProducerRecord<>(topic, 0, bytes("k"), value == null ? null : bytes(value)));
        produce(records, "none");
        List<String> received = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : readAll(topic, 1))
            received.add(record.value() == null ? null : new String(record.value(), UTF_8));
        Protocol.expectEqual("values", received, sent);
        return "null values stay null";
    }

    private String groupRebalance() throws Exception {
        String topic = topic("rebalance", 4);
        String group = name("group");
        Set<Integer> everything = Set.of(0, 1, 2, 3);
        produceNumbers(topic, 4, 0, 200);
        Member first = new Member(consumer(group), topic);
        awaitAssignment("the first member to get all partitions", first, everything);
        awaitNumbers(200, first);
        Member second = new Member(consumer(group), topic);
        Protocol.waitUntil("both members to share the partitions", () -> {
            first.check();
            second.check();
            Set<Integer> one = Set.copyOf(first.assignment), other = Set.copyOf(second.assignment);
            Set<Integer> union = Stream.concat(one.stream(), other.stream()).collect(Collectors.toSet());
            return !one.isEmpty() && !other.isEmpty() && one.size() + other.size() == 4 && union.equals(everything);
        });
        String shared = first.assignment.size() + "+" + second.assignment.size();
        produceNumbers(topic, 4, 200, 400);
        awaitNumbers(400, first, second);
        if (second.numbers.isEmpty()) throw new AssertionError("the second member consumed nothing");
        second.stop();
        awaitAssignment("the first member to get all partitions back", first, everything);
        produceNumbers(topic, 4, 400, 600);
        awaitNumbers(600, first, second);
        first.stop();
        int redelivered = first.numbers.size() + second.numbers.size() - 600;
        produceNumbers(topic, 4, 600, 640);
        Member third = new Member(consumer(group), topic);
        Protocol.waitUntil("the third member to get the newest records", () -> {
            third.check();
            return third.numbers.size() >= 40;
        });
        third.stop();
        Protocol.expectEqual("what is behind the committed offsets", third.numbers.stream().sorted().toList(), range(600, 640));
        return "4, then " + shared + ", then 4 partitions; " + redelivered + " redelivered";
    }

    private String seekByTime() throws Exception {
        String topic = topic("time", 2);
        long base = System.currentTimeMillis() - 100_000;
        List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
        for (int number = 0; number < 100; number++)
            for (int partition : List.of(0, 1))
                sent.add(new ProducerRecord<>(topic, partition, base + number * 1000L, null, bytes("" + number)));
        produce(sent, "none");
        Map<Long, Long> expected = new HashMap<>();
        expected.put(base + 50_000, 50L);
        expected.put(base + 49_500, 50L);
        expected.put(base - 10_000, 0L);
        expected.put(base + 99_001, null);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null)) {
            for (long time : expected.keySet())
                for (int partition : List.of(0, 1)) {
                    TopicPartition place = new TopicPartition(topic, partition);
                    OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(place, time)).get(place);
                    String what = "offset " + (time - base) + " ms after the first record";
                    Protocol.expectEqual(what, found == null ? null : found.offset(), expected.get(time));
                }
        }
        List<ConsumerRecord<byte[], byte[]>> received = read(topic, Map.of(0, 50L, 1, 50L));
        Protocol.expectEqual("records from there", received.stream().map(Cases::number).sorted().toList(),
            IntStream.range(50, 100).boxed().flatMap(number -> Stream.of(number, number)).toList());
        Protocol.expectEqual("timestamps",
            received.stream().map(record -> record.timestamp() - number(record) * 1000L).collect(Collectors.toSet()), Set.of(base));
        return "exact, between, before and after all";
    }

    private String commitResume() throws Exception {
        String topic = topic("resume", 2);
        String group = name("group");
        produceNumbers(topic, 2, 0, 1000);
        List<ConsumerRecord<byte[], byte[]>> all = new ArrayList<>(consume(group, topic, 400));
        int before = all.size();
        produceNumbers(topic, 2, 1000, 1200);
        Protocol.killBroker();
        produceNumbers(topic, 2, 1200, 1400);
        all.addAll(consume(group, topic, 1400 - before));
        Protocol.expectEqual("numbers consumed before and after", all.stream().map(Cases::number).sorted().toList(), range(0, 1400));
        for (int partition : List.of(0, 1))
            Protocol.expectEqual("offsets of partition " + partition,
                all.stream().filter(record -> record.partition() == partition).map(record -> (int) record.offset()).toList(),
                range(0, 700));
        return before + " before, " + (1400 - before) + " after the restart";
    }

    private String idempotentRestart() throws Exception {
        int partitions = 3;
        String topic = topic("idempotent", partitions);
        NumberedProducer producer = new NumberedProducer(producer("none"), topic, partitions);
        for (int kills = 0; kills < 2; kills++) {
            producer.awaitMore(500);
            Protocol.killBroker();
        }
        producer.awaitMore(500);
        producer.stop();
        Protocol.expectEqual("failed sends", producer.failures.stream().limit(3).toList(), List.of());
        Map<Integer, List<Integer>> stored = new TreeMap<>();
        for (ConsumerRecord<byte[], byte[]> record : readAll(topic, partitions))
            stored.computeIfAbsent(record.partition(), p -> new ArrayList<>()).add(number(record));
        for (int partition = 0; partition < partitions; partition++) {
            List<Integer> numbers = stored.get(partition);
            Protocol.expectEqual("numbers in partition " + partition, numbers, numbers.stream().distinct().sorted().toList());
            Set<Integer> lost = new HashSet<>(producer.acknowledged.get(partition));
            numbers.forEach(lost::remove);
            Protocol.expectEqual("acknowledged records lost in partition " + partition, lost, Set.of());
        }
        return producer.count() + " acknowledged, each there once and in order";
    }

    // What the cases are made of

    /** Sends numbers, idempotent and with acks=all, in a thread of its own until it is stopped. */
    private static final class NumberedProducer {
        final Map<Integer, ConcurrentLinkedQueue<Integer>> acknowledged = new LinkedHashMap<>();
        final ConcurrentLinkedQueue<String> failures = new ConcurrentLinkedQueue<>();
        private final AtomicInteger count = new AtomicInteger();
        private final Thread thread;
        private volatile boolean stopping;

        NumberedProducer(KafkaProducer<byte[], byte[]> producer, String topic, int partitions) {
            for (int partition = 0; partition < partitions; partition++) acknowledged.put(partition, new ConcurrentLinkedQueue<>());
            thread = new Thread(() -> {
                try (producer) {
                    for (int next = 0; !stopping; next++) {
                        int number = next, partition = next % partitions;
                        producer.send(new ProducerRecord<>(topic, partition, null, bytes("" + number)), (metadata, failure) -> {
                            if (failure != null) failures.add(number + ": " + failure);
                            else acknowledged.get(partition).add(number);
                            if (failure == null) count.incrementAndGet();
                        });
                        // About two thousand records a second, so that the topic stays small enough to read back.
                        if (number % 10 == 0) Thread.sleep(5);
                    }
                } catch (Exception failure) {
                    failures.add(failure.toString());
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        int count() {
            return count.get();
        }

        void awaitMore(int more) throws Exception {
            int goal = count() + more;
            Protocol.waitUntil(more + " more acknowledgements", () -> count() >= goal);
        }

        void stop() throws Exception {
            stopping = true;
            thread.join(Protocol.STEP.toMillis());
            if (thread.isAlive()) throw new AssertionError("the producer did not flush");
        }
    }

    private String topic(String name, int partitions) throws Exception {
        String topic = name(name);
        create(topic, partitions);
        return topic;
    }

    private static String name(String name) {
        return "java-%s-%06x".formatted(name, new Random().nextInt(1 << 24));
    }

    private void create(String topic, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get(Protocol.STEP.toSeconds(), TimeUnit.SECONDS);
    }

    private KafkaProducer<byte[], byte[]> producer(String codec) {
        Map<String, Object> configuration = Map.of("bootstrap.servers", bootstrap, "acks", "all", "compression.type", codec);
        return new KafkaProducer<>(configuration, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group) {
        Map<String, Object> configuration = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap,
            "enable.auto.commit", false,
            "auto.offset.reset", "earliest",
            "heartbeat.interval.ms", 300,
            "session.timeout.ms", 10_000));
        if (group != null) configuration.put("group.id", group);
        return new KafkaConsumer<>(configuration, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void produce(List<ProducerRecord<byte[], byte[]>> records, String codec) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(codec)) {
            List<Future<RecordMetadata>> sends = new ArrayList<>();
            for (ProducerRecord<byte[], byte[]> record : records) sends.add(producer.send(record));
            producer.flush();
            for (Future<RecordMetadata> send : sends) send.get(Protocol.STEP.toSeconds(), TimeUnit.SECONDS);
        }
    }

    private void produceNumbers(String topic, int partitions, int first, int end) throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int number : range(first, end)) records.add(new ProducerRecord<>(topic, number % partitions, null, bytes("" + number)));
        produce(records, "none");
    }

    private List<ConsumerRecord<byte[], byte[]>> readAll(String topic, int partitions) throws Exception {
        return read(topic, range(0, partitions).stream().collect(Collectors.toMap(partition -> partition, partition -> 0L)));
    }

    /** Reads from the given offsets to the present end, without a group. */
    private List<ConsumerRecord<byte[], byte[]>> read(String topic, Map<Integer, Long> starts) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null)) {
            List<TopicPartition> places = starts.keySet().stream().map(p -> new TopicPartition(topic, p)).toList();
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            consumer.assign(places);
            places.forEach(place -> consumer.seek(place, starts.get(place.partition())));
            List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
            Protocol.waitUntil("the end of the topic", () -> {
                consumer.poll(Duration.ofMillis(100)).forEach(records::add);
                return places.stream().allMatch(place -> consumer.position(place) >= ends.get(place));
            });
            return records;
        }
    }

    /** Joins the group, takes {@code count} records, commits exactly those, and leaves. */
    private List<ConsumerRecord<byte[], byte[]>> consume(String group, String topic, int count) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(group)) {
            consumer.subscribe(List.of(topic));
            List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            Protocol.waitUntil(count + " records", () -> {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    if (records.size() == count) break;
                    records.add(record);
                    positions.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                return records.size() == count;
            });
            consumer.commitSync(positions);
            return records;
        }
    }

    private static void awaitAssignment(String what, Member member, Set<Integer> expected) throws Exception {
        Protocol.waitUntil(what, () -> {
            member.check();
            return member.assignment.equals(expected);
        });
    }

    private static void awaitNumbers(int count, Member... members) throws Exception {
        Protocol.waitUntil("all " + count + " records", () -> {
            Set<Integer> seen = new HashSet<>();
            for (Member member : members) {
                member.check();
                synchronized (member.numbers) {
                    seen.addAll(member.numbers);
                }
            }
            return seen.size() == count;
        });
    }

    static int number(ConsumerRecord<byte[], byte[]> record) {
        return Integer.parseInt(new String(record.value(), UTF_8));
    }

    private static String contents(int partition, byte[] key, byte[] value) {
        return partition + " " + new String(key, UTF_8) + " " + new String(value, UTF_8);
    }

    private static List<Integer> range(int first, int end) {
        return IntStream.range(first, end).boxed().toList();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(UTF_8);
    }
}
