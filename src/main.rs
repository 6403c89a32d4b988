//! The `kaas` binary: reads the options, checks the machine, puts shards and control thread together, and waits.

mod cluster;
mod inspect;
mod logging;
mod options;
mod processors;
mod shard;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, anyhow};
use kaas_coord::admin::{self, Facts};
use kaas_coord::standalone::{self, StandaloneOptions};
use kaas_coord::thread::{self, Role};
use kaas_core::env::executor::spawn_shard;
use kaas_core::env::memory::MemoryVolume;
use kaas_core::env::probe::Purpose;
use kaas_core::env::{open_files, probe};
use kaas_core::shard::port;
use kaas_net::listener;
use kaas_net::server::ConnectionCounter;
use kaas_proto::control::link;
use kaas_proto::reserve::Reserves;
use kaas_proto::roots::Roots;

use cluster::Member;
use options::{Asked, Checked, Mode, Options};
use processors::Processors;
use shard::{Serving, ShardParts, Storage};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let started = Instant::now();
    let options = match Options::from_process() {
        Asked::Broker(options) => *options,
        Asked::Inspect(command) => return inspect::run(&command),
    };
    logging::start(options.log_level.clone());
    match run(options, started) {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("kaas ends: {}", in_words(&error));
            ExitCode::FAILURE
        }
    }
}

/// Runs the broker until it is told to stop.
fn run(options: Checked, started: Instant) -> anyhow::Result<()> {
    let processors = Processors::of(options.shards);
    let shards = processors.shards;
    probe::check_io_uring(shards)?;
    let open_files = probe::raise_open_files();
    let has_volume = options.mode.roots().is_some();
    let files = open_files::share(open_files, shards, has_volume, options.config.max_connections)?;
    let (mut file_system, mut cluster_file_system) = (None, None);
    let storage = match options.mode.roots() {
        None => {
            tracing::warn!("everything is kept in memory and lost at the end; --data-dir DIR keeps it");
            Storage::Memory(MemoryVolume::default())
        }
        Some(roots) => {
            // Before either is made.
            if let Some(cluster) = roots.own_cluster() {
                probe::check_apart(roots.data(), cluster)?;
            }
            file_system = Some(file_system_of(Purpose::Data, roots.data(), options.accept_nfs3)?);
            if let Some(cluster) = roots.own_cluster() {
                cluster_file_system = Some(file_system_of(Purpose::Cluster, cluster, options.accept_nfs3)?);
            }
            Storage::Directories(roots.clone())
        }
    };
    let listeners = listener::bind(&options.listen, shards)?;
    let admin_listener = admin::bind(options.admin_listen).with_context(|| {
        format!("{} can't be used for the admin endpoint; choose another one with --admin-listen", options.admin_listen)
    })?;
    let admin_address = admin_listener.local_addr()?;
    let addresses: Vec<_> =
        listeners[0].iter().map(|listener| (Arc::clone(&listener.name), listener.address)).collect();
    let config = Arc::new(options.config_of_bound(&listeners[0]));
    let role = match &options.mode {
        Mode::LocalDev | Mode::Standalone(_) => Role::Standalone(standalone::prepare(StandaloneOptions {
            broker: options.broker,
            listeners: options.advertised,
            roots: options.mode.roots().cloned(),
            config: Arc::clone(&config),
            open_files: files.partitions,
        })?),
        Mode::Cluster { roots, outside } => cluster::role(Member {
            broker: options.broker,
            listen: &options.listen,
            advertised: &options.advertised,
            bound: &addresses,
            heartbeat_listen: options.heartbeat_listen,
            heartbeat_tls: options.heartbeat_tls,
            heartbeat_advertise: options.heartbeat_advertise.as_deref(),
            roots,
            outside,
            config: Arc::clone(&config),
            open_files: files.partitions,
        })?,
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        mode = options.mode.name(),
        broker = options.broker.0,
        cluster = &*role.view().cluster_id,
        topics = role.view().topics.len(),
        shards,
        cpus = processors.in_words(),
        data_dir = options.mode.roots().map(|roots| roots.data().display().to_string()),
        file_system,
        cluster_dir = options.mode.roots().and_then(Roots::own_cluster).map(|path| path.display().to_string()),
        cluster_file_system,
        open_files,
        connection_files = files.connections,
        partition_files = has_volume.then_some(files.partitions),
        segment_files = has_volume.then_some(files.segments),
        listeners = addresses.iter().map(|(name, address)| format!("{name}={address}")).collect::<Vec<_>>().join(","),
        "kaas starts"
    );

    let is_split = options.mode.roots().is_some_and(|roots| roots.own_cluster().is_some());
    let reserves = if is_split { Reserves::apart() } else { Reserves::default() };
    let (control, links) = link(shards, Arc::clone(role.view()), reserves);
    let (handles, operations): (Vec<_>, Vec<_>) = links.iter().map(|_| port::queue()).unzip();
    let connections = Arc::new(ConnectionCounter::default());
    let serving = Serving::all(shards);
    let mut threads = Vec::new();
    for ((link, operations), listeners) in links.into_iter().zip(operations).zip(listeners) {
        let parts = ShardParts {
            broker: options.broker,
            config: Arc::clone(&config),
            storage: storage.clone(),
            operations,
            handles: handles.clone(),
            listeners,
            connections: Arc::clone(&connections),
            connection_files: files.connections,
            open_segments: usize::try_from(files.segments / u64::from(shards)).unwrap_or(usize::MAX),
            serving: serving.clone(),
            link,
        };
        let parts_shard = parts.link.shard;
        let name = format!("shard-{parts_shard}");
        let thread = spawn_shard(&name, processors.cpu_of(parts_shard), move || shard::run(parts));
        threads.push(thread.map_err(|error| anyhow!("{name} could not be started: {error}"))?);
    }
    let facts = Facts { version: env!("CARGO_PKG_VERSION"), mode: options.mode.name(), started };
    let control = thread::start(role, control, admin_listener, facts).context("the control thread did not start")?;
    for (name, address) in addresses {
        tracing::info!(listener = &*name, "listening on {address} (Kafka)");
    }
    tracing::info!("admin on {admin_address}");

    let ended = control.join().map_err(|_| anyhow!("the control thread has panicked"))?;
    // A shard that can't start, or hangs, is not waited for, unless it is the one that says why.
    let ended_first = match &ended {
        Ok(()) => None,
        Err(error) => match error.ended_shard() {
            Some(shard) => Some(usize::from(shard.0)),
            None => return Ok(ended?),
        },
    };
    for (index, thread) in threads.into_iter().enumerate() {
        if ended_first.is_none_or(|first| first == index) {
            let result = thread.join().map_err(|error| anyhow!("{error}")).and_then(|result| result);
            result.with_context(|| format!("shard {index} has ended"))?;
        }
    }
    Ok(ended?)
}

/// Checks one of the directories, and says what it lies on.
fn file_system_of(purpose: Purpose, path: &Path, accept_nfs3: bool) -> anyhow::Result<String> {
    let found = probe::check_directory(purpose, path, accept_nfs3)?;
    if found.is_full {
        let refused = match purpose {
            Purpose::Data => "records",
            Purpose::Cluster => "committed offsets",
        };
        tracing::warn!(
            "the {purpose} {} is full: {refused} are refused until there is room, whether it takes direct I/O could not be tried",
            path.display()
        );
    }
    Ok(found.file_system)
}

/// An error and its causes, each once: most of ours name their cause themselves.
fn in_words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said.as_str() {
        "" => cause,
        _ if said.contains(&cause) => said,
        _ => format!("{said}: {cause}"),
    })
}
