package cases

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Main is the program: BOOTSTRAP CASE…
func Main(connect func(bootstrap string) (Client, error)) {
	suite := suite{value(connect(os.Args[1]))}
	say("VERSION " + suite.client.Version())
	table := map[string]func() string{
		"create_topic":       suite.createTopic,
		"keyed":              suite.keyed,
		"headers":            suite.headers,
		"tombstones":         suite.tombstones,
		"group_rebalance":    suite.groupRebalance,
		"seek_by_time":       suite.seekByTime,
		"commit_resume":      suite.commitResume,
		"idempotent_restart": suite.idempotentRestart,
	}
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		table["produce_"+codec] = func() string { return suite.compression(codec) }
	}
	for _, name := range os.Args[2:] {
		runCase(name, table[name])
	}
}

type suite struct{ client Client }

func (suite suite) createTopic() string {
	topic := suite.topic("create", 3)
	waitUntil("three partitions in the metadata", func() bool { return value(suite.client.PartitionCount(topic)) == 3 })
	err := suite.client.CreateTopic(topic, 3)
	require(errors.Is(err, ErrTopicExists), "creating the topic a second time: %v", err)
	return "3 partitions; a second time: TOPIC_ALREADY_EXISTS"
}

func (suite suite) compression(codec string) string {
	topic := suite.topic("produce-"+codec, 3)
	sent := []Record{}
	for number := range 1500 {
		text := fmt.Sprintf("%06d %s%x", number, strings.Repeat("words that repeat ", rand.Intn(20)), rand.Uint64())
		sent = append(sent, Record{Key: []byte(fmt.Sprintf("key-%d", number)), Value: []byte(text), Partition: int32(number % 3)})
	}
	must(suite.client.Produce(topic, sent, codec, false))
	expectEqual("records", contents(suite.readAll(topic, 3)), contents(sent))
	return fmt.Sprintf("%d records", len(sent))
}

func contents(records []Record) []string {
	texts := []string{}
	for _, record := range records {
		texts = append(texts, fmt.Sprintf("%d %s %s", record.Partition, record.Key, record.Value))
	}
	slices.Sort(texts)
	return texts
}

func (suite suite) keyed() string {
	topic := suite.topic("keyed", 4)
	sent := []Record{}
	for turn := range 50 {
		for key := range 20 {
			sent = append(sent, Record{Key: []byte(fmt.Sprintf("key-%d", key)), Value: []byte(strconv.Itoa(turn))})
		}
	}
	must(suite.client.Produce(topic, sent, "none", true))
	byKey, used := map[string][]Record{}, map[int32]bool{}
	for _, record := range suite.readAll(topic, 4) {
		byKey[string(record.Key)] = append(byKey[string(record.Key)], record)
		used[record.Partition] = true
	}
	expectEqual("number of keys", len(byKey), 20)
	for key, records := range byKey {
		expectEqual("values of "+key, numbersOf(records), numbers(0, 50))
		for _, record := range records {
			expectEqual("partition of "+key, record.Partition, records[0].Partition)
		}
	}
	require(len(used) > 1, "all keys went to one partition")
	return fmt.Sprintf("20 keys on %d of 4 partitions", len(used))
}

func (suite suite) headers() string {
	topic := suite.topic("headers", 1)
	binary := []byte{}
	for code := 128; code < 256; code++ {
		binary = append(binary, byte(code))
	}
	sent := [][]Header{
		{{"a", []byte("1")}, {"b", binary}, {"a", []byte("2")}, {"empty", []byte{}}},
		{},
		{{"schlüssel", []byte("größe")}},
		{{"null", nil}},
	}
	records := []Record{}
	for _, headers := range sent {
		records = append(records, Record{Value: []byte("value"), Headers: headers})
	}
	must(suite.client.Produce(topic, records, "none", false))
	for index, record := range suite.readAll(topic, 1) {
		expectEqual("headers", text(record.Headers), text(sent[index]))
	}
	return "repeated, empty, binary, unicode, null"
}

