'use strict'
// The case list for kafkajs: kafkajs.js BOOTSTRAP CASE…

const { randomBytes } = require('node:crypto')
const { Kafka, Partitioners, logLevel } = require('kafkajs')
const { version } = require('kafkajs/package.json')
const codecs = require('./codecs')
const { killBroker, pause, waitUntil, expectEqual, run } = require('./protocol')

const kafka = new Kafka({
  brokers: [process.argv[2]],
  logLevel: logLevel.WARN,
  retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 60 },
})

// Helpers over the client

const name = (kind) => `kafkajs-${kind}-${randomBytes(3).toString('hex')}`
const range = (first, end) => Array.from({ length: end - first }, (_, index) => first + index)
const sorted = (numbers) => [...numbers].sort((a, b) => a - b)
const number = (message) => Number(message.value.toString())

async function withAdmin(work) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

/** False when the topic is there already: kafkajs makes that of TOPIC_ALREADY_EXISTS. */
const createTopic = (topic, numPartitions) =>
  withAdmin((admin) => admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: 1 }] }))

async function newTopic(kind, partitions) {
  const topic = name(kind)
  await createTopic(topic, partitions)
  return topic
}

async function produce(topic, messages, compression = codecs.none) {
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  try {
    await producer.send({ topic, acks: -1, compression, messages })
  } finally {
    await producer.disconnect()
  }
}

/** A send for each partition: kafkajs repeats a whole send, also what succeeded, when one of its partitions failed. */
async function produceNumbers(topic, partitions, first, end) {
  for (const partition of range(0, partitions)) {
    const numbers = range(first, end).filter((n) => n % partitions === partition)
    await produce(topic, numbers.map((n) => ({ value: String(n), partition })))
  }
}

const newConsumer = (groupId) =>
  kafka.consumer({ groupId, heartbeatInterval: 300, sessionTimeout: 10_000, maxWaitTimeInMs: 100 })

/** kafkajs only consumes in groups: one of its own, started at the given offsets (default 0), up to the present end. */
async function readAll(topic, starts = {}) {
  const ends = await withAdmin((admin) => admin.fetchTopicOffsets(topic))
  const open = new Map(ends.filter((end) => Number(end.high) > 0).map((end) => [end.partition, Number(end.high)]))
  const consumer = newConsumer(name('reader'))
  const messages = []
  await consumer.connect()
  try {
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachBatch: async ({ batch }) => {
        if (Number(batch.firstOffset()) < (starts[batch.partition] ?? 0)) return // fetched before the seek took effect
        for (const message of batch.messages) messages.push({ ...message, partition: batch.partition })
        if (Number(batch.lastOffset()) + 1 >= open.get(batch.partition)) open.delete(batch.partition)
      },
    })
    for (const [partition, offset] of Object.entries(starts)) {
      consumer.seek({ topic, partition: Number(partition), offset: String(offset) })
    }
    await waitUntil('the end of the topic', () => open.size === 0)
    return messages
  } finally {
    await consumer.disconnect()
  }
}

/** Joins the group, takes `count` records, commits exactly those, and leaves. */
async function consume(groupId, topic, count) {
  const consumer = newConsumer(groupId)
  const messages = []
  await consumer.connect()
  try {
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        if (messages.length < count) messages.push({ ...message, partition })
      },
    })
    await waitUntil(`${count} records`, () => messages.length === count)
    const positions = new Map(messages.map((message) => [message.partition, String(Number(message.offset) + 1)]))
    await consumer.commitOffsets([...positions].map(([partition, offset]) => ({ topic, partition, offset })))
    return messages
  } finally {
    await consumer.disconnect()
  }
}

/** A group member that consumes and commits in the background until it is stopped. */
async function newMember(groupId, topic) {
  const consumer = newConsumer(groupId)
  const member = { assignment: [], numbers: [], error: undefined, stop: () => consumer.disconnect() }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => (member.assignment = sorted(payload.memberAssignment[topic] ?? [])))
  consumer.on(consumer.events.REBALANCING, () => (member.assignment = []))
  consumer.on(consumer.events.CRASH, ({ payload }) => (member.error = payload.error))
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  // Each batch is committed when its handler is done.
  await consumer.run({ eachBatch: async ({ batch }) => void member.numbers.push(...batch.messages.map(number)) })
  return member
}

// The cases

