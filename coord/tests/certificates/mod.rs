//! Certificates for tests of mutual TLS.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// Whoever it has signed is trusted by those that trust it.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Certificate, key and the authority's certificate, as files.
pub(crate) type Files = [PathBuf; 3];

impl Authority {
    pub(crate) fn new() -> Self {
        let mut own = CertificateParams::new(Vec::new()).unwrap();
        own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = own.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(own, key), pem }
    }

    /// Signs a certificate for a host and writes all that its owner needs.
    pub(crate) fn issue(&self, directory: &Path, host: &str) -> Files {
        let mut certificate = CertificateParams::new(vec![host.to_owned()]).unwrap();
        certificate.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let signed = certificate.signed_by(&key, &self.issuer).unwrap();
        let files = ["tls.crt", "tls.key", "ca.crt"].map(|name| directory.join(name));
        for (path, text) in files.iter().zip([signed.pem(), key.serialize_pem(), self.pem.clone()]) {
            fs::write(path, text).unwrap();
        }
        files
    }
}
