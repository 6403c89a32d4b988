//! What every volume must do. Run on the one in memory, on the simulated one and on the real file system.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use kaas_proto::roots::Roots;

use super::executor::spawn_shard;
use super::memory::MemoryEnv;
use super::uring::UringEnv;
use super::{AlignedBuffer, BLOCK_BYTES, EntryKind, Env, OpenMode, Volume, VolumeFile};

/// Runs a check on a shard of its own, in a fresh directory of the real file system.
pub(super) fn on_uring<F: Future<Output = ()> + 'static>(check: impl FnOnce(UringEnv, PathBuf) -> F + Send + 'static) {
    // Beside the test program: `/tmp` may be in memory and without direct I/O.
    let program = std::env::current_exe().unwrap();
    let directory = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let root = directory.path().to_owned();
    let shard = spawn_shard("test", None, move || async move {
        let env = UringEnv::start(&Roots::from(&root)).unwrap();
        check(env, root).await;
    });
    shard.unwrap().join().unwrap();
}

pub(super) fn path(text: &str) -> &Path {
    Path::new(text)
}

pub(super) fn blocks(count: usize, byte: u8) -> Bytes {
    let mut buffer = AlignedBuffer::zeroed(count * BLOCK_BYTES);
    buffer.fill(byte);
    buffer.freeze()
}

pub(super) fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.err().expect("the call fails").kind()
}

async fn names_behave(env: impl Env) {
    let volume = env.volume();
    assert_eq!(kind(volume.write(path("a/b"), vec![]).await), ErrorKind::NotFound);
    volume.create_directories(path("a/c/d")).await.unwrap();
    volume.create_directories(path("a/c/d")).await.unwrap();
    volume.create_directories(path("")).await.unwrap();
    volume.write(path("a/b"), b"one".to_vec()).await.unwrap();
    volume.write(path("a/b"), b"2".to_vec()).await.unwrap();
    assert_eq!(volume.read(path("a/b"), 1).await.unwrap(), b"2");
    assert_eq!(kind(volume.read(path("a/b"), 0).await), ErrorKind::FileTooLarge);
    assert_eq!(kind(volume.list(path("a/b")).await), ErrorKind::NotADirectory);
    assert_eq!(kind(volume.list(path("none")).await), ErrorKind::NotFound);
    assert_eq!(kind(volume.remove_directory(path("a/c")).await), ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(volume.unlink(path("a/c")).await), ErrorKind::IsADirectory);
    volume.rename(path("a/b"), path("a/e")).await.unwrap();
    let mut entries = volume.list(path("a")).await.unwrap();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let entries: Vec<_> = entries.into_iter().map(|entry| (entry.name, entry.kind)).collect();
    assert_eq!(entries, [("c".into(), EntryKind::Directory), ("e".into(), EntryKind::File)]);
    assert_eq!(kind(volume.rename(path("a/e"), path("e")).await), ErrorKind::InvalidInput);
    assert_eq!(kind(volume.rename(path("a/none"), path("a/e")).await), ErrorKind::NotFound);
    volume.write(path("a/f"), b"new".to_vec()).await.unwrap();
    volume.rename(path("a/f"), path("a/e")).await.unwrap();
    assert_eq!(volume.read(path("a/e"), 10).await.unwrap(), b"new");
    volume.remove_directory(path("a/c/d")).await.unwrap();
    volume.remove_directory(path("a/c")).await.unwrap();
    volume.unlink(path("a/e")).await.unwrap();
    assert_eq!(kind(volume.read(path("a/e"), 1).await), ErrorKind::NotFound);
    assert_eq!(kind(volume.unlink(path("a/e")).await), ErrorKind::NotFound);
    volume.sync_directory(path("a")).await.unwrap();
    assert_eq!(kind(volume.sync_directory(path("none")).await), ErrorKind::NotFound);
    let space = volume.space(path("")).await.unwrap();
    assert!(space.available_bytes > 0 && space.available_bytes <= space.total_bytes);
    for outside in ["../x", "/etc/passwd", "a/../../x"] {
        assert_eq!(kind(volume.read(path(outside), 100).await), ErrorKind::InvalidInput, "{outside}");
    }
}

