//! One namespace for each test, on the API server that they share.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use kaas_coord::kubernetes::connection::Connection;
use kaas_coord::kubernetes::election::Holder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::watch;
use tokio::time::timeout;

pub(crate) use super::api_server::ApiServer;

/// No step of any test takes longer, on whatever machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

impl ApiServer {
    /// The one that most tests share.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<ApiServer> = OnceLock::new();
        SHARED.get_or_init(|| Self::start().unwrap())
    }

    /// A namespace of its own for a test, as deploy/ sets it up.
    pub(crate) async fn namespace(&self, name: &str) -> Namespace {
        let brokers = self.make_namespace(name).unwrap();
        Namespace {
            name: name.to_owned(),
            brokers: config(&brokers).await,
            admin: Client::try_from(config(&self.admin).await).unwrap(),
        }
    }
}

async fn config(path: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(path).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
}

pub(crate) struct Namespace {
    pub(crate) name: String,
    /// As the brokers' service account.
    brokers: Config,
    /// As somebody who may do everything.
    pub(crate) admin: Client,
}

impl Namespace {
    /// A broker's own connection.
    pub(crate) fn connection(&self) -> Connection {
        Connection::with(self.brokers.clone(), None).unwrap()
    }
}

pub(crate) fn holder(name: &str) -> Holder {
    let incarnation = uuid::Uuid::new_v4().to_string();
    Holder { name: name.to_owned(), incarnation, heartbeat: format!("{name}.kaas-headless:9094") }
}

/// Waits until what is watched is as it should be, and returns it.
pub(crate) async fn reaches<T: Clone + std::fmt::Debug>(
    watched: &mut watch::Receiver<T>,
    what: &str,
    condition: impl Fn(&T) -> bool,
) -> T {
    if let Ok(value) = timeout(PATIENCE, watched.wait_for(|value| condition(value))).await {
        return value.unwrap().clone();
    }
    panic!("{what}: it is {:?}", watched.borrow())
}