// text tells null from empty.
func text(headers []Header) string {
	texts := []string{}
	for _, header := range headers {
		texts = append(texts, fmt.Sprintf("%s=%x null:%t", header.Name, header.Value, header.Value == nil))
	}
	return strings.Join(texts, ", ")
}

func (suite suite) tombstones() string {
	topic := suite.topic("tombstones", 1)
	sent := [][]byte{[]byte("v"), nil, {}, nil}
	records := []Record{}
	for _, value := range sent {
		records = append(records, Record{Key: []byte("k"), Value: value})
	}
	must(suite.client.Produce(topic, records, "none", false))
	received := [][]byte{}
	for _, record := range suite.readAll(topic, 1) {
		received = append(received, record.Value)
	}
	expectEqual("values", received, sent)
	return "null values stay null"
}

func (suite suite) groupRebalance() string {
	topic, group := suite.topic("rebalance", 4), suite.name("group")
	members := []*Member{}
	seen := func() []int {
		all := []int{}
		for _, member := range members {
			all = append(all, member.numbers()...)
		}
		slices.Sort(all)
		return all
	}
	allArrived := func(count int) {
		waitUntil(fmt.Sprintf("all %d records", count), func() bool { return len(slices.Compact(seen())) == count })
	}
	join := func() *Member {
		member := value(suite.client.Join(group, topic))
		members = append(members, member)
		return member
	}

	suite.produceNumbers(topic, 4, 0, 200)
	first := join()
	waitUntil("the first member to get all partitions", func() bool { return len(first.partitions()) == 4 })
	allArrived(200)
	second := join()
	waitUntil("both members to share the partitions", func() bool {
		one, other := first.partitions(), second.partitions()
		union := slices.Sorted(slices.Values(slices.Concat(one, other)))
		return len(one) > 0 && len(other) > 0 && slices.Equal(union, []int32{0, 1, 2, 3})
	})
	shared := fmt.Sprintf("%d+%d", len(first.partitions()), len(second.partitions()))
	suite.produceNumbers(topic, 4, 200, 400)
	allArrived(400)
	require(len(second.numbers()) > 0, "the second member consumed nothing")
	must(second.Leave())
	waitUntil("the first member to get all partitions back", func() bool { return len(first.partitions()) == 4 })
	suite.produceNumbers(topic, 4, 400, 600)
	allArrived(600)
	must(first.Leave())
	redelivered := len(seen()) - 600
	suite.produceNumbers(topic, 4, 600, 640)
	third := join()
	waitUntil("the third member to get the newest records", func() bool { return len(third.numbers()) >= 40 })
	must(third.Leave())
	expectEqual("what is behind the committed offsets", slices.Sorted(slices.Values(third.numbers())), numbers(600, 640))
	return fmt.Sprintf("4, then %s, then 4 partitions; %d redelivered", shared, redelivered)
}

func (suite suite) seekByTime() string {
	topic := suite.topic("time", 2)
	base := time.UnixMilli(time.Now().UnixMilli() - 100_000)
	sent := []Record{}
	for number := range 100 {
		for partition := range int32(2) {
			at := base.Add(time.Duration(number) * time.Second)
			sent = append(sent, Record{Value: []byte(strconv.Itoa(number)), Partition: partition, Timestamp: at})
		}
	}
	must(suite.client.Produce(topic, sent, "none", false))
	for milliseconds, expected := range map[int]int64{50_000: 50, 49_500: 50, -10_000: 0, 99_001: -1} {
		for partition := range int32(2) {
			at := base.Add(time.Duration(milliseconds) * time.Millisecond)
			found := value(suite.client.OffsetForTime(topic, partition, at))
			expectEqual(fmt.Sprintf("offset %d ms after the first record", milliseconds), found, expected)
		}
	}
	received := value(suite.client.Read(topic, map[int32]int64{0: 50, 1: 50}))
	expected := slices.Sorted(slices.Values(slices.Concat(numbers(50, 100), numbers(50, 100))))
	expectEqual("records from there", slices.Sorted(slices.Values(numbersOf(received))), expected)
	for index, number := range numbersOf(received) {
		first := received[index].Timestamp.Add(-time.Duration(number) * time.Second)
		expectEqual("timestamp of the first record", first.UnixMilli(), base.UnixMilli())
	}
	return "exact, between, before and after all"
}

