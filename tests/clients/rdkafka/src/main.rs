//! The case list for the rdkafka crate: `kaas-client-rdkafka BOOTSTRAP CASE…`.

mod client;
mod protocol;

use std::collections::{BTreeMap, BTreeSet};
use std::env::args;
use std::time::{SystemTime, UNIX_EPOCH};

use client::{Client, Member, OwnedHeader, Record};
use protocol::{Outcome, expect_equal, kill_broker, say, wait_until};

fn main() -> Outcome<()> {
    let arguments: Vec<String> = args().skip(1).collect();
    let (bootstrap, names) = arguments.split_first().ok_or("usage: BOOTSTRAP CASE…")?;
    let cases = Cases(Client::new(bootstrap)?);
    say(&format!("VERSION 0.39.0 (librdkafka {})", rdkafka::util::get_rdkafka_version().1));
    for name in names {
        let result = match cases.run(name) {
            Ok(detail) => format!("PASS {detail}"),
            Err(error) => format!("FAIL {error}"),
        };
        say(&format!("CASE {name} {result}"));
    }
    Ok(())
}

struct Cases(Client);

impl Cases {
    fn run(&self, case: &str) -> Outcome<String> {
        match case {
            "create_topic" => self.create_topic(),
            "keyed" => self.keyed(),
            "headers" => self.headers(),
            "tombstones" => self.tombstones(),
            "group_rebalance" => self.group_rebalance(),
            "seek_by_time" => self.seek_by_time(),
            "commit_resume" => self.commit_resume(),
            "idempotent_restart" => self.idempotent_restart(),
            _ => match case.strip_prefix("produce_") {
                Some(codec) => self.compression(codec),
                None => Err(format!("no such case: {case}").into()),
            },
        }
    }

    fn create_topic(&self) -> Outcome<String> {
        let topic = self.topic("create", 3)?;
        wait_until("three partitions in the metadata", || Ok(self.0.partition_count(&topic)? == 3))?;
        expect_equal("created a second time", self.0.create_topic(&topic, 3)?, false)?;
        Ok("3 partitions; a second time: TOPIC_ALREADY_EXISTS".to_owned())
    }

    fn compression(&self, codec: &str) -> Outcome<String> {
        let topic = self.topic(&format!("produce-{codec}"), 3)?;
        let sent: Vec<Record> = (0..1500)
            .map(|number| Record {
                key: Some(format!("key-{number}").into_bytes()),
                value: Some(format!("{number:06} {}", "words that repeat ".repeat(number * 7 % 20)).into_bytes()),
                partition: (number % 3) as i32,
                ..Record::default()
            })
            .collect();
        self.0.produce(&topic, &sent, codec, false)?;
        let contents = |records: Vec<Record>| {
            records.into_iter().map(|record| (record.partition, record.key, record.value)).collect::<BTreeSet<_>>()
        };
        let received = self.read_all(&topic, 3)?;
        expect_equal("number of records", received.len(), sent.len())?;
        expect_equal("records", contents(received), contents(sent))?;
        Ok("1500 records".to_owned())
    }

    fn keyed(&self) -> Outcome<String> {
        let topic = self.topic("keyed", 4)?;
        let record = |turn: usize, key: usize| Record {
            key: Some(format!("key-{key}").into_bytes()),
            value: Some(turn.to_string().into_bytes()),
            ..Record::default()
        };
        let sent: Vec<Record> = (0..50).flat_map(|turn| (0..20).map(move |key| record(turn, key))).collect();
        self.0.produce(&topic, &sent, "none", true)?;
        let mut by_key: BTreeMap<_, Vec<Record>> = BTreeMap::new();
        for record in self.read_all(&topic, 4)? {
            by_key.entry(record.key.clone()).or_default().push(record);
        }
        expect_equal("number of keys", by_key.len(), 20)?;
        let mut used = BTreeSet::new();
        for records in by_key.values() {
            expect_equal("values of a key", numbers(records), (0..50).collect::<Vec<_>>())?;
            let places: BTreeSet<i32> = records.iter().map(|record| record.partition).collect();
            expect_equal("number of partitions of a key", places.len(), 1)?;
            used.extend(places);
        }
        expect_equal("keys spread over partitions", used.len() > 1, true)?;
        Ok(format!("20 keys on {} of 4 partitions", used.len()))
    }

