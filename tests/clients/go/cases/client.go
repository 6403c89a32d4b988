package cases

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrTopicExists is what CreateTopic returns when the broker says TOPIC_ALREADY_EXISTS.
var ErrTopicExists = errors.New("the topic exists")

// Record is one record; nil means null for key, value and header values.
type Record struct {
	Partition int32
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   []Header
	Timestamp time.Time
}

// Header is a name and a value; names may repeat.
type Header struct {
	Name  string
	Value []byte
}

// Client is one client library.
type Client interface {
	Name() string
	Version() string
	CreateTopic(topic string, partitions int32) error
	PartitionCount(topic string) (int, error)
	// Produce sends with acks=all and returns when all are acknowledged. byKey: the client's partitioner decides, and the
	// producer is idempotent, since only that keeps the order when a batch has to be sent again.
	Produce(topic string, records []Record, codec string, byKey bool) error
	// Read reads from the given offsets to the present end, without a group.
	Read(topic string, starts map[int32]int64) ([]Record, error)
	// OffsetForTime is −1 when no record is that young.
	OffsetForTime(topic string, partition int32, at time.Time) (int64, error)
	// Join starts a group member that consumes and commits in the background.
	Join(group, topic string) (*Member, error)
	// Consume joins the group, takes count records, commits exactly those, and leaves.
	Consume(group, topic string, count int) ([]Record, error)
	// ProduceNumbers is idempotent with acks=all: number n as text to partition n % partitions, until told to stop;
	// then it flushes.
	ProduceNumbers(topic string, partitions int32, numbers *Numbered) error
}

// Member is what a group member has been given so far.
type Member struct {
	mutex      sync.Mutex
	assignment map[int32]bool
	records    []Record
	err        error
	// Leave commits what was delivered and leaves the group.
	Leave func() error
}

// Assigned adds partitions.
func (member *Member) Assigned(partitions []int32) {
	member.mutex.Lock()
	defer member.mutex.Unlock()
	if member.assignment == nil {
		member.assignment = map[int32]bool{}
	}
	for _, partition := range partitions {
		member.assignment[partition] = true
	}
}

// Revoked takes partitions away.
func (member *Member) Revoked(partitions []int32) {
	member.mutex.Lock()
	defer member.mutex.Unlock()
	for _, partition := range partitions {
		delete(member.assignment, partition)
	}
}

// Received appends records.
func (member *Member) Received(records ...Record) {
	member.mutex.Lock()
	defer member.mutex.Unlock()
	member.records = append(member.records, records...)
}

// Failed keeps the error for the case, which ends with it.
func (member *Member) Failed(err error) {
	member.mutex.Lock()
	defer member.mutex.Unlock()
	member.err = err
}

func (member *Member) partitions() []int32 {
	member.mutex.Lock()
	defer member.mutex.Unlock()
	must(member.err)
	partitions := []int32{}
	for partition := range member.assignment {
		partitions = append(partitions, partition)
	}
	return partitions
}

func (member *Member) numbers() []int {
	member.mutex.Lock()
	defer member.mutex.Unlock()
	must(member.err)
	return numbersOf(member.records)
}

// Numbered is what a producer of numbers is told, and what became of the numbers.
type Numbered struct {
	stop         atomic.Bool
	mutex        sync.Mutex
	acknowledged map[int32][]int
	count        int
	failures     []string
}

// Next says whether to send the number, at a pace of about two thousand a second, so that the topic stays small
// enough to read back.
func (numbered *Numbered) Next(number int) bool {
	if number%10 == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	return !numbered.stop.Load()
}

// Done notes the fate of one number.
func (numbered *Numbered) Done(partition int32, number int, err error) {
	numbered.mutex.Lock()
	defer numbered.mutex.Unlock()
	if err != nil {
		numbered.failures = append(numbered.failures, err.Error())
		return
	}
	if numbered.acknowledged == nil {
		numbered.acknowledged = map[int32][]int{}
	}
	numbered.acknowledged[partition] = append(numbered.acknowledged[partition], number)
	numbered.count++
}

func (numbered *Numbered) total() int {
	numbered.mutex.Lock()
	defer numbered.mutex.Unlock()
	return numbered.count
}
