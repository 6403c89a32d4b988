//! What one broker on one disk should reach: produce beside raw writes, tailing consumers that never read the disk, and
//! a broker that costs nothing when nothing happens.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use bytes::Bytes;
use hdrhistogram::Histogram;
use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::{Client, FETCH_VERSION, PRODUCE_VERSION, base_offset, fetch_request, produce_request};
use kaas_proto::kafka::messages::{FetchRequest, ProduceRequest};
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{Offset, TimestampMs};

use crate::raw::{RawFile, Target};

const RECORD_BYTES: usize = 1024;
/// Rounds of raw and broker in turn, so that a noisy machine disturbs both alike.
const ROUNDS: usize = 5;
/// The same for single records: a connection each, of which the kernel spreads so many evenly over the shards.
const CONNECTIONS: usize = 20;
const REQUESTS_PER_CONNECTION: usize = 100;
/// Records that the consumer at the end of the log gets one by one.
const TAILED_RECORDS: usize = 400;
const THROUGHPUT_ROUND: Duration = Duration::from_secs(1);
/// What a round of raw writes writes.
const RAW_ROUND_BYTES: usize = 256 << 20;
/// Records of 1 KiB in one batch, and batches on their way, in the throughput run.
pub(crate) const BATCH_RECORDS: usize = 240;
const IN_FLIGHT: usize = 5;
const IDLE_CONSUMERS: usize = 10;
const IDLE_SECONDS: u64 = 10;

/// Runs everything and prints the ratios with their targets.
pub(crate) fn print(dir: &Path, binary: &Path) -> Result<()> {
    let data_dir = tempfile::Builder::new().prefix("bench-").tempdir_in(dir)?;
    let began = Instant::now();
    let broker = Broker::start(&BrokerOptions::new(binary, data_dir.path()))?;
    Client::connect(broker.kafka())?;
    println!("started in {} ms (target 1000): from the process to a connection", began.elapsed().as_millis());
    broker.wait_ready()?;
    latency(dir, &broker)?;
    throughput(dir, &broker)?;
    tail(&broker)?;
    drop(broker);
    idle(dir, binary)
}

/// A batch of so many records of 1 KiB.
pub(crate) fn batch(records: usize) -> Result<Bytes> {
    let now = TimestampMs(i64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis())?);
    let value = [0x6b; RECORD_BYTES];
    Ok((0..records).fold(BatchBuilder::new(), |batch, _| batch.record(now, None, Some(&value))).build())
}

fn micros(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1000.0
}

/// One connection that sends one record of 1 KiB at a time, each acknowledged before the next is sent, and raw writes before it. Which
/// shard gets a connection is up to the kernel; one on another shard than the partition costs a hop each way.
pub(crate) struct LatencyRound {
    raw_ns: Histogram<u64>,
    produce_ns: Histogram<u64>,
}

impl LatencyRound {
    pub(crate) fn prepare(broker: &Broker) -> Result<()> {
        Client::connect(broker.kafka())?.create_topic("latency", 1, &[])
    }

    pub(crate) fn run(broker: &Broker, raw: &mut RawFile, record: &Bytes, requests: usize) -> Result<Self> {
        let raw_ns = raw.run(Target::Extending, 4096, requests)?.latency_ns;
        let mut client = Client::connect(broker.kafka())?;
        let mut produce_ns = Histogram::new(3)?;
        for _ in 0..requests {
            let start = Instant::now();
            client.produce("latency", 0, record.clone())?;
            produce_ns.record(u64::try_from(start.elapsed().as_nanos())?)?;
        }
        Ok(Self { raw_ns, produce_ns })
    }

    pub(crate) fn ratio(&self) -> f64 {
        micros(&self.produce_ns, 0.5) / micros(&self.raw_ns, 0.5)
    }
}

