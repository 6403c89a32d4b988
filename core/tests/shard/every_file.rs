//! Every file of a data directory, damaged in every way: the shard starts, the other partitions are served, and the
//! damaged one serves nothing wrong, says why it can't be led, and keeps what it does not understand.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kaas_core::env::memory::MemoryEnv;
use kaas_core::env::{EntryKind, Env, Volume};
use kaas_core::partition::error::FetchError;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{PartitionChange, PartitionKey};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::layout::slot_directory;

use crate::groups::slot;
use crate::harness::{Broker, directory, key, run, sequenced, settle, topic_config};

const PARTITIONS: i32 = 3;
/// Of these all files are damaged, of the others none.
const DAMAGED: i32 = 0;
/// Somebody else's, in every directory.
const FOREIGN: &str = "notes.txt";

/// Small segments, so that there are several.
fn config() -> Arc<TopicConfig> {
    Arc::new(TopicConfig { segment_bytes: 500, ..(*topic_config(&[])).clone() })
}

/// Files of a volume by path.
type Files = BTreeMap<PathBuf, Vec<u8>>;

async fn files(volume: &impl Volume, directory: &Path) -> Files {
    let mut found = Files::new();
    let mut directories = vec![directory.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in volume.list(&directory).await.unwrap() {
            let path = directory.join(&entry.name);
            match entry.kind {
                EntryKind::Directory => directories.push(path),
                _ => drop(found.insert(path.clone(), volume.read(&path, 1 << 30).await.unwrap())),
            }
        }
    }
    found
}

/// A data directory, and what was acknowledged.
struct Data {
    files: Files,
    /// Of each partition.
    values: i32,
    committed: i64,
}

fn value(partition: i32, number: i32) -> String {
    format!("value {number} of partition {partition}, long enough for a few to fill a segment")
}

fn values(partition: i32, count: i32) -> Vec<String> {
    (0..count).map(|number| value(partition, number)).collect()
}

/// Three lives of a broker; the last one ends in good order or not.
fn build(clean: bool) -> Data {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let (mut count, mut committed) = (0, 0);
        for life in 0..3 {
            let broker = Broker::start(&env, 1);
            broker.lead_slot(None).await;
            assert!(matches!(broker.next_change().await, PartitionChange::Leading { .. }));
            for partition in 0..PARTITIONS {
                broker.lead(partition, None, &config()).await;
                for number in count..count + 8 {
                    broker.produce(partition, sequenced(&env, number, &value(partition, number))).await.unwrap();
                }
            }
            count += 8;
            for _ in 0..3 {
                committed += 1;
                assert_eq!(broker.commit(committed, None).await, ErrorCode::None);
            }
            settle(&env).await;
            if life < 2 || clean {
                broker.shut_down().await;
            }
        }
        for directory in [directory(DAMAGED), slot_directory(slot())] {
            env.volume().write(&directory.join(FOREIGN), b"not ours".to_vec()).await.unwrap();
        }
        Data { files: files(env.volume(), Path::new("")).await, values: count, committed }
    })
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Gone,
    Empty,
    Cut(usize),
    Flip(usize),
    Foreign,
    Zeros,
    Appended,
    Directory,
    FullDirectory,
}

impl Damage {
    /// All of them, for a file of this length.
    fn all(length: usize) -> Vec<Self> {
        let mut all = vec![Self::Gone, Self::Empty, Self::Foreign, Self::Zeros, Self::Appended];
        all.extend([Self::Directory, Self::FullDirectory]);
        let cuts = [1, length / 3, length / 2, length.saturating_sub(30), length.saturating_sub(1)];
        all.extend(cuts.into_iter().filter(|&cut| 0 < cut && cut < length).map(Self::Cut));
        let bits = length * 8;
        let flips = [0, 11, 57, 71, 100, 130, 170, 300, 500, bits / 3 + 1, bits / 2, bits.saturating_sub(20)];
        all.extend(flips.into_iter().filter(|&bit| bit < bits).map(Self::Flip));
        all
    }

