//! The lies of the volume, one by one.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;

use super::super::{AlignedBuffer, BLOCK_BYTES, Env, OpenMode, TaskClass, Volume, VolumeFile};
use super::{ClientId, Disruption, Moment, SimEnv, Simulation};

fn block(byte: u8) -> Bytes {
    let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
    buffer.fill(byte);
    buffer.freeze()
}

async fn names(env: &SimEnv, directory: &str) -> Vec<String> {
    env.volume().list(Path::new(directory)).await.unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn a_file_that_is_removed_while_open_haunts_its_directory() {
    let simulation = Simulation::new(1);
    let env = simulation.start_process(ClientId(1));
    simulation.run(async {
        let volume = env.volume();
        volume.create_directories(Path::new("d")).await.unwrap();
        let file = volume.open(Path::new("d/f"), OpenMode::CreateNew).await.unwrap();
        file.write_at(0, block(7)).await.unwrap();
        volume.unlink(Path::new("d/f")).await.unwrap();
        assert!(names(&env, "d").await[0].starts_with(".nfs"));
        let removed = volume.remove_directory(Path::new("d")).await;
        assert_eq!(removed.unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        assert_eq!(file.read_at(0, 10).await.unwrap(), [7_u8; 10][..]);
        drop(file);
        volume.remove_directory(Path::new("d")).await.unwrap();
    });
}

#[test]
fn a_file_that_another_client_removed_goes_stale() {
    let simulation = Simulation::new(1);
    let (holder, remover) = (simulation.start_process(ClientId(1)), simulation.start_process(ClientId(2)));
    simulation.run(async {
        let file = holder.volume().open(Path::new("f"), OpenMode::CreateNew).await.unwrap();
        remover.volume().unlink(Path::new("f")).await.unwrap();
        assert!(names(&holder, "").await.is_empty(), "no ghost: its client did not remove it");
        assert!(file.read_at(0, 1).await.is_ok());
        simulation.removed_files_are_stale(true);
        assert_eq!(file.read_at(0, 1).await.unwrap_err().kind(), ErrorKind::StaleNetworkFileHandle);
    });
}

#[test]
fn a_client_that_holds_the_old_file_may_take_the_name_for_it() {
    let simulation = Simulation::new(1);
    let (holder, writer) = (simulation.start_process(ClientId(1)), simulation.start_process(ClientId(2)));
    simulation.run(async {
        writer.volume().write(Path::new("f"), b"old".to_vec()).await.unwrap();
        let file = holder.volume().open(Path::new("f"), OpenMode::Read).await.unwrap();
        writer.volume().write(Path::new("g"), b"new".to_vec()).await.unwrap();
        writer.volume().rename(Path::new("g"), Path::new("f")).await.unwrap();
        let mut seen = Vec::new();
        for _ in 0..20 {
            seen.push(holder.volume().read(Path::new("f"), 10).await.unwrap());
        }
        assert!(seen.contains(&b"old".to_vec()) && seen.contains(&b"new".to_vec()));
        drop(file);
        for _ in 0..20 {
            assert_eq!(holder.volume().read(Path::new("f"), 10).await.unwrap(), b"new");
        }
    });
}

#[test]
fn sizes_are_believed_for_a_minute() {
    let simulation = Simulation::new(1);
    let (reader, writer) = (simulation.start_process(ClientId(1)), simulation.start_process(ClientId(2)));
    simulation.run(async {
        let path = Path::new("f");
        writer.volume().write(path, b"1".to_vec()).await.unwrap();
        assert_eq!(reader.volume().size(path).await.unwrap(), 1);
        writer.volume().write(path, b"22".to_vec()).await.unwrap();
        assert_eq!(writer.volume().size(path).await.unwrap(), 2, "its own change it knows");
        reader.sleep(Duration::from_secs(61)).await;
        assert_eq!(reader.volume().size(path).await.unwrap(), 2);
    });
}

#[test]
fn a_power_loss_takes_names_that_were_not_synced() {
    let mut lost = 0;
    for seed in 0..20 {
        let simulation = Simulation::new(seed);
        let env = simulation.start_process(ClientId(1));
        simulation.run(async {
            let volume = env.volume();
            volume.write(Path::new("synced"), b"1".to_vec()).await.unwrap();
            volume.write(Path::new("other"), b"2".to_vec()).await.unwrap();
            volume.sync_directory(Path::new("")).await.unwrap();
            volume.rename(Path::new("other"), Path::new("synced")).await.unwrap();
            simulation.lose_power();
            let after = simulation.start_process(ClientId(1));
            let content = after.volume().read(Path::new("synced"), 10).await.unwrap();
            let both = names(&after, "").await.len() == 2;
            assert!(if both { content == b"1" } else { content == b"2" }, "wholly or not at all");
            lost += usize::from(both);
        });
    }
    assert!((1..20).contains(&lost), "{lost} of 20");
}

#[test]
fn a_write_in_flight_lands_torn_late_or_never() {
    let (mut whole, mut torn, mut none) = (0, 0, 0);
    for seed in 0..60 {
        let simulation = Simulation::new(seed);
        let env = simulation.start_process(ClientId(1));
        simulation.run(async {
            let file = env.volume().open(Path::new("f"), OpenMode::CreateNew).await.unwrap();
            let writer = env.clone();
            simulation.disrupt(simulation.operations(), Disruption::Delay(Duration::from_secs(1)));
            env.spawn(TaskClass::Latency, async move {
                drop(file.write_at(0, block(9)).await);
                writer.sleep(Duration::from_secs(1)).await;
                unreachable!("it is dead by then");
            });
            simulation.time().sleep(Duration::from_millis(500)).await;
            simulation.crash(env.process());
            simulation.time().sleep(Duration::from_secs(60)).await;
            let content = simulation.view(|view| view.content("f").unwrap());
            match content.iter().filter(|&&byte| byte == 9).count() {
                0 => none += 1,
                BLOCK_BYTES => whole += 1,
                landed => {
                    assert_eq!(landed % 512, 0, "sectors land whole");
                    torn += 1;
                }
            }
        });
    }
    assert!(whole > 0 && torn > 0 && none > 0, "{whole} whole, {torn} torn, {none} none");
}

#[test]
fn a_paused_process_makes_no_step_and_its_operations_go_on() {
    let simulation = Simulation::new(1);
    let env = simulation.start_process(ClientId(1));
    simulation.run(async {
        simulation.disrupt(0, Disruption::Pause);
        let task = env.clone();
        env.spawn(TaskClass::Latency, async move {
            task.volume().write(Path::new("a"), vec![]).await.unwrap();
            task.volume().write(Path::new("b"), vec![]).await.unwrap();
        });
        simulation.time().sleep(Duration::from_secs(1)).await;
        assert_eq!(simulation.view(|view| view.names("")), ["a"]);
        env.process().resume();
        simulation.time().sleep(Duration::from_secs(1)).await;
        assert_eq!(simulation.view(|view| view.names("")), ["a", "b"]);
    });
}

#[test]
fn a_crash_at_an_operation_is_before_in_or_after_it() {
    for (moment, expected) in [(Moment::Before, 0), (Moment::After, 1)] {
        let simulation = Simulation::new(1);
        let env = simulation.start_process(ClientId(1));
        simulation.run(async {
            simulation.disrupt(0, Disruption::Crash(moment));
            let task = env.clone();
            env.spawn(TaskClass::Latency, async move {
                task.volume().write(Path::new("a"), vec![]).await.unwrap();
                unreachable!("it is dead by then");
            });
            simulation.time().sleep(Duration::from_secs(1)).await;
            assert!(env.process().is_dead());
            assert_eq!(simulation.view(|view| view.names("").len()), expected, "{moment:?}");
        });
    }
}

#[test]
fn a_call_may_overtake_an_earlier_one() {
    let simulation = Simulation::new(1);
    let (one, other) = (simulation.start_process(ClientId(1)), simulation.start_process(ClientId(1)));
    let writer = simulation.start_process(ClientId(2));
    simulation.run(async {
        writer.volume().write(Path::new("f"), vec![1]).await.unwrap();
        simulation.disrupt(1, Disruption::Delay(Duration::from_secs(1)));
        let slow = other.clone();
        other.spawn(TaskClass::Latency, async move {
            assert_eq!(slow.volume().size(Path::new("f")).await.unwrap(), 1);
        });
        simulation.time().sleep(Duration::from_millis(1)).await;
        assert_eq!(one.volume().size(Path::new("f")).await.unwrap(), 1);
        simulation.time().sleep(Duration::from_secs(2)).await;
    });
}