async function caseCreateTopic() {
  const topic = name('create')
  expectEqual('created', await createTopic(topic, 3), true)
  const { topics } = await withAdmin((admin) => admin.fetchTopicMetadata({ topics: [topic] }))
  expectEqual('number of partitions', topics[0].partitions.length, 3)
  expectEqual('created a second time', await createTopic(topic, 3), false)
  return '3 partitions; a second time: TOPIC_ALREADY_EXISTS'
}

async function caseCompression(codec) {
  const topic = await newTopic(`produce-${codec}`, 3)
  const sent = range(0, 1500).map((n) => ({
    key: `key-${n}`,
    value: `${n} ${'words that repeat '.repeat((n * 7) % 20)}${randomBytes(40).toString('hex')}`,
    partition: n % 3,
  }))
  await produce(topic, sent, codecs[codec])
  const contents = (messages) => messages.map(({ partition, key, value }) => `${partition} ${key} ${value}`).sort()
  expectEqual('records', contents(await readAll(topic)), contents(sent))
  return `${sent.length} records`
}

async function caseKeyed() {
  const topic = await newTopic('keyed', 4)
  const keys = range(0, 20).map((n) => `key-${n}`)
  await produce(topic, range(0, 50).flatMap((turn) => keys.map((key) => ({ key, value: String(turn) }))))
  const turns = new Map(keys.map((key) => [key, []]))
  const places = new Map(keys.map((key) => [key, new Set()]))
  for (const message of await readAll(topic)) {
    turns.get(message.key.toString()).push(number(message))
    places.get(message.key.toString()).add(message.partition)
  }
  for (const key of keys) {
    expectEqual(`values of ${key}`, turns.get(key), range(0, 50))
    expectEqual(`number of partitions of ${key}`, places.get(key).size, 1)
  }
  const used = new Set([...places.values()].flatMap((set) => [...set])).size
  if (used < 2) throw new Error('all keys went to one partition')
  return `20 keys on ${used} of 4 partitions`
}

async function caseHeaders() {
  const topic = await newTopic('headers', 1)
  const binary = Buffer.from(range(128, 256))
  const sent = [{ a: ['1', '2'], b: binary, empty: '' }, {}, { schlüssel: 'größe' }]
  await produce(topic, sent.map((headers) => ({ value: 'value', headers })))
  const text = (value) => (Array.isArray(value) ? value.map(text) : Buffer.from(value).toString('hex'))
  const comparable = (headers) => Object.entries(headers).map(([key, value]) => [key, text(value)])
  expectEqual('headers', (await readAll(topic)).map(({ headers }) => comparable(headers)), sent.map(comparable))
  return 'repeated, empty, binary, unicode'
}

async function caseTombstones() {
  const topic = await newTopic('tombstones', 1)
  const sent = ['v', null, '', null]
  await produce(topic, sent.map((value) => ({ key: 'k', value })))
  expectEqual('values', (await readAll(topic)).map(({ value }) => value && value.toString()), sent)
  return 'null values stay null'
}

async function caseGroupRebalance() {
  const topic = await newTopic('rebalance', 4)
  const groupId = name('group')
  const everything = [0, 1, 2, 3]
  const members = []
  const seen = () => {
    for (const { error } of members) if (error) throw error
    return new Set(members.flatMap((member) => member.numbers))
  }
  const join = async () => {
    members.push(await newMember(groupId, topic))
    return members.at(-1)
  }
  const allArrived = (count) => waitUntil(`all ${count} records`, () => seen().size === count)
  const hasAll = (member) => () => seen() && String(member.assignment) === String(everything)

  await produceNumbers(topic, 4, 0, 200)
  const first = await join()
  await waitUntil('the first member to get all partitions', hasAll(first))
  await allArrived(200)
  const second = await join()
  await waitUntil('both members to share the partitions', () => {
    const union = sorted([...first.assignment, ...second.assignment])
    return seen() && first.assignment.length > 0 && second.assignment.length > 0 && String(union) === String(everything)
  })
  const shared = `${first.assignment.length}+${second.assignment.length}`
  await produceNumbers(topic, 4, 200, 400)
  await allArrived(400)
  if (second.numbers.length === 0) throw new Error('the second member consumed nothing')
  await second.stop()
  await waitUntil('the first member to get all partitions back', hasAll(first))
  await produceNumbers(topic, 4, 400, 600)
  await allArrived(600)
  await first.stop()
  const redelivered = first.numbers.length + second.numbers.length - 600
  await produceNumbers(topic, 4, 600, 640)
  const third = await join()
  await waitUntil('the third member to get the newest records', () => seen() && third.numbers.length >= 40)
  await third.stop()
  expectEqual('what is behind the committed offsets', sorted(third.numbers), range(600, 640))
  return `4, then ${shared}, then 4 partitions; ${redelivered} redelivered`
}