    async fn apply(self, volume: &impl Volume, path: &Path) {
        let mut content = volume.read(path, 1 << 30).await.unwrap();
        match self {
            Self::Gone => return volume.unlink(path).await.unwrap(),
            Self::Empty => content.clear(),
            Self::Cut(length) => content.truncate(length),
            Self::Flip(bit) => content[bit / 8] ^= 1 << (bit % 8),
            Self::Foreign => content = b"Dear diary, this is somebody else's file.\n".to_vec(),
            Self::Zeros => content = vec![0; 8192],
            Self::Appended => content.extend(b"garbage behind the end"),
            Self::Directory | Self::FullDirectory => {
                volume.unlink(path).await.unwrap();
                volume.create_directories(path).await.unwrap();
                if matches!(self, Self::FullDirectory) {
                    volume.write(&path.join("inside"), b"not ours".to_vec()).await.unwrap();
                }
                return;
            }
        }
        volume.write(path, content).await.unwrap();
    }
}

/// The first verdict on each of the partitions and the slot.
async fn verdicts(broker: &Broker) -> BTreeMap<PartitionKey, PartitionChange> {
    let mut verdicts = BTreeMap::new();
    while verdicts.len() < usize::try_from(PARTITIONS).unwrap() + 1 {
        let event = broker.next_event().await;
        if matches!(event.change, PartitionChange::Leading { .. } | PartitionChange::Failed { .. }) {
            verdicts.entry(event.partition).or_insert(event.change);
        }
    }
    verdicts
}

/// Starts a broker on a directory with one damaged file and looks at everything.
fn check(data: &Data, clean: bool, path: &Path, damage: Damage) {
    let what = format!("{damage:?} of {} (stopped cleanly: {clean})", path.display());
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let volume = env.volume();
        for (path, content) in &data.files {
            volume.create_directories(path.parent().unwrap()).await.unwrap();
            volume.write(path, content.clone()).await.unwrap();
        }
        damage.apply(volume, path).await;
        let before = files(volume, path.parent().unwrap()).await;

        let broker = Broker::start(&env, 2);
        for partition in 0..PARTITIONS {
            broker.take_over(partition, None, &config()).await;
        }
        broker.take_slot_over(None).await;
        let verdicts = verdicts(&broker).await;
        settle(&env).await;

        // One bad partition does not stop the others.
        for partition in (0..PARTITIONS).filter(|&partition| partition != DAMAGED) {
            assert!(matches!(verdicts[&key(partition)], PartitionChange::Leading { .. }), "{what}: {verdicts:?}");
            assert_eq!(broker.values(partition).await, values(partition, data.values), "{what}");
        }
        let in_slot = path.starts_with(slot_directory(slot()));
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        let name = path.file_name().unwrap().to_str().unwrap();
        check_slot(&broker, data, in_slot, is_log && !clean, &what).await;
        let damaged = if in_slot { PartitionKey::of_slot(slot()) } else { key(DAMAGED) };
        let expected = values(DAMAGED, data.values);
        match &verdicts[&damaged] {
            PartitionChange::Failed { reason } => {
                let named = reason.contains(name) || reason.contains(path.parent().unwrap().to_str().unwrap());
                assert!(named, "{what}: the reason names it: {reason}");
                // Nothing was deleted or changed but fences.
                let after = files(volume, path.parent().unwrap()).await;
                for (path, content) in &before {
                    let is_fence = path.extension().is_some_and(|extension| extension == "fence");
                    assert!(is_fence || after.get(path) == Some(content), "{what}: {} was changed", path.display());
                }
                if !in_slot {
                    let fetched = broker.fetch(DAMAGED, 0).await;
                    let is_refused = matches!(fetched, Err(FetchError::NotLeading(_)));
                    assert!(is_refused, "{what}: {fetched:?}");
                }
            }
            _ if in_slot => {}
            _ => match broker.try_read(DAMAGED, 0).await {
                Ok(records) => {
                    let found: Vec<_> = records.into_iter().map(|(_, value)| value).collect();
                    // What no file remembers as acknowledged can be lost with the file that held it, from the end only.
                    let complete = found == expected || (is_log && !clean && expected.starts_with(&found));
                    assert!(complete, "{what}: {} of {} records", found.len(), expected.len());
                    check_next_life(&env, &broker, found, &what).await;
                }
                Err(FetchError::Storage(reason)) => {
                    // Of a segment that is gone, the one in front of it tells.
                    let gone = matches!(damage, Damage::Gone) && reason.contains("segment behind it is missing");
                    assert!(is_log && (gone || reason.contains(name)), "{what}: the error names it: {reason}");
                }
                Err(error) => panic!("{what}: {error}"),
            },
        }
        let after = files(volume, path.parent().unwrap()).await;
        assert_eq!(after[&path.with_file_name(FOREIGN)], b"not ours", "{what}");
        if matches!(damage, Damage::FullDirectory) {
            assert_eq!(after[&path.join("inside")], b"not ours", "{what}");
        }
    });
}