fn latency(dir: &Path, broker: &Broker) -> Result<()> {
    LatencyRound::prepare(broker)?;
    let record = batch(1)?;
    let mut raw_file = RawFile::create(dir)?;
    let (mut extending, mut overwriting, mut produce) = (Histogram::new(3)?, Histogram::new(3)?, Histogram::new(3)?);
    let mut ratios = Vec::new();
    for _ in 0..CONNECTIONS {
        let round = LatencyRound::run(broker, &mut raw_file, &record, REQUESTS_PER_CONNECTION)?;
        ratios.push(round.ratio());
        extending.add(round.raw_ns)?;
        produce.add(round.produce_ns)?;
        overwriting.add(raw_file.run(Target::Overwriting, 4096, REQUESTS_PER_CONNECTION)?.latency_ns)?;
    }
    println!("low load, 1 KiB, acks=all        p50 us    p99 us");
    for (name, run) in [("raw, extending", &extending), ("raw, overwriting", &overwriting), ("kaas", &produce)] {
        println!("  {name:<28}{:>9.0}{:>10.0}", micros(run, 0.5), micros(run, 0.99));
    }
    println!(
        "  kaas / raw extending p50: {:.2} (target 1.50), p99: {:.2}; kaas / raw overwriting p50: {:.2}",
        micros(&produce, 0.5) / micros(&extending, 0.5),
        micros(&produce, 0.99) / micros(&extending, 0.99),
        micros(&produce, 0.5) / micros(&overwriting, 0.5),
    );
    println!("  kaas / raw extending p50, connection by connection: {}", sorted(&mut ratios));
    Ok(())
}

/// Large batches, several on their way, and then raw writes of the size that the broker made of them.
pub(crate) struct ThroughputRound {
    kaas_bytes_per_second: f64,
    raw_bytes_per_second: f64,
    write_bytes: usize,
}

impl ThroughputRound {
    pub(crate) fn prepare(broker: &Broker) -> Result<()> {
        Client::connect(broker.kafka())?.create_topic("throughput", 1, &[])
    }

    /// Makes room again for as many rounds as one likes.
    pub(crate) fn clear(broker: &Broker) -> Result<()> {
        Client::connect(broker.kafka())?.delete_topic("throughput")
    }

    pub(crate) fn run(dir: &Path, broker: &Broker, batch: &Bytes) -> Result<Self> {
        let (kaas_bytes_per_second, write_bytes) = produce_for_a_while(broker, batch)?;
        let raw = RawFile::create(dir)?.run(Target::Extending, write_bytes, RAW_ROUND_BYTES / write_bytes)?;
        Ok(Self { kaas_bytes_per_second, raw_bytes_per_second: raw.bytes_per_second(), write_bytes })
    }

    pub(crate) fn ratio(&self) -> f64 {
        self.kaas_bytes_per_second / self.raw_bytes_per_second
    }
}

fn throughput(dir: &Path, broker: &Broker) -> Result<()> {
    ThroughputRound::prepare(broker)?;
    let batch = batch(BATCH_RECORDS)?;
    let rounds = (0..ROUNDS).map(|_| ThroughputRound::run(dir, broker, &batch)).collect::<Result<Vec<_>>>()?;
    let average = |of: fn(&ThroughputRound) -> f64| rounds.iter().map(of).sum::<f64>() / rounds.len() as f64;
    let (kaas, raw) = (average(|round| round.kaas_bytes_per_second), average(|round| round.raw_bytes_per_second));
    println!("sustained, one connection, {} KiB per batch, {IN_FLIGHT} on their way", batch.len() / 1024);
    println!(
        "  kaas {:.0} MB/s in writes of {:.0} KiB; raw extending at that size {:.0} MB/s; ratio {:.2} (target 0.50)",
        kaas / 1e6,
        average(|round| round.write_bytes as f64) / 1024.0,
        raw / 1e6,
        kaas / raw,
    );
    println!("  round by round: {}", sorted(&mut rounds.iter().map(ThroughputRound::ratio).collect::<Vec<_>>()));
    Ok(())
}

