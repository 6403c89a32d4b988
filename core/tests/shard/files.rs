//! The same on real files: a directory of this machine, a ring, a glommio executor.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kaas_core::env::Env;
use kaas_core::env::executor::spawn_shard;
use kaas_core::env::uring::UringEnv;
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::control::ShardCommand;
use kaas_proto::record::BatchBuilder;
use kaas_proto::roots::Roots;
use kaas_proto::types::{LeaderEpoch, TimestampMs};
use tokio::sync::oneshot;

use crate::harness::{Broker, batch, directory, key, names, settle, topic_config};

/// Runs a scenario on an executor of its own, on a directory that is gone afterwards.
fn on_files<F: Future<Output = ()> + 'static>(scenario: impl FnOnce(UringEnv, PathBuf) -> F + Send + 'static) {
    // Beside the build's output: a temporary directory may lie in memory, where direct I/O does not work.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = directory.path().to_path_buf();
    let shard = spawn_shard("test", None, move || async move {
        let env = UringEnv::start(&Roots::from(&root)).unwrap();
        scenario(env, root).await;
    });
    shard.unwrap().join().unwrap();
}

#[expect(clippy::disallowed_methods, reason = "a look at the process from outside")]
/// The names below `root` that this process has open, sorted.
fn open_files(root: &Path) -> Vec<String> {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let below = targets.filter(|target| target.starts_with(root) && target.is_file());
    let mut names: Vec<_> = below.map(|target| target.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Waits until these are the open files: handles that are dropped are closed in the background.
async fn only_open(env: &UringEnv, root: &Path, expected: &[&str]) {
    let deadline = env.now().0 + 10_000_000_000;
    while open_files(root) != expected {
        assert!(env.now().0 < deadline, "open: {:?}, expected: {expected:?}", open_files(root));
        env.sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_partition_survives_on_real_files() {
    on_files(|env, _| async move {
        let config = topic_config(&[("segment.bytes", "1048576")]);
        let first = Broker::start(&env, 1);
        assert_eq!(first.lead(0, None, &config).await, LeaderEpoch(1));
        let large = "x".repeat(300_000);
        let answers: Vec<_> =
            (0..20).map(|_| first.begin_produce(0, RequiredAcks::All, batch(&env, &[&large, "small"]))).collect();
        for answer in answers {
            answer.await.unwrap().remove(0).unwrap();
        }
        first.shut_down().await;
        for epoch in 2..5 {
            let broker = Broker::start(&env, 1);
            assert_eq!(broker.lead(0, None, &config).await, LeaderEpoch(epoch));
            let values = broker.values(0).await;
            assert_eq!(values.len(), 40 + usize::try_from(epoch).unwrap() - 2);
            assert!(values[..40].chunks(2).all(|pair| pair == [large.as_str(), "small"]));
            broker.append(0, "more").await;
            // Every other one stops in good order.
            if epoch % 2 == 0 {
                broker.shut_down().await;
            }
        }
        settle(&env).await;
        assert!(names(env.volume(), 0).await.contains(&"00000004.manifest.json".to_owned()));
    });
}

#[test]
fn only_a_leader_has_files_open() {
    on_files(|env, root| async move {
        let config = topic_config(&[("segment.bytes", "1048576")]);
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &config).await;
        only_open(&env, &root, &["00000001.fence"]).await;
        for _ in 0..3 {
            broker.append(0, &"x".repeat(600_000)).await;
        }
        broker.shut_down().await;
        only_open(&env, &root, &[]).await;
        let again = Broker::start(&env, 1);
        again.lead(0, None, &config).await;
        only_open(&env, &root, &["00000002.fence"]).await;
        assert_eq!(again.values(0).await.len(), 3);
        again.append(0, "more").await;
        let segments =
            ["00000001-00000000000000000000", "00000001-00000000000000000001", "00000001-00000000000000000002"];
        let mut expected: Vec<_> = segments.iter().map(|segment| format!("{segment}.log")).collect();
        expected.extend(["00000002-00000000000000000003.log".into(), "00000002.fence".into()]);
        only_open(&env, &root, &expected.iter().map(String::as_str).collect::<Vec<_>>()).await;
        // Somebody else takes over: the first finds out, and lets go.
        let other = Broker::start(&env, 2);
        other.lead(0, None, &config).await;
        again.produce(0, batch(&env, &["late"])).await.unwrap_err();
        only_open(&env, &root, &["00000003.fence"]).await;
        other.delete_records(0, -1).await.unwrap();
        only_open(&env, &root, &["00000003.fence"]).await;
        other.shut_down().await;
        only_open(&env, &root, &[]).await;
    });
}

#[test]
fn the_file_tells_how_old_records_of_the_future_are() {
    on_files(|env, root| async move {
        let config =
            topic_config(&[("retention.ms", "3600000"), ("message.timestamp.after.max.ms", "9223372036854775807")]);
        let first = Broker::start(&env, 1);
        first.lead(0, None, &config).await;
        let future = TimestampMs(env.wall_clock().0 + 1_000_000_000_000);
        let record = BatchBuilder::new().record(future, None, Some(b"x")).build();
        first.produce(0, record).await.unwrap();
        first.shut_down().await;
        set_old(&root.join(directory(0)).join("00000001-00000000000000000000.log"));
        let second = Broker::start_with(&env, 1, |config| config.retention_check_interval = Duration::from_secs(1));
        second.lead(0, None, &config).await;
        let deadline = env.now().0 + 10_000_000_000;
        while second.log_start(0).await == 0 {
            assert!(env.now().0 < deadline, "it is pinned");
            env.sleep(Duration::from_millis(10)).await;
        }
    });
}

/// As if the file had been written two hours ago.
#[expect(clippy::disallowed_methods, reason = "a change from outside")]
fn set_old(path: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(7200)).unwrap();
}

#[test]
fn an_abandoned_partition_has_nothing_open() {
    on_files(|env, root| async move {
        let config = topic_config(&[]);
        let broker = Broker::start(&env, 1);
        only_open(&env, &root, &[]).await;
        for partition in 0..3 {
            broker.lead(partition, None, &config).await;
        }
        broker.append(0, "a").await;
        let open = ["00000001-00000000000000000000.log", "00000001.fence", "00000001.fence", "00000001.fence"];
        only_open(&env, &root, &open).await;
        let (done, is_done) = oneshot::channel();
        broker.command(ShardCommand::Abandon { topic_id: key(0).topic_id, done }).await;
        is_done.await.unwrap();
        only_open(&env, &root, &[]).await;
    });
}