    fn headers(&self) -> Outcome<String> {
        let topic = self.topic("headers", 1)?;
        let header = |name: &str, value: &[u8]| (name.to_owned(), Some(value.to_vec()));
        let binary: Vec<u8> = (128..=255).collect();
        let sent: Vec<Vec<OwnedHeader>> = vec![
            vec![header("a", b"1"), header("b", &binary), header("a", b"2"), header("empty", b"")],
            vec![],
            vec![header("schlüssel", "größe".as_bytes())],
            vec![("null".to_owned(), None)],
        ];
        let records: Vec<Record> = sent
            .iter()
            .map(|headers| Record { value: Some(b"value".to_vec()), headers: headers.clone(), ..Record::default() })
            .collect();
        self.0.produce(&topic, &records, "none", false)?;
        let received: Vec<_> = self.read_all(&topic, 1)?.into_iter().map(|record| record.headers).collect();
        expect_equal("headers", received, sent)?;
        Ok("repeated, empty, binary, unicode, null".to_owned())
    }

    fn tombstones(&self) -> Outcome<String> {
        let topic = self.topic("tombstones", 1)?;
        let sent = [Some(b"v".to_vec()), None, Some(vec![]), None];
        let records = sent.clone().map(|value| Record { key: Some(b"k".to_vec()), value, ..Record::default() });
        self.0.produce(&topic, &records, "none", false)?;
        let received: Vec<_> = self.read_all(&topic, 1)?.into_iter().map(|record| record.value).collect();
        expect_equal("values", received, sent)?;
        Ok("null values stay null".to_owned())
    }

    fn group_rebalance(&self) -> Outcome<String> {
        let (topic, group) = (self.topic("rebalance", 4)?, name("group"));
        let everything: BTreeSet<i32> = (0..4).collect();
        self.produce_numbers(&topic, 4, 0..200)?;
        let mut first = self.0.join(&group, &topic)?;
        wait_until("the first member to get all partitions", || {
            first.check()?;
            Ok(first.assignment() == everything)
        })?;
        all_arrived(200, &mut [&mut first])?;
        let mut second = self.0.join(&group, &topic)?;
        wait_until("both members to share the partitions", || {
            first.check()?;
            second.check()?;
            let (one, other) = (first.assignment(), second.assignment());
            Ok(!one.is_empty() && !other.is_empty() && one.is_disjoint(&other) && &one | &other == everything)
        })?;
        let shared = format!("{}+{}", first.assignment().len(), second.assignment().len());
        self.produce_numbers(&topic, 4, 200..400)?;
        all_arrived(400, &mut [&mut first, &mut second])?;
        expect_equal("the second member consumed", !second.numbers().is_empty(), true)?;
        second.stop()?;
        wait_until("the first member to get all partitions back", || {
            first.check()?;
            Ok(first.assignment() == everything)
        })?;
        self.produce_numbers(&topic, 4, 400..600)?;
        all_arrived(600, &mut [&mut first, &mut second])?;
        first.stop()?;
        let redelivered = first.numbers().len() + second.numbers().len() - 600;
        self.produce_numbers(&topic, 4, 600..640)?;
        let mut third = self.0.join(&group, &topic)?;
        wait_until("the third member to get the newest records", || {
            third.check()?;
            Ok(third.numbers().len() >= 40)
        })?;
        third.stop()?;
        expect_equal("what is behind the committed offsets", sorted(third.numbers()), (600..640).collect::<Vec<_>>())?;
        Ok(format!("4, then {shared}, then 4 partitions; {redelivered} redelivered"))
    }