/// Bytes per second, and the average size of the broker's writes in whole blocks.
fn produce_for_a_while(broker: &Broker, batch: &Bytes) -> Result<(f64, usize)> {
    let written = || -> Result<(f64, f64)> {
        Ok((broker.metric("kaas_log_committed_bytes_total", "")?, broker.metric("kaas_log_commits_total", "")?))
    };
    let mut client = Client::connect(broker.kafka())?;
    let request = produce_request("throughput", 0, batch.clone());
    let (bytes_before, writes_before) = written()?;
    let begin = Instant::now();
    let (mut sent, mut answered) = (0_u64, 0_u64);
    while begin.elapsed() < THROUGHPUT_ROUND || answered < sent {
        while sent - answered < IN_FLIGHT as u64 && begin.elapsed() < THROUGHPUT_ROUND {
            client.send(PRODUCE_VERSION, &request)?;
            sent += 1;
        }
        base_offset(&client.receive::<ProduceRequest>(PRODUCE_VERSION)?)?;
        answered += 1;
    }
    let bytes_per_second = answered as f64 * batch.len() as f64 / begin.elapsed().as_secs_f64();
    let (bytes_after, writes_after) = written()?;
    let average = (bytes_after - bytes_before) / (writes_after - writes_before);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of a few MiB")]
    let write_size = (average as usize).next_multiple_of(4096);
    Ok((bytes_per_second, write_size))
}

/// Ratios from the smallest to the largest.
fn sorted(ratios: &mut [f64]) -> String {
    ratios.sort_by(f64::total_cmp);
    ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(" ")
}

/// A consumer at the end of the log while a producer appends: the disk must not be read.
fn tail(broker: &Broker) -> Result<()> {
    let mut producer = Client::connect(broker.kafka())?;
    producer.create_topic("tail", 1, &[])?;
    let mut consumer = Client::connect(broker.kafka())?;
    let reads = || broker.metric("kaas_fetch_volume_reads_total", "");
    let before = reads()?;
    let mut offset = Offset(0);
    let batch = batch(1)?;
    for _ in 0..TAILED_RECORDS {
        consumer.send(FETCH_VERSION, &fetch_request("tail", 0, offset, 10_000))?;
        producer.produce("tail", 0, batch.clone())?;
        let response = consumer.receive::<FetchRequest>(FETCH_VERSION)?;
        let row = response.responses.first().and_then(|topic| topic.partitions.first()).context("a row")?;
        anyhow::ensure!(!row.records.is_empty(), "a woken fetch has records");
        offset = row.high_watermark;
    }
    println!("tailing consumer: {TAILED_RECORDS} records, {} disk reads (target 0)", reads()? - before);
    Ok(())
}

/// A fresh broker with long-polling consumers and nothing to do.
fn idle(dir: &Path, binary: &Path) -> Result<()> {
    let data_dir = tempfile::Builder::new().prefix("bench-").tempdir_in(dir)?;
    let broker = Broker::start(&BrokerOptions::new(binary, data_dir.path()))?;
    broker.wait_ready()?;
    Client::connect(broker.kafka())?.create_topic("idle", 1, &[])?;
    // Until then it writes that.
    wait_until("the reserve is in place", || Ok(broker.metric("kaas_reserve_bytes", "")? > 0.0))?;
    let consumers: Vec<_> = (0..IDLE_CONSUMERS)
        .map(|_| {
            let mut client = Client::connect(broker.kafka())?;
            Ok(std::thread::spawn(move || -> Result<()> {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_secs(IDLE_SECONDS) {
                    client.fetch("idle", 0, Offset(0), 500)?;
                }
                Ok(())
            }))
        })
        .collect::<Result<_>>()?;
    let (cpu_before, begin) = (broker.cpu_time()?, Instant::now());
    for consumer in consumers {
        consumer.join().expect("a consumer does not panic")?;
    }
    let cpu = (broker.cpu_time()? - cpu_before).as_secs_f64() / begin.elapsed().as_secs_f64();
    println!(
        "idle, {IDLE_CONSUMERS} consumers polling every 500 ms: {:.2} % of a CPU (target 1), {:.0} MiB resident (target 64)",
        cpu * 100.0,
        broker.resident_bytes()? as f64 / f64::from(1 << 20),
    );
    Ok(())
}