func (suite suite) commitResume() string {
	topic, group := suite.topic("resume", 2), suite.name("group")
	suite.produceNumbers(topic, 2, 0, 1000)
	before := value(suite.client.Consume(group, topic, 400))
	suite.produceNumbers(topic, 2, 1000, 1200)
	killBroker()
	suite.produceNumbers(topic, 2, 1200, 1400)
	after := value(suite.client.Consume(group, topic, 1400-len(before)))
	all := slices.Concat(before, after)
	expectEqual("numbers consumed before and after", slices.Sorted(slices.Values(numbersOf(all))), numbers(0, 1400))
	for partition := range int32(2) {
		offsets := []int{}
		for _, record := range all {
			if record.Partition == partition {
				offsets = append(offsets, int(record.Offset))
			}
		}
		expectEqual(fmt.Sprintf("offsets of partition %d", partition), offsets, numbers(0, 700))
	}
	return fmt.Sprintf("%d before, %d after the restart", len(before), len(after))
}

func (suite suite) idempotentRestart() string {
	const partitions = 3
	topic := suite.topic("idempotent", partitions)
	numbered := &Numbered{}
	finished := make(chan error, 1)
	go func() { finished <- suite.client.ProduceNumbers(topic, partitions, numbered) }()
	more := func(count int) {
		goal := numbered.total() + count
		waitUntil(fmt.Sprintf("%d more acknowledgements", count), func() bool { return numbered.total() >= goal })
	}
	for range 2 {
		more(500)
		killBroker()
	}
	more(500)
	numbered.stop.Store(true)
	select {
	case err := <-finished:
		must(err)
	case <-time.After(Step):
		require(false, "the producer did not flush")
	}
	require(len(numbered.failures) == 0, "failed sends: %s", cut(numbered.failures))
	stored := map[int32][]int{}
	for _, record := range suite.readAll(topic, partitions) {
		stored[record.Partition] = append(stored[record.Partition], number(record))
	}
	for partition, found := range stored {
		once := slices.Compact(slices.Sorted(slices.Values(found)))
		expectEqual(fmt.Sprintf("numbers in partition %d", partition), found, once)
		for _, number := range numbered.acknowledged[partition] {
			_, there := slices.BinarySearch(once, number)
			require(there, "acknowledged record %d lost in partition %d", number, partition)
		}
	}
	return fmt.Sprintf("%d acknowledged, each there once and in order", numbered.total())
}

func (suite suite) name(kind string) string {
	return fmt.Sprintf("%s-%s-%06x", suite.client.Name(), kind, rand.Intn(1<<24))
}

func (suite suite) topic(kind string, partitions int32) string {
	topic := suite.name(kind)
	must(suite.client.CreateTopic(topic, partitions))
	return topic
}

func (suite suite) produceNumbers(topic string, partitions, first, end int) {
	records := []Record{}
	for _, number := range numbers(first, end) {
		records = append(records, Record{Value: []byte(strconv.Itoa(number)), Partition: int32(number % partitions)})
	}
	must(suite.client.Produce(topic, records, "none", false))
}

func (suite suite) readAll(topic string, partitions int32) []Record {
	starts := map[int32]int64{}
	for partition := range partitions {
		starts[partition] = 0
	}
	return value(suite.client.Read(topic, starts))
}

func numbers(first, end int) []int {
	all := []int{}
	for number := first; number < end; number++ {
		all = append(all, number)
	}
	return all
}

func number(record Record) int {
	return value(strconv.Atoi(string(record.Value)))
}

func numbersOf(records []Record) []int {
	all := []int{}
	for _, record := range records {
		all = append(all, number(record))
	}
	return all
}