/// Goes on where the log ends; the next leader finds all of it.
async fn check_next_life(env: &MemoryEnv, broker: &Broker, mut found: Vec<String>, what: &str) {
    let end = i64::try_from(found.len()).unwrap();
    assert_eq!(broker.append(DAMAGED, "more").await, end, "{what}");
    found.push("more".into());
    broker.shut_down().await;
    let next = Broker::start(env, 3);
    next.lead(DAMAGED, None, &config()).await;
    assert_eq!(next.values(DAMAGED).await, found, "{what}: in the next life");
}

/// Committed offsets are those that were acknowledged, or there are none and the client is told to wait.
async fn check_slot(broker: &Broker, data: &Data, damaged: bool, may_be_short: bool, what: &str) {
    let mut fetched = broker.fetch_offsets().await;
    for _ in 0..100 {
        if fetched.error_code == ErrorCode::None {
            break;
        }
        broker.env.sleep(Duration::from_millis(10)).await;
        fetched = broker.fetch_offsets().await;
    }
    if fetched.error_code != ErrorCode::None {
        assert!(damaged, "{what}: the slot is not served: {:?}", fetched.error_code);
        return;
    }
    let committed = fetched.topics.first().map_or(-1, |topic| topic.partitions[0].committed_offset.0);
    let right = committed == data.committed || (damaged && may_be_short && committed < data.committed);
    assert!(right, "{what}: committed {committed}");
}

fn every_file(clean: bool) {
    let data = build(clean);
    let (mut kinds, mut wrong) = (BTreeMap::new(), Vec::new());
    for (path, content) in &data.files {
        let is_damaged = path.starts_with(directory(DAMAGED)) || path.starts_with(slot_directory(slot()));
        let name = path.file_name().unwrap().to_str().unwrap();
        if !is_damaged || name == FOREIGN {
            continue;
        }
        *kinds.entry(name.split_once('.').unwrap().1.to_owned()).or_insert(0) += 1;
        for damage in Damage::all(content.len()) {
            if catch_unwind(AssertUnwindSafe(|| check(&data, clean, path, damage))).is_err() {
                wrong.push(format!("{damage:?} of {}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} went wrong, see above:\n{}", wrong.len(), wrong.join("\n"));
    let of = |kind: &str| kinds.get(kind).copied().unwrap_or(0);
    assert!(of("log") > 4 && of("index") > 1 && of("manifest.json") == 2 && of("fence") > 1, "{kinds:?}");
    assert!(of("producers") > 0 && (of("checkpoint.json") > 0 || !clean), "{kinds:?}");
}

#[test]
fn after_a_clean_stop() {
    every_file(true);
}

#[test]
fn after_a_crash() {
    every_file(false);
}
