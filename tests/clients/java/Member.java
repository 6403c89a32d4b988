import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/** A group member that consumes and commits in a thread of its own until it is stopped. */
final class Member implements ConsumerRebalanceListener {
    final Set<Integer> assignment = new ConcurrentSkipListSet<>();
    final List<Integer> numbers = Collections.synchronizedList(new ArrayList<>());
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Thread thread = new Thread(this::consume);
    private volatile boolean stopping;
    private volatile Throwable failure;

    Member(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        this.consumer = consumer;
        consumer.subscribe(List.of(topic), this);
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        partitions.forEach(place -> assignment.add(place.partition()));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        partitions.forEach(place -> assignment.remove(place.partition()));
    }

    private void consume() {
        try (consumer) {
            while (!stopping) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                records.forEach(record -> numbers.add(Cases.number(record)));
                try {
                    if (!records.isEmpty()) consumer.commitSync();
                } catch (CommitFailedException | RebalanceInProgressException overtaken) {
                    // A commit that a rebalance overtakes only means that the records come again.
                }
            }
        } catch (Throwable thrown) {
            failure = thrown;
        }
    }

    void check() {
        if (failure != null) throw new AssertionError("a member failed: " + failure, failure);
    }

    /** Leaves the group; what was delivered is committed. */
    void stop() throws InterruptedException {
        stopping = true;
        thread.join();
        check();
    }
}
