//! The API server that the tests share, and one namespace for each test.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use kaas_coord::kubernetes::connection::Connection;
use kaas_coord::kubernetes::election::Holder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

/// No step of any test takes longer, on whatever machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// `tests/kube/server`, which ends with its standard input: with this process, however that ends.
pub(crate) struct ApiServer {
    process: Child,
    pipes: Mutex<(ChildStdin, Lines<BufReader<ChildStdout>>)>,
    admin: String,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl ApiServer {
    pub(crate) fn start() -> Self {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/kube/server");
        let mut process = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = output.next().expect("the server says why it does not start").unwrap();
        let ready: Value = serde_json::from_str(&ready).unwrap();
        let admin = ready["kubeconfig"].as_str().unwrap().to_owned();
        Self { process, pipes: Mutex::new((input, output)), admin }
    }

    /// The one that most tests share.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<ApiServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    pub(crate) fn command(&self, line: &str) -> Value {
        let mut pipes = self.pipes.lock().unwrap();
        writeln!(pipes.0, "{line}").unwrap();
        let answer: Value = serde_json::from_str(&pipes.1.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer.get("error"), None, "{line}");
        answer
    }

    /// A namespace of its own for a test, as deploy/ sets it up.
    pub(crate) async fn namespace(&self, name: &str) -> Namespace {
        let made = self.command(&format!("namespace {name}"));
        Namespace {
            name: name.to_owned(),
            brokers: config(made["kubeconfig"].as_str().unwrap()).await,
            admin: Client::try_from(config(&self.admin).await).unwrap(),
        }
    }
}

async fn config(path: &str) -> Config {
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
