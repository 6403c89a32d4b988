// The case list for franz-go.
package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kaas-client-tests/cases"
)

func main() {
	cases.Main(func(bootstrap string) (cases.Client, error) {
		client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
		return franz{bootstrap, kadm.NewClient(client)}, err
	})
}

type franz struct {
	bootstrap string
	admin     *kadm.Client
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func (franz franz) Name() string    { return "franz-go" }
func (franz franz) Version() string { return cases.ModuleVersion("github.com/twmb/franz-go") }

func (franz franz) client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(options, kgo.SeedBrokers(franz.bootstrap), kgo.FetchMaxWait(200*time.Millisecond))...)
}

func step() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), cases.Step)
}

func (franz franz) CreateTopic(topic string, partitions int32) error {
	ctx, cancel := step()
	defer cancel()
	_, err := franz.admin.CreateTopic(ctx, partitions, 1, nil, topic)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return cases.ErrTopicExists
	}
	return err
}

func (franz franz) PartitionCount(topic string) (int, error) {
	ctx, cancel := step()
	defer cancel()
	topics, err := franz.admin.ListTopics(ctx, topic)
	return len(topics[topic].Partitions), err
}

func (franz franz) Produce(topic string, records []cases.Record, codec string, byKey bool) error {
	options := []kgo.Opt{kgo.ProducerBatchCompression(codecs[codec])}
	if !byKey {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	client, err := franz.client(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := step()
	defer cancel()
	sent := []*kgo.Record{}
	for _, record := range records {
		headers := []kgo.RecordHeader{}
		for _, header := range record.Headers {
			headers = append(headers, kgo.RecordHeader{Key: header.Name, Value: header.Value})
		}
		sent = append(sent, &kgo.Record{
			Topic: topic, Partition: record.Partition, Key: record.Key, Value: record.Value, Headers: headers, Timestamp: record.Timestamp,
		})
	}
	return client.ProduceSync(ctx, sent...).FirstErr()
}

func (franz franz) Read(topic string, starts map[int32]int64) ([]cases.Record, error) {
	ctx, cancel := step()
	defer cancel()
	ends, err := franz.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return nil, err
	}
	places, left := map[int32]kgo.Offset{}, map[int32]int64{}
	for partition, start := range starts {
		places[partition] = kgo.NewOffset().At(start)
		if end, _ := ends.Lookup(topic, partition); end.Offset > start {
			left[partition] = end.Offset
		}
	}
	client, err := franz.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: places}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	all := []cases.Record{}
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			all = append(all, converted(record))
			if record.Offset+1 >= left[record.Partition] {
				delete(left, record.Partition)
			}
		})
	}
	return all, nil
}

// OffsetForTime: kadm gives the end of the partition, without a timestamp, when no record is that young.
func (franz franz) OffsetForTime(topic string, partition int32, at time.Time) (int64, error) {
	ctx, cancel := step()
	defer cancel()
	listed, err := franz.admin.ListOffsetsAfterMilli(ctx, at.UnixMilli(), topic)
	if err != nil {
		return 0, err
	}
	found, _ := listed.Lookup(topic, partition)
	if found.Err == nil && found.Timestamp < 0 {
		return -1, nil
	}
	return found.Offset, found.Err
}

func (franz franz) groupClient(group, topic string, more ...kgo.Opt) (*kgo.Client, error) {
	return franz.client(append(more,
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.HeartbeatInterval(300*time.Millisecond),
		kgo.SessionTimeout(10*time.Second),
	)...)
}

func (franz franz) Join(group, topic string) (*cases.Member, error) {
	member := &cases.Member{}
	revoked := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { member.Revoked(lost[topic]) }
	client, err := franz.groupClient(group, topic,
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) { member.Assigned(got[topic]) }),
		kgo.OnPartitionsRevoked(revoked),
		kgo.OnPartitionsLost(revoked),
	)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan error, 1)
	go func() { finished <- consumeUntil(ctx, client, member) }()
	member.Leave = func() error {
		cancel()
		return <-finished
	}
	return member, nil
}

// consumeUntil commits each poll before the next one lets a rebalance begin.
func consumeUntil(ctx context.Context, client *kgo.Client, member *cases.Member) error {
	defer client.CloseAllowingRebalance()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachError(func(_ string, _ int32, err error) {
			if !errors.Is(err, context.Canceled) {
				member.Failed(err)
			}
		})
		fetches.EachRecord(func(record *kgo.Record) { member.Received(converted(record)) })
		if !fetches.Empty() {
			commit, cancel := step()
			err := client.CommitUncommittedOffsets(commit)
			cancel()
			if err != nil && !errors.Is(err, kerr.RebalanceInProgress) && !errors.Is(err, kerr.IllegalGeneration) {
				return err
			}
		}
		client.AllowRebalance()
	}
	return nil
}

func (franz franz) Consume(group, topic string, count int) ([]cases.Record, error) {
	client, err := franz.groupClient(group, topic)
	if err != nil {
		return nil, err
	}
	defer client.CloseAllowingRebalance()
	ctx, cancel := step()
	defer cancel()
	all, taken := []cases.Record{}, []*kgo.Record{}
	for len(taken) < count {
		fetches := client.PollRecords(ctx, count-len(taken))
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		taken = append(taken, fetches.Records()...)
		client.AllowRebalance()
	}
	for _, record := range taken {
		all = append(all, converted(record))
	}
	return all, client.CommitRecords(ctx, taken...)
}

func (franz franz) ProduceNumbers(topic string, partitions int32, numbered *cases.Numbered) error {
	client, err := franz.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for number := 0; numbered.Next(number); number++ {
		record := &kgo.Record{Topic: topic, Partition: int32(number) % partitions, Value: []byte(strconv.Itoa(number))}
		client.Produce(context.Background(), record, func(record *kgo.Record, err error) { numbered.Done(record.Partition, number, err) })
	}
	ctx, cancel := step()
	defer cancel()
	return client.Flush(ctx)
}

func converted(record *kgo.Record) cases.Record {
	headers := []cases.Header{}
	for _, header := range record.Headers {
		headers = append(headers, cases.Header{Name: header.Key, Value: header.Value})
	}
	return cases.Record{
		Partition: record.Partition, Offset: record.Offset, Key: record.Key, Value: record.Value, Headers: headers, Timestamp: record.Timestamp,
	}
}
