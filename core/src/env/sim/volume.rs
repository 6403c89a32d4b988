//! [`Volume`] of one process: each call is counted, meets its fate, and is sent to the server.

use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};

use kaas_proto::types::TimestampMs;

use super::super::{DirectoryEntry, OpenMode, Volume, VolumeSpace};
use super::disruption::Disruption;
use super::faults::{Fate, Landing};
use super::file::SimFile;
use super::flight::{Effect, OwnedChange, Sent, Tear};
use super::process::Process;
use super::tree::Tree;
use super::{Operation, Simulation};

/// Clones are the same.
#[derive(Clone, Debug)]
pub struct SimVolume {
    simulation: Simulation,
    process: Process,
}

/// One operation, before it is sent.
pub(super) struct Call<T> {
    operation: Operation,
    what: String,
    effect: Effect<T>,
    tear: Option<Tear>,
    change: Option<OwnedChange>,
    mutates: bool,
}

impl<T> Call<T> {
    pub(super) fn new(
        operation: Operation,
        what: impl Into<String>,
        effect: impl FnOnce(&mut Tree) -> io::Result<T> + 'static,
    ) -> Self {
        let mutates = match operation {
            Operation::List
            | Operation::Size
            | Operation::Read
            | Operation::ReadAt
            | Operation::Space
            | Operation::Open
            | Operation::Close => false,
            Operation::Write
            | Operation::Overwrite
            | Operation::Rename
            | Operation::Unlink
            | Operation::CreateDirectories
            | Operation::RemoveDirectory
            | Operation::SyncDirectory
            | Operation::WriteAt
            | Operation::Truncate => true,
        };
        Self { operation, what: what.into(), effect: Box::new(effect), tear: None, change: None, mutates }
    }

    /// It changes something although its kind does not say so.
    fn mutating(self, mutates: bool) -> Self {
        Self { mutates, ..self }
    }

    pub(super) fn torn(self, tear: impl FnOnce(&mut Tree) + 'static) -> Self {
        Self { tear: Some(Box::new(tear)), ..self }
    }

    pub(super) fn guarded(self, change: OwnedChange) -> Self {
        Self { change: Some(change), ..self }
    }
}

impl SimVolume {
    pub(super) fn new(simulation: Simulation, process: Process) -> Self {
        Self { simulation, process }
    }

    pub(super) fn simulation(&self) -> &Simulation {
        &self.simulation
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// Carries an operation out, as far as the simulation lets it.
    pub(super) async fn perform<T: 'static>(&self, call: Call<T>) -> io::Result<T> {
        let Call { operation, what, effect, tear, change, mutates } = call;
        let (simulation, world) = (&self.simulation, &*self.simulation.0);
        let number = world.operations.replace(world.operations.get() + 1);
        *world.counts.borrow_mut().entry((self.process.id(), operation)).or_default() += 1;
        if mutates {
            world.durable_points.borrow_mut().push(number);
        }
        let (faults, random) = (world.faults.get(), &world.random);
        let disruption = world.disruptions.borrow_mut().remove(&number);
        let (mut before, after) = (faults.delay(random), faults.delay(random));
        if operation == Operation::WriteAt {
            before += faults.write_delay(random);
        }
        let mut fate = faults.fate(mutates, random);
        match disruption {
            Some(Disruption::Refuse(kind)) => fate = Fate::Refused(kind),
            Some(Disruption::FailAndLandLater(kind, late)) => fate = Fate::Unknown(kind, Landing::Later(late)),
            Some(Disruption::Delay(delay)) => before += delay,
            Some(Disruption::Pause | Disruption::Crash(_) | Disruption::LosePower(_)) | None => {}
        }
        let process = self.process.id().0;
        let outcome = |what: &str| match fate {
            Fate::Happens => String::new(),
            fate => format!("  !! {fate:?} {what}"),
        };
        simulation.note(format!("p{process} #{number} {operation:?} {what}{}", outcome("")));
        if disruption == Some(Disruption::Pause) {
            self.process.pause();
        }
        let split = tear.is_some().then(|| faults.split(random)).flatten();
        let sent = Sent { effect, tear, change, before, split, disruption };
        match fate {
            Fate::Refused(kind) => {
                world.time.sleep(before + after).await;
                simulation.note(format!("p{process} #{number} refused"));
                Err(kind.into())
            }
            Fate::Unknown(kind, landing) => {
                drop(simulation.send(&self.process, number, landing, sent));
                world.time.sleep(before + after).await;
                simulation.note(format!("p{process} #{number} is said to have failed"));
                Err(kind.into())
            }
            Fate::Happens => {
                let answer = simulation.send(&self.process, number, Landing::Lands, sent).await;
                // What will never be answered leaves its caller waiting: it is dead, or about to be.
                let Ok(answer) = answer else { return pending().await };
                world.time.sleep(after).await;
                if let Err(error) = &answer {
                    simulation.note(format!("p{process} #{number} {:?}", error.kind()));
                } else if mutates {
                    simulation.note(format!("p{process} #{number} done"));
                }
                answer
            }
        }
    }

    fn file(&self, file: super::tree::FileRef, path: &Path, writable: bool) -> SimFile {
        SimFile::new(self.clone(), file, path, writable)
    }
}

