//! The control thread itself: a named thread with a single-threaded tokio runtime.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use kaas_proto::control::ControlLink;
use kaas_proto::types::ShardId;
use kaas_proto::view::ClusterView;
use tokio::task::LocalSet;

use crate::admin::Facts;
use crate::cluster::ports::OpenPorts;
use crate::cluster::{self, ClusterError};
use crate::signals::Signals;
use crate::standalone::{self, StandaloneError};

/// Calls to the volume at a time. A hung mount may hold that many, and no more.
const BLOCKING_THREADS: usize = 8;

/// The control thread has ended, and the broker with it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("the control thread could not start: {0}")]
    Start(#[from] io::Error),
    #[error(transparent)]
    Standalone(#[from] StandaloneError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl ControlError {
    /// The shard whose end this is about.
    #[must_use]
    pub fn ended_shard(&self) -> Option<ShardId> {
        match self {
            Self::Standalone(StandaloneError::ShardEnded(shard)) | Self::Cluster(ClusterError::ShardEnded(shard)) => {
                Some(*shard)
            }
            _ => None,
        }
    }
}

/// What the control thread drives.
pub enum Role {
    /// One broker on its own, with a volume or without.
    Standalone(standalone::Prepared),
    Cluster {
        prepared: Box<cluster::Prepared>,
        ports: OpenPorts,
        /// Does not block.
        heartbeat_listener: TcpListener,
    },
}

impl std::fmt::Debug for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Standalone(_) => "Standalone",
            Self::Cluster { .. } => "Cluster",
        })
    }
}

impl Role {
    /// What the shards see first.
    #[must_use]
    pub fn view(&self) -> &Arc<ClusterView> {
        match self {
            Self::Standalone(prepared) => prepared.view(),
            Self::Cluster { prepared, .. } => prepared.view(),
        }
    }
}

/// Starts the control thread. Its result is that of the broker: `Ok` after a clean stop.
///
/// `admin_listener` does not block.
///
/// # Errors
/// No thread could be made.
pub fn start(
    role: Role,
    link: ControlLink,
    admin_listener: TcpListener,
    facts: Facts,
) -> io::Result<JoinHandle<Result<(), ControlError>>> {
    Builder::new().name("control".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .build()?;
        let driver = async move {
            let signals = Signals::catch()?;
            let admin_listener = tokio::net::TcpListener::from_std(admin_listener)?;
            match role {
                Role::Standalone(prepared) => {
                    standalone::run(prepared, link, admin_listener, signals, facts).await?;
                }
                Role::Cluster { prepared, ports, heartbeat_listener } => {
                    let heartbeats = tokio::net::TcpListener::from_std(heartbeat_listener)?;
                    Box::pin(cluster::run(*prepared, ports, link, heartbeats, admin_listener, signals, facts)).await?;
                }
            }
            Ok(())
        };
        let ended = LocalSet::new().block_on(&runtime, driver);
        // A call to a hung volume must not keep the process.
        runtime.shutdown_background();
        ended
    })
}