async function caseSeekByTime() {
  const topic = await newTopic('time', 2)
  const base = Date.now() - 100_000
  const sent = range(0, 100).flatMap((n) =>
    [0, 1].map((partition) => ({ value: String(n), partition, timestamp: String(base + n * 1000) })))
  await produce(topic, sent)
  // For a time after all records kafkajs gives the end of the partition.
  for (const [milliseconds, expected] of [[50_000, 50], [49_500, 50], [-10_000, 0], [99_001, 100]]) {
    const found = await withAdmin((admin) => admin.fetchTopicOffsetsByTimestamp(topic, base + milliseconds))
    const offsets = found.sort((a, b) => a.partition - b.partition).map(({ offset }) => Number(offset))
    expectEqual(`offsets ${milliseconds} ms after the first record`, offsets, [expected, expected])
  }
  const received = await readAll(topic, { 0: 50, 1: 50 })
  expectEqual('records from there', sorted(received.map(number)), range(50, 100).flatMap((n) => [n, n]))
  const bases = new Set(received.map((message) => Number(message.timestamp) - number(message) * 1000))
  expectEqual('timestamps', [...bases], [base])
  return 'exact, between, before and after all'
}

async function caseCommitResume() {
  const topic = await newTopic('resume', 2)
  const groupId = name('group')
  await produceNumbers(topic, 2, 0, 1000)
  const before = await consume(groupId, topic, 400)
  await produceNumbers(topic, 2, 1000, 1200)
  await killBroker()
  await produceNumbers(topic, 2, 1200, 1400)
  const after = await consume(groupId, topic, 1400 - before.length)
  const all = [...before, ...after]
  expectEqual('numbers consumed before and after', sorted(all.map(number)), range(0, 1400))
  for (const partition of [0, 1]) {
    const offsets = all.filter((message) => message.partition === partition).map((message) => Number(message.offset))
    expectEqual(`offsets of partition ${partition}`, offsets, range(0, 700))
  }
  return `${before.length} before, ${after.length} after the restart`
}

async function caseIdempotentRestart() {
  const partitions = 3
  const topic = await newTopic('idempotent', partitions)
  const acknowledged = []
  let stopping = false
  const sending = sendNumbers(topic, partitions, acknowledged, () => stopping)
  let failure
  sending.catch((error) => (failure = error))
  const more = (count) => {
    const goal = acknowledged.length + count
    return waitUntil(`${count} more acknowledgements`, () => {
      if (failure) throw failure
      return acknowledged.length >= goal
    })
  }
  for (let kills = 0; kills < 2; kills += 1) {
    await more(500)
    await killBroker()
  }
  await more(500)
  stopping = true
  await sending
  const stored = range(0, partitions).map(() => [])
  for (const message of await readAll(topic)) stored[message.partition].push(number(message))
  for (const partition of range(0, partitions)) {
    const numbers = stored[partition]
    expectEqual(`numbers in partition ${partition}`, numbers, sorted(new Set(numbers)))
    const there = new Set(numbers)
    const lost = acknowledged.filter((n) => n % partitions === partition && !there.has(n))
    expectEqual(`acknowledged records lost in partition ${partition}`, lost, [])
  }
  return `${acknowledged.length} acknowledged, each there once and in order`
}

/** An idempotent kafkajs producer has one request in flight, so it sends ten at a time. */
async function sendNumbers(topic, partitions, acknowledged, stopping) {
  const producer = kafka.producer({
    idempotent: true,
    maxInFlightRequests: 1,
    createPartitioner: Partitioners.DefaultPartitioner,
    retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: Number.MAX_SAFE_INTEGER },
  })
  await producer.connect()
  for (let next = 0; !stopping(); next += 10) {
    const numbers = range(next, next + 10)
    await producer.send({ topic, acks: -1, messages: numbers.map((n) => ({ value: String(n), partition: n % partitions })) })
    acknowledged.push(...numbers)
    await pause(5)
  }
  await producer.disconnect()
}

const cases = {
  create_topic: caseCreateTopic,
  keyed: caseKeyed,
  headers: caseHeaders,
  tombstones: caseTombstones,
  group_rebalance: caseGroupRebalance,
  seek_by_time: caseSeekByTime,
  commit_resume: caseCommitResume,
  idempotent_restart: caseIdempotentRestart,
}
for (const codec of Object.keys(codecs)) cases[`produce_${codec}`] = () => caseCompression(codec)

run(version, cases, process.argv.slice(3))