/// A part of a write, from its begin, as a torn one leaves it.
fn prefix(content: &[u8], random: &super::SimRandom) -> Vec<u8> {
    let length = random.below(content.len() as u64 + 1);
    content[..usize::try_from(length).expect("below a length")].to_vec()
}

impl Volume for SimVolume {
    type File = SimFile;

    async fn open(&self, path: &Path, mode: OpenMode) -> io::Result<SimFile> {
        let volume = self.clone();
        let writable = mode != OpenMode::Read;
        let owned = path.to_path_buf();
        let open = move |tree: &mut Tree| {
            let file = tree.open(volume.process.client(), &owned, mode)?;
            Ok(volume.file(file, &owned, writable))
        };
        let what = format!("{} {mode:?}", path.display());
        self.perform(Call::new(Operation::Open, what, open).mutating(mode == OpenMode::CreateNew)).await
    }

    async fn list(&self, directory: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let owned = directory.to_path_buf();
        let list = move |tree: &mut Tree| tree.list(&owned);
        let began = self.simulation.0.tree.borrow_mut().list(directory);
        let ended = self.perform(Call::new(Operation::List, directory.display().to_string(), list)).await?;
        // What came or went meanwhile is seen or not.
        let Ok(began) = began else { return Ok(ended) };
        let sure =
            |entry: &DirectoryEntry, other: &[DirectoryEntry]| other.iter().any(|in_it| in_it.name == entry.name);
        let chance = |_: &&DirectoryEntry| self.simulation.0.random.chance(500);
        let gone = began.iter().filter(|entry| !sure(entry, &ended)).filter(chance);
        let mut seen: Vec<_> = gone.cloned().collect();
        seen.extend(ended.iter().filter(|entry| sure(entry, &began) || chance(entry)).cloned());
        seen.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(seen)
    }

    async fn size(&self, path: &Path) -> io::Result<u64> {
        let (owned, client) = (path.to_path_buf(), self.process.client());
        let size = move |tree: &mut Tree| tree.believed_size(client, &owned);
        self.perform(Call::new(Operation::Size, path.display().to_string(), size)).await
    }

    async fn modified(&self, path: &Path) -> io::Result<Option<TimestampMs>> {
        let owned = path.to_path_buf();
        let modified = move |tree: &mut Tree| tree.modified(&owned).map(Some);
        self.perform(Call::new(Operation::Size, path.display().to_string(), modified)).await
    }

    async fn read(&self, path: &Path, limit_bytes: usize) -> io::Result<Vec<u8>> {
        let (owned, client) = (path.to_path_buf(), self.process.client());
        let read = move |tree: &mut Tree| tree.read(client, &owned, limit_bytes);
        self.perform(Call::new(Operation::Read, path.display().to_string(), read)).await
    }

    async fn write(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let torn = prefix(&content, &self.simulation.0.random);
        let (owned, torn_path, client) = (path.to_path_buf(), path.to_path_buf(), self.process.client());
        let write = move |tree: &mut Tree| tree.write(client, &owned, &content);
        let call = Call::new(Operation::Write, path.display().to_string(), write);
        // A torn one that finds no room has left nothing.
        self.perform(call.torn(move |tree| drop(tree.write(client, &torn_path, &torn)))).await
    }

    async fn overwrite(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let torn = prefix(&content, &self.simulation.0.random);
        let (owned, torn_path, client) = (path.to_path_buf(), path.to_path_buf(), self.process.client());
        let overwrite = move |tree: &mut Tree| tree.overwrite(client, &owned, &content);
        let call = Call::new(Operation::Overwrite, path.display().to_string(), overwrite);
        self.perform(call.torn(move |tree| drop(tree.overwrite(client, &torn_path, &torn)))).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (client, owned): (_, (PathBuf, PathBuf)) = (self.process.client(), (from.into(), to.into()));
        let rename = move |tree: &mut Tree| tree.rename(client, &owned.0, &owned.1);
        self.perform(Call::new(Operation::Rename, format!("{} {}", from.display(), to.display()), rename)).await
    }

    async fn unlink(&self, path: &Path) -> io::Result<()> {
        let (owned, client) = (path.to_path_buf(), self.process.client());
        let unlink = move |tree: &mut Tree| tree.unlink(client, &owned);
        let call = Call::new(Operation::Unlink, path.display().to_string(), unlink);
        self.perform(call.guarded(OwnedChange::Unlink(path.display().to_string()))).await
    }

    async fn create_directories(&self, path: &Path) -> io::Result<()> {
        let owned = path.to_path_buf();
        let create = move |tree: &mut Tree| tree.create_directories(&owned);
        self.perform(Call::new(Operation::CreateDirectories, path.display().to_string(), create)).await
    }

    async fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let owned = path.to_path_buf();
        let remove = move |tree: &mut Tree| tree.remove_directory(&owned);
        self.perform(Call::new(Operation::RemoveDirectory, path.display().to_string(), remove)).await
    }

    async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let owned = path.to_path_buf();
        let sync = move |tree: &mut Tree| tree.sync_directory(&owned);
        self.perform(Call::new(Operation::SyncDirectory, path.display().to_string(), sync)).await
    }

    async fn space(&self, _path: &Path) -> io::Result<VolumeSpace> {
        self.perform(Call::new(Operation::Space, "", |tree| Ok(tree.space()))).await
    }
}
