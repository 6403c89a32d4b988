//! Where the API server is, and all that is followed there.

use std::sync::Arc;

use kaas_proto::config::broker::BrokerConfig;
use kube::config::InferConfigError;
use kube::{Client, Config};

use super::candidate::{self, EpochFloor};
use super::election::{Holder, Timings};
use super::lease::LeaseStore;
use super::{endpoints, status, topics};
use crate::cluster::ports::Ports;

/// Where the API server is can't be found out.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "no Kubernetes API server is configured: {0}. In a pod this comes from its service account \
         (automountServiceAccountToken must not be false); elsewhere from KUBECONFIG"
    )]
    Config(Box<InferConfigError>),
    #[error("the configuration of the Kubernetes API server can't be used: {0}")]
    Client(Box<kube::Error>),
}

/// The API server, and the namespace that the brokers live in.
#[derive(Clone)]
pub struct Connection {
    client: Client,
    namespace: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Connection {
    /// From `KUBECONFIG`, or from the pod's service account. Sends nothing yet. `namespace` if it is not the one from there.
    ///
    /// # Errors
    /// There is no such configuration, or it can't be used.
    pub async fn configured(namespace: Option<String>) -> Result<Self, ConnectError> {
        let config = Config::infer().await.map_err(|error| ConnectError::Config(Box::new(error)))?;
        Self::with(config, namespace)
    }

    /// # Errors
    /// The configuration can't be used.
    pub fn with(mut config: Config, namespace: Option<String>) -> Result<Self, ConnectError> {
        // Everything here has its own pauses and deadlines.
        config.default_retry = false;
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))?;
        Ok(Self { client, namespace })
    }

    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Starts everything. Within a tokio runtime only. `service` is the headless service of the brokers' pods.
    #[must_use]
    pub fn start(
        &self,
        me: Holder,
        timings: Timings,
        floor: EpochFloor,
        service: &str,
        broker: Arc<BrokerConfig>,
    ) -> Ports {
        let store = LeaseStore::new(self.client(), &self.namespace, me.clone(), timings);
        let election = candidate::start(store, me, timings, floor);
        let (topics, snapshot) = topics::start(self.client(), &self.namespace, broker);
        status::start(self.client(), &self.namespace, election.leadership.clone(), snapshot);
        let ready_endpoints = endpoints::start(self.client(), &self.namespace, service);
        Ports { election, topics, ready_endpoints }
    }
}
