// The case list for sarama.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"kaas-client-tests/cases"
)

func main() {
	sarama.Logger = log.New(os.Stderr, "", log.LstdFlags)
	cases.Main(func(bootstrap string) (cases.Client, error) {
		client, err := sarama.NewClient([]string{bootstrap}, configuration())
		return suite{bootstrap, client}, err
	})
}

type suite struct {
	bootstrap string
	client    sarama.Client
}

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func configuration() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Metadata.Retry.Max = 200
	config.Metadata.Retry.Backoff = 100 * time.Millisecond
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Retry.Max = 200
	config.Producer.Retry.Backoff = 100 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.MaxWaitTime = 200 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 10 * time.Second
	return config
}

func makeIdempotent(config *sarama.Config) {
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1 // what sarama demands of an idempotent producer
}

func (suite suite) Name() string    { return "sarama" }
func (suite suite) Version() string { return cases.ModuleVersion("github.com/IBM/sarama") }

func (suite suite) CreateTopic(topic string, partitions int32) error {
	admin, err := sarama.NewClusterAdmin([]string{suite.bootstrap}, configuration())
	if err != nil {
		return err
	}
	defer admin.Close()
	err = admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false)
	if errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return cases.ErrTopicExists
	}
	return err
}

func (suite suite) PartitionCount(topic string) (int, error) {
	if err := suite.client.RefreshMetadata(topic); err != nil {
		return 0, err
	}
	partitions, err := suite.client.Partitions(topic)
	return len(partitions), err
}

func (suite suite) Produce(topic string, records []cases.Record, codec string, byKey bool) error {
	config := configuration()
	config.Producer.Compression = codecs[codec]
	if byKey {
		makeIdempotent(config)
	} else {
		config.Producer.Partitioner = sarama.NewManualPartitioner
	}
	producer, err := sarama.NewSyncProducer([]string{suite.bootstrap}, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	messages := []*sarama.ProducerMessage{}
	for _, record := range records {
		message := &sarama.ProducerMessage{
			Topic: topic, Partition: record.Partition, Key: encoder(record.Key), Value: encoder(record.Value), Timestamp: record.Timestamp,
		}
		for _, header := range record.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Name), Value: header.Value})
		}
		messages = append(messages, message)
	}
	return producer.SendMessages(messages)
}

// encoder keeps null null: a nil slice in an Encoder would be sent as empty.
func encoder(bytes []byte) sarama.Encoder {
	if bytes == nil {
		return nil
	}
	return sarama.ByteEncoder(bytes)
}

func (suite suite) Read(topic string, starts map[int32]int64) ([]cases.Record, error) {
	consumer, err := sarama.NewConsumer([]string{suite.bootstrap}, configuration())
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	all := []cases.Record{}
	for partition, start := range starts {
		end, err := suite.client.GetOffset(topic, partition, sarama.OffsetNewest)
		if err != nil {
			return nil, err
		}
		records, err := readPartition(consumer, topic, partition, start, end)
		if err != nil {
			return nil, err
		}
		all = append(all, records...)
	}
	return all, nil
}

func readPartition(consumer sarama.Consumer, topic string, partition int32, start, end int64) ([]cases.Record, error) {
	reader, err := consumer.ConsumePartition(topic, partition, start)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	deadline := time.After(cases.Step)
	records := []cases.Record{}
	for position := start; position < end; {
		select {
		case message := <-reader.Messages():
			records = append(records, converted(message))
			position = message.Offset + 1
		case <-deadline:
			return nil, errors.New("the end of the partition was not reached")
		}
	}
	return records, nil
}

func (suite suite) OffsetForTime(topic string, partition int32, at time.Time) (int64, error) {
	return suite.client.GetOffset(topic, partition, at.UnixMilli())
}

// handler lets a member see its claims, and commits whenever it has taken all that came.
type handler struct {
	member *cases.Member
	topic  string
}

func (handler handler) Setup(session sarama.ConsumerGroupSession) error {
	handler.member.Assigned(session.Claims()[handler.topic])
	return nil
}