async fn overwriting_cuts_nothing(env: impl Env) {
    let volume = env.volume();
    assert_eq!(kind(volume.overwrite(path("f"), b"x".to_vec()).await), ErrorKind::NotFound);
    let fence = volume.open(path("f"), OpenMode::CreateNew).await.unwrap();
    assert!(fence.read_at(0, BLOCK_BYTES).await.unwrap().is_empty());
    volume.overwrite(path("f"), b"longer".to_vec()).await.unwrap();
    volume.overwrite(path("f"), b"new".to_vec()).await.unwrap();
    assert_eq!(volume.size(path("f")).await.unwrap(), 6);
    assert_eq!(fence.size().await.unwrap(), 6);
    assert_eq!(fence.read_at(0, BLOCK_BYTES).await.unwrap(), b"newger"[..]);
    volume.unlink(path("f")).await.unwrap();
    assert_eq!(fence.read_at(0, BLOCK_BYTES).await.unwrap(), b"newger"[..], "a file survives its name");
    fence.close().await.unwrap();
}

async fn files_take_blocks(env: impl Env) {
    let volume = env.volume();
    assert_eq!(kind(volume.open(path("f"), OpenMode::Read).await), ErrorKind::NotFound);
    assert_eq!(kind(volume.open(path("f"), OpenMode::ReadWrite).await), ErrorKind::NotFound);
    let file = volume.open(path("f"), OpenMode::CreateNew).await.unwrap();
    assert_eq!(kind(volume.open(path("f"), OpenMode::CreateNew).await), ErrorKind::AlreadyExists);
    file.write_at(BLOCK_BYTES as u64, blocks(2, 7)).await.unwrap();
    assert_eq!(kind(file.write_at(1, blocks(1, 7)).await), ErrorKind::InvalidInput);
    assert_eq!(kind(file.write_at(0, Bytes::from_static(b"short")).await), ErrorKind::InvalidInput);
    assert_eq!(kind(file.write_at(0, Bytes::new()).await), ErrorKind::InvalidInput);
    assert_eq!(kind(file.write_at(0, blocks(2, 7).slice(1..=BLOCK_BYTES)).await), ErrorKind::InvalidInput);
    let content = file.read_at(0, 1 << 20).await.unwrap();
    assert_eq!((content.len(), content[4095], content[4096]), (3 * 4096, 0, 7));
    assert_eq!(content.as_ptr().align_offset(BLOCK_BYTES), 0);
    assert_eq!(file.read_at(4096, 5000).await.unwrap(), [7_u8; 5000][..]);
    file.truncate(4097).await.unwrap();
    assert_eq!(file.size().await.unwrap(), 4097);
    assert_eq!(file.read_at(4096, 10).await.unwrap(), [7_u8][..]);
    assert!(file.read_at(8192, 10).await.unwrap().is_empty());
    assert_eq!(kind(file.read_at(1, 10).await), ErrorKind::InvalidInput);
    file.write_at(0, blocks(1, 9)).await.unwrap();
    file.close().await.unwrap();
    let file = volume.open(path("f"), OpenMode::ReadWrite).await.unwrap();
    assert_eq!(file.read_at(0, 4097).await.unwrap()[4095..], [9, 7]);
    drop(file);
    let file = volume.open(path("f"), OpenMode::Read).await.unwrap();
    assert_eq!(file.read_at(0, 1).await.unwrap(), [9_u8][..]);
    assert!(file.write_at(0, blocks(1, 1)).await.is_err());
    assert!(file.truncate(0).await.is_err());
}

async fn time_passes_and_tasks_run(env: impl Env) {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let task = env.clone();
    let before = env.now();
    env.spawn(super::TaskClass::Background, async move {
        task.yield_now().await;
        task.sleep(Duration::from_millis(2)).await;
        let _ = sender.send(task.now());
    });
    assert!(receiver.await.unwrap().0 >= before.0 + 2_000_000);
    assert!(env.wall_clock().0 > 1_700_000_000_000);
    assert_ne!(env.random_u64(), env.random_u64());
}

macro_rules! on_every_volume {
    ($($name:ident)*) => {
        mod memory {
            use super::*;
            $(#[test]
            fn $name() {
                let env = MemoryEnv::virtual_time();
                env.run(super::$name(env.clone()));
            })*
        }

        #[cfg(feature = "simulator")]
        mod simulated {
            use super::super::sim::{ClientId, Simulation};

            $(#[test]
            fn $name() {
                let simulation = Simulation::new(1);
                simulation.run(super::$name(simulation.start_process(ClientId(0))));
            })*
        }

        mod uring {
            use super::*;
            $(#[test]
            fn $name() {
                on_uring(|env, _| super::$name(env));
            })*
        }
    };
}

on_every_volume! { names_behave overwriting_cuts_nothing files_take_blocks time_passes_and_tasks_run }
