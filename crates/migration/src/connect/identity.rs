//! Certificates: this side's own, and the peers that may connect.

use std::path::Path;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::error::ConnectError;

/// Certificates of one side, as the settings `migrate_cert`, `migrate_key`, `migrate_ca` and `migrate_from` name them.
#[derive(Clone)]
pub struct Policy {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    allowed: Vec<String>,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Policy").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

impl Policy {
    /// Reads certificate, key and authorities, all PEM. `allowed` are names of peers that may migrate to this host,
    /// as their certificates have them; nobody may if it is empty.
    ///
    /// # Errors
    /// [`ConnectError::KeyFile`], [`ConnectError::Tls`].
    pub fn read(
        certificate: &Path,
        key: &Path,
        authorities: &Path,
        allowed: &[String],
    ) -> Result<Self, ConnectError> {
        let chain = certificates(certificate)?;
        let key_bytes = PrivateKeyDer::from_pem_file(key).map_err(|error| of_pem(key, &error))?;
        let mut roots = RootCertStore::empty();
        for authority in certificates(authorities)? {
            roots.add(authority).map_err(|error| of_file(authorities, &error.to_string()))?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let verifier =
            verifier.build().map_err(|error| of_file(authorities, &error.to_string()))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let mut server = server
            .with_protocol_versions(versions)
            .map_err(ConnectError::Tls)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key_bytes.clone_key())
            .map_err(|error| of_file(key, &format!("{error}: is it the certificate's key?")))?;
        // Both sides prove who they are each time.
        server.send_tls13_tickets = 0;
        let client = ClientConfig::builder_with_provider(provider);
        let mut client = client
            .with_protocol_versions(versions)
            .map_err(ConnectError::Tls)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key_bytes)
            .map_err(|error| of_file(key, &format!("{error}: is it the certificate's key?")))?;
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Self { server: server.into(), client: client.into(), allowed: allowed.to_vec() })
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    /// Returns the first allowed name that a peer's certificate, which was verified, is valid for.
    ///
    /// # Errors
    /// [`ConnectError::NotAllowed`] if there is none.
    pub(crate) fn admit(&self, certificate: &CertificateDer<'_>) -> Result<String, ConnectError> {
        let parsed = ParsedCertificate::try_from(certificate).map_err(ConnectError::of_tls)?;
        let is_for = |name: &&String| {
            let name = ServerName::try_from(name.as_str());
            name.is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
        };
        let refused = || ConnectError::NotAllowed { allowed: self.allowed.join(", ") };
        self.allowed.iter().find(is_for).cloned().ok_or_else(refused)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => {
            Err(of_file(path, "no certificate is in it: it must be PEM"))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(of_pem(path, &error)),
    }
}

fn of_pem(path: &Path, error: &PemError) -> ConnectError {
    match error {
        PemError::Io(error) => of_file(path, &error.to_string()),
        error => of_file(path, &format!("{error}: it must be PEM")),
    }
}

fn of_file(path: &Path, reason: &str) -> ConnectError {
    ConnectError::KeyFile { path: path.display().to_string(), reason: reason.into() }
}
