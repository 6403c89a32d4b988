//! A real API server, run by `tests/kube/server`.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock};

use serde_json::Value;

/// It ends with its standard input: with this process, however that ends.
pub(crate) struct ApiServer {
    process: Child,
    pipes: Mutex<(ChildStdin, Lines<BufReader<ChildStdout>>)>,
    /// The kubeconfig of somebody who may do everything.
    pub(crate) admin: String,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // Its input ends, and it cleans up.
        let Ok(pipes) = self.pipes.get_mut() else { return };
        let _ = writeln!(pipes.0, "end");
        let _ = self.process.wait();
    }
}

impl ApiServer {
    pub(crate) fn start() -> Self {
        let directory = env!("CARGO_MANIFEST_DIR");
        // The root package's tests use this file too.
        let root = directory.strip_suffix("/coord").unwrap_or(directory);
        let program = format!("{root}/tests/kube/server");
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

    /// Makes a namespace as deploy/ sets it up, and returns the kubeconfig of its brokers.
    pub(crate) fn make_namespace(&self, name: &str) -> String {
        self.command(&format!("namespace {name}"))["kubeconfig"].as_str().unwrap().to_owned()
    }
}
