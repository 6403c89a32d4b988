//! Stops a broker right before it renames `assignment.json`: by a library that is loaded into it, so that nothing of this
//! is in the broker itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::broker::{Broker, wait_until};

const SOURCE: &str = include_str!("pause_before_rename.c");

/// The library.
#[derive(Debug)]
pub struct RenamePause {
    directory: PathBuf,
}

impl RenamePause {
    /// Builds the library in a directory. Needs a C compiler, as building kaas does.
    ///
    /// # Errors
    /// There is none.
    pub fn build(directory: &Path) -> Result<Self> {
        let pause = Self { directory: directory.to_owned() };
        let source = directory.join("pause_before_rename.c");
        std::fs::write(&source, SOURCE)?;
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(pause.library())
            .arg(source)
            .arg("-ldl");
        ensure!(compiler.status().context("cc, the C compiler")?.success(), "{compiler:?} failed");
        Ok(pause)
    }

    fn library(&self) -> PathBuf {
        self.directory.join("pause_before_rename.so")
    }

    fn trigger(&self, broker: i32) -> PathBuf {
        self.directory.join(format!("pause-{broker}"))
    }

    /// What the environment of a broker needs.
    #[must_use]
    pub fn variables(&self, broker: i32) -> Vec<(String, String)> {
        let text = |path: PathBuf| path.display().to_string();
        vec![
            ("LD_PRELOAD".to_owned(), text(self.library())),
            ("KAAS_PAUSE_BEFORE_RENAME".to_owned(), text(self.trigger(broker))),
        ]
    }

    /// Its next rename is not made before it is continued.
    ///
    /// # Errors
    /// The directory is gone.
    pub fn arm(&self, broker: i32) -> Result<()> {
        Ok(std::fs::write(self.trigger(broker), "")?)
    }

    /// Takes back what did not happen.
    ///
    /// # Errors
    /// The directory is gone.
    pub fn disarm(&self, broker: i32) -> Result<()> {
        match std::fs::remove_file(self.trigger(broker)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Waits until the broker stands still.
    ///
    /// # Errors
    /// It does not in time.
    pub fn wait_until_stopped(&self, broker: &Broker) -> Result<()> {
        let path = format!("/proc/{}/stat", broker.process_id());
        wait_until("the broker stands still before its rename", || {
            let stat = std::fs::read_to_string(&path)?;
            Ok(stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
        })
    }
}