    fn seek_by_time(&self) -> Outcome<String> {
        let topic = self.topic("time", 2)?;
        let base = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())? - 100_000;
        let record = |number: i64, partition: i32| Record {
            partition,
            value: Some(number.to_string().into_bytes()),
            timestamp: Some(base + number * 1000),
            ..Record::default()
        };
        let sent: Vec<Record> = (0..100).flat_map(|number| [record(number, 0), record(number, 1)]).collect();
        self.0.produce(&topic, &sent, "none", false)?;
        for (milliseconds, expected) in [(50_000, Some(50)), (49_500, Some(50)), (-10_000, Some(0)), (99_001, None)] {
            for partition in [0, 1] {
                let found = self.0.offset_for_time(&topic, partition, base + milliseconds)?;
                expect_equal(&format!("offset {milliseconds} ms after the first record"), found, expected)?;
            }
        }
        let received = self.0.read(&topic, &BTreeMap::from([(0, 50), (1, 50)]))?;
        let expected: Vec<usize> = (50..100).flat_map(|number| [number, number]).collect();
        expect_equal("records from there", sorted(numbers(&received)), expected)?;
        for record in received {
            let at = i64::try_from(record.number())? * 1000 + base;
            expect_equal("timestamp", record.timestamp, Some(at))?;
        }
        Ok("exact, between, before and after all".to_owned())
    }

    fn commit_resume(&self) -> Outcome<String> {
        let (topic, group) = (self.topic("resume", 2)?, name("group"));
        self.produce_numbers(&topic, 2, 0..1000)?;
        let mut all = self.0.consume(&group, &topic, 400)?;
        let before = all.len();
        self.produce_numbers(&topic, 2, 1000..1200)?;
        kill_broker()?;
        self.produce_numbers(&topic, 2, 1200..1400)?;
        all.extend(self.0.consume(&group, &topic, 1400 - before)?);
        expect_equal("numbers consumed before and after", sorted(numbers(&all)), (0..1400).collect::<Vec<_>>())?;
        for partition in [0, 1] {
            let offsets: Vec<i64> =
                all.iter().filter(|record| record.partition == partition).map(|record| record.offset).collect();
            expect_equal(&format!("offsets of partition {partition}"), offsets, (0..700).collect::<Vec<_>>())?;
        }
        Ok(format!("{before} before, {} after the restart", all.len() - before))
    }

    fn idempotent_restart(&self) -> Outcome<String> {
        const PARTITIONS: i32 = 3;
        let topic = self.topic("idempotent", PARTITIONS)?;
        let producer = self.0.produce_numbers(&topic, PARTITIONS as usize)?;
        for _ in 0..2 {
            producer.await_more(500)?;
            kill_broker()?;
        }
        producer.await_more(500)?;
        let acknowledged = producer.stop()?;
        let mut stored: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        for record in self.read_all(&topic, PARTITIONS)? {
            stored.entry(record.partition).or_default().push(record.number());
        }
        for (partition, acknowledged) in &acknowledged {
            let found = stored.remove(partition).unwrap_or_default();
            let once: BTreeSet<usize> = found.iter().copied().collect();
            expect_equal(
                &format!("numbers in partition {partition}"),
                &found,
                &once.iter().copied().collect::<Vec<_>>(),
            )?;
            let lost: Vec<_> = acknowledged.iter().filter(|number| !once.contains(number)).collect();
            expect_equal(&format!("acknowledged records lost in partition {partition}"), lost, Vec::<&usize>::new())?;
        }
        let count: usize = acknowledged.values().map(Vec::len).sum();
        Ok(format!("{count} acknowledged, each there once and in order"))
    }

    fn topic(&self, kind: &str, partitions: i32) -> Outcome<String> {
        let topic = name(kind);
        expect_equal("created", self.0.create_topic(&topic, partitions)?, true)?;
        Ok(topic)
    }

    fn produce_numbers(&self, topic: &str, partitions: usize, range: std::ops::Range<usize>) -> Outcome<()> {
        let records: Vec<Record> = range
            .map(|number| Record {
                partition: (number % partitions) as i32,
                value: Some(number.to_string().into_bytes()),
                ..Record::default()
            })
            .collect();
        self.0.produce(topic, &records, "none", false)
    }

    fn read_all(&self, topic: &str, partitions: i32) -> Outcome<Vec<Record>> {
        self.0.read(topic, &(0..partitions).map(|partition| (partition, 0)).collect())
    }
}

/// A name that no run before has used on this broker.
fn name(kind: &str) -> String {
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    format!("rdkafka-{kind}-{nanoseconds:08x}")
}

fn all_arrived(count: usize, members: &mut [&mut Member]) -> Outcome<()> {
    wait_until(&format!("all {count} records"), || {
        let mut seen = BTreeSet::new();
        for member in &mut *members {
            member.check()?;
            seen.extend(member.numbers());
        }
        Ok(seen.len() == count)
    })
}

fn numbers(records: &[Record]) -> Vec<usize> {
    records.iter().map(Record::number).collect()
}

fn sorted(mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_unstable();
    numbers
}
