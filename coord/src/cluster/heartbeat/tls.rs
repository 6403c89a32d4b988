//! Mutual TLS between brokers: each shows a certificate of the authority that all of them trust, and takes none else's.
//!
//! Control thread. The files are read again every [`LOOK_INTERVAL`]: what was renewed counts for new sessions, and those that
//! there are go on. What can't be used changes nothing.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, Server, ServerTlsConfig};

use super::in_words;
use crate::topics::blocking;

/// How often the files are read.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// Where certificate and key of this broker lie, and the certificates of the authority; all as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authority: PathBuf,
}

/// What is in the files can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the {what} {path} can't be read: {source}")]
    Unreadable { what: &'static str, path: PathBuf, source: io::Error },
    #[error("the certificate {certificate} and the key {key} can't be used: {reason}")]
    Identity { certificate: PathBuf, key: PathBuf, reason: String },
    #[error("the authority's certificates {path} can't be used: {reason}")]
    Authority { path: PathBuf, reason: String },
}

/// What was in the files; valid.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Vec<u8>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// One can't be read, or does not hold what it should.
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let TlsFiles { certificate, key, authority } = files;
        let read = |what, path: &Path| {
            std::fs::read(path).map_err(|source| TlsError::Unreadable { what, path: path.to_owned(), source })
        };
        let tls = Self {
            certificate: read("certificate", certificate)?,
            key: read("key", key)?,
            authority: read("authority's certificates", authority)?,
        };
        let check = |config| Server::builder().tls_config(config).map_err(|error| in_words(&error));
        let own = ServerTlsConfig::new().identity(tls.identity());
        check(own).map_err(|reason| TlsError::Identity {
            certificate: certificate.clone(),
            key: key.clone(),
            reason,
        })?;
        check(tls.server()).map_err(|reason| TlsError::Authority { path: authority.clone(), reason })?;
        Ok(tls)
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(&self.certificate, &self.key)
    }

    /// The controller's side: demands a certificate of whoever comes.
    pub(super) fn server(&self) -> ServerTlsConfig {
        let authority = Certificate::from_pem(&self.authority);
        ServerTlsConfig::new().identity(self.identity()).client_ca_root(authority).timeout(HANDSHAKE_TIMEOUT)
    }

    /// The broker's side. `name` is what the controller's certificate has to hold, if it is not the host of its address.
    pub(super) fn client(&self, name: Option<&str>) -> ClientTlsConfig {
        let authority = Certificate::from_pem(&self.authority);
        let config =
            ClientTlsConfig::new().identity(self.identity()).ca_certificate(authority).timeout(HANDSHAKE_TIMEOUT);
        match name {
            Some(name) => config.domain_name(name),
            None => config,
        }
    }
}

/// Follows the files, for ever.
pub(crate) async fn follow(files: TlsFiles, current: watch::Sender<Tls>) {
    let mut complaint = String::new();
    loop {
        sleep(LOOK_INTERVAL).await;
        match look(&files, &current).await {
            Ok(is_new) => {
                complaint.clear();
                if is_new {
                    tracing::info!("the certificates for heartbeats are new ones");
                }
            }
            Err(error) if error.to_string() == complaint => {}
            Err(error) => {
                complaint = error.to_string();
                tracing::error!("the certificates for heartbeats stay as they were: {error}");
            }
        }
    }
}

/// Takes what is in the files, and says whether it is new.
pub(super) async fn look(files: &TlsFiles, current: &watch::Sender<Tls>) -> Result<bool, TlsError> {
    let files = files.clone();
    let read = blocking(move || Tls::load(&files)).await?;
    Ok(current.send_if_modified(|current| {
        let is_new = *current != read;
        *current = read;
        is_new
    }))
}
