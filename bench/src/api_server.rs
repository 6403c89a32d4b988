//! A real Kubernetes API server, run by `tests/kube/server`.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// It ends with its standard input: with this process, however that ends.
#[derive(Debug)]
pub struct ApiServer {
    process: Child,
    pipes: Mutex<(ChildStdin, Lines<BufReader<ChildStdout>>)>,
    /// The kubeconfig of somebody who may do everything.
    pub admin: PathBuf,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // Its input ends, and it cleans up.
        let pipes = self.pipes.get_mut().unwrap_or_else(PoisonError::into_inner);
        writeln!(pipes.0, "end").ok();
        self.process.wait().ok();
    }
}

impl ApiServer {
    /// Starts one. The first time on a machine it is built, which takes minutes.
    ///
    /// # Errors
    /// What is missing here.
    pub fn start() -> Result<Self> {
        // Of the package that is built, somewhere in the repository.
        let mut directories = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let program =
            directories.find_map(|directory| Some(directory.join("tests/kube/server")).filter(|path| path.exists()));
        let program = program.context("tests/kube/server is missing")?;
        let mut process = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = process.stdin.take().expect("it is piped");
        let mut output = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let ready = output.next().context("the server says why it does not start")??;
        let ready: Value = serde_json::from_str(&ready)?;
        let admin = path(&ready)?;
        Ok(Self { process, pipes: Mutex::new((input, output)), admin })
    }

    /// Tells it something, see `tests/kube/server`.
    ///
    /// # Errors
    /// What it answers.
    pub fn command(&self, line: &str) -> Result<Value> {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(pipes.0, "{line}")?;
        let answer: Value = serde_json::from_str(&pipes.1.next().context("the server has ended")??)?;
        ensure!(answer.get("error").is_none(), "{line}: {answer}");
        Ok(answer)
    }

    /// Makes a namespace as deploy/ sets it up, and returns the kubeconfig of its brokers.
    ///
    /// # Errors
    /// What the server answers.
    pub fn make_namespace(&self, name: &str) -> Result<PathBuf> {
        path(&self.command(&format!("namespace {name}"))?)
    }
}

fn path(answer: &Value) -> Result<PathBuf> {
    Ok(answer["kubeconfig"].as_str().context("the answer names a kubeconfig")?.into())
}