func (handler handler) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	handler.member.Revoked(session.Claims()[handler.topic])
	return nil
}

func (handler handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		handler.member.Received(converted(message))
		session.MarkMessage(message, "")
		if len(claim.Messages()) == 0 {
			session.Commit()
		}
	}
	return nil
}

func (suite suite) Join(group, topic string) (*cases.Member, error) {
	consumer, err := sarama.NewConsumerGroup([]string{suite.bootstrap}, group, configuration())
	if err != nil {
		return nil, err
	}
	member := &cases.Member{}
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan error, 1)
	go func() { finished <- consumeSessions(ctx, consumer, topic, handler{member, topic}) }()
	member.Leave = func() error {
		cancel()
		return errors.Join(<-finished, consumer.Close())
	}
	return member, nil
}

// consumeSessions: each rebalance ends a session.
func consumeSessions(ctx context.Context, group sarama.ConsumerGroup, topic string, handler sarama.ConsumerGroupHandler) error {
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{topic}, handler); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// taker takes a number of messages of all claims and ends the session when it has them.
type taker struct {
	left   chan struct{}
	taken  chan cases.Record
	enough context.CancelFunc
}

func (taker taker) Setup(sarama.ConsumerGroupSession) error { return nil }

func (taker taker) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

func (taker taker) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case <-session.Context().Done():
			return nil
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			select {
			case <-taker.left:
				session.MarkMessage(message, "")
				taker.taken <- converted(message)
			default:
				taker.enough()
				return nil
			}
			if len(taker.left) == 0 {
				taker.enough()
				return nil
			}
		}
	}
}

func (suite suite) Consume(group, topic string, count int) ([]cases.Record, error) {
	consumer, err := sarama.NewConsumerGroup([]string{suite.bootstrap}, group, configuration())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), cases.Step)
	defer cancel()
	taker := taker{left: make(chan struct{}, count), taken: make(chan cases.Record, count), enough: cancel}
	for range count {
		taker.left <- struct{}{}
	}
	err = errors.Join(consumeSessions(ctx, consumer, topic, taker), consumer.Close())
	close(taker.taken)
	all := []cases.Record{}
	for record := range taker.taken {
		all = append(all, record)
	}
	if len(all) < count {
		err = errors.Join(err, errors.New("only "+strconv.Itoa(len(all))+" records came"))
	}
	return all, err
}

func (suite suite) ProduceNumbers(topic string, partitions int32, numbered *cases.Numbered) error {
	config := configuration()
	makeIdempotent(config)
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	producer, err := sarama.NewAsyncProducer([]string{suite.bootstrap}, config)
	if err != nil {
		return err
	}
	// Told apart by two goroutines: a channel that nobody empties stops the producer.
	var outcomes, sent sync.WaitGroup
	outcomes.Go(func() {
		for message := range producer.Successes() {
			numbered.Done(message.Partition, message.Metadata.(int), nil)
			sent.Done()
		}
	})
	outcomes.Go(func() {
		for failure := range producer.Errors() {
			numbered.Done(failure.Msg.Partition, failure.Msg.Metadata.(int), failure.Err)
			sent.Done()
		}
	})
	for number := 0; numbered.Next(number); number++ {
		text := sarama.StringEncoder(strconv.Itoa(number))
		sent.Add(1)
		producer.Input() <- &sarama.ProducerMessage{Topic: topic, Partition: int32(number) % partitions, Value: text, Metadata: number}
	}
	// This client has no flush, and a producer that is told to close gives up batches that it is about to send again.
	sent.Wait()
	producer.AsyncClose()
	outcomes.Wait()
	return nil
}

func converted(message *sarama.ConsumerMessage) cases.Record {
	headers := []cases.Header{}
	for _, header := range message.Headers {
		headers = append(headers, cases.Header{Name: string(header.Key), Value: header.Value})
	}
	return cases.Record{
		Partition: message.Partition, Offset: message.Offset, Key: message.Key, Value: message.Value, Headers: headers, Timestamp: message.Timestamp,
	}
}
