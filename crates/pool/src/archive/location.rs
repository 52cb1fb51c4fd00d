//! From a URL to a store.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider};
use thiserror::Error;
use url::Url;

use super::archive_options::{ArchiveOptions, Credentials};
use super::http::Connector;
use super::key::Keys;

/// Longest time that a connection may take: a few lost packets, and then another attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// Why a URL names no archive.
#[derive(Debug, Error)]
pub enum LocationError {
    /// The URL is none, or of another kind.
    #[error(
        "{url:?} names no archive ({why}): write s3://BUCKET/PREFIX or file:///DIRECTORY, without \
         credentials"
    )]
    Url {
        /// URL that was given.
        url: String,
        /// Description of what is wrong with the URL.
        why: String,
    },
    /// The directory is not there.
    #[error("{}: {source}; an archive in a directory needs one that exists", directory.display())]
    Directory {
        /// Path of the directory.
        directory: PathBuf,
        /// Error of the kernel.
        source: std::io::Error,
    },
    /// The endpoint, the region or the credentials are not well-formed.
    #[error("{url} cannot be used as an S3 store: {why}")]
    Settings {
        /// The archive's URL.
        url: String,
        /// Description of the fault.
        why: String,
    },
}

/// A store, and what keys in it begin with.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) keys: Keys,
    /// Directory in which the keys are files, for archives in a directory.
    pub(super) directory: Option<PathBuf>,
}

impl Location {
    pub(super) fn open(text: &str, options: &ArchiveOptions) -> Result<Self, LocationError> {
        let wrong = |why: String| LocationError::Url { url: redacted(text), why };
        let url = Url::parse(text).map_err(|error| wrong(error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("it has credentials, which belong into the options".into()));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("it has a query or a fragment".into()));
        }
        match (url.scheme(), url.host_str()) {
            ("s3", Some(bucket)) => {
                let prefix = Path::from_url_path(url.path());
                let prefix = prefix.map_err(|error| wrong(error.to_string()))?;
                let store = Arc::new(s3(&url, bucket, options)?);
                Ok(Self { store, keys: Keys(prefix), directory: None })
            }
            ("s3", None) => Err(wrong("it names no bucket".into())),
            ("file", None) => {
                let path = url.to_file_path().map_err(|()| wrong("it is no path".into()))?;
                let store = Arc::new(directory(&path)?);
                Ok(Self { store, keys: Keys(Path::default()), directory: Some(path) })
            }
            (scheme, _) => Err(wrong(format!("{scheme:?} is no scheme of archives"))),
        }
    }
}

fn s3(
    url: &Url,
    bucket: &str,
    options: &ArchiveOptions,
) -> Result<impl ObjectStore, LocationError> {
    // Already there where another part of the program speaks TLS: any will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    if let Some(endpoint) = &options.endpoint {
        // Over AWS_ENDPOINT_URL_S3, too.
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    if let Some(credentials) = &options.credentials {
        builder = builder.with_credentials(Arc::new(provider(credentials)));
    }
    let endpoints = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let plain = endpoints
        .iter()
        .find_map(|key| builder.get_config_value(key))
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    // Attempts are counted and timed by `Patience`, which knows what a repeated creation means.
    let client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_allow_http(plain);
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let builder = builder
        .with_client_options(client)
        .with_allow_http(plain)
        .with_retry(once)
        .with_http_connector(Connector::default())
        // Not every S3-compatible store can delete in bulk.
        .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true");
    builder
        .build()
        .map_err(|error| LocationError::Settings { url: url.to_string(), why: error.to_string() })
}

fn provider(credentials: &Credentials) -> StaticCredentialProvider<AwsCredential> {
    let Credentials { access_key_id, secret_access_key, session_token } = credentials.clone();
    StaticCredentialProvider::new(AwsCredential {
        key_id: access_key_id,
        secret_key: secret_access_key.0,
        token: session_token.map(|token| token.0),
    })
}

fn directory(path: &FilePath) -> Result<impl ObjectStore, LocationError> {
    let wrong = |source| LocationError::Directory { directory: path.into(), source };
    if !std::fs::metadata(path).map_err(wrong)?.is_dir() {
        return Err(wrong(std::io::ErrorKind::NotADirectory.into()));
    }
    let store = LocalFileSystem::new_with_prefix(path);
    Ok(store.map_err(|error| wrong(std::io::Error::other(error)))?.with_fsync(true))
}

/// A URL for messages: what stands before the `@` may be a password, and so may what is asked for in a
/// query.
fn redacted(text: &str) -> String {
    let (hidden, shown) = text.rsplit_once('@').map_or((None, text), |(a, b)| (Some(a), b));
    let begins = match hidden {
        Some(hidden) => {
            hidden.split_once("://").map_or("…@".into(), |(it, _)| format!("{it}://…@"))
        }
        None => String::new(),
    };
    match shown.find(['?', '#']) {
        Some(end) => format!("{begins}{}…", &shown[..=end]),
        None => format!("{begins}{shown}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_shows_a_secret() {
        for url in [
            "s3://key:SECRET@bucket/prefix",
            "s3://key:SEC?RET@bucket/SECRET@prefix",
            "key:SECRET@bucket",
            "s3://bucket/prefix?AWSAccessKeyId=key&Signature=SECRET",
            "s3://bucket/prefix#SECRET",
            "s4://bucket?secret=SECRET",
        ] {
            let error = Location::open(url, &ArchiveOptions::default()).unwrap_err();
            let (message, debug) = (error.to_string(), format!("{error:?}"));
            for leak in ["SECRET", "SEC", "RET"] {
                assert!(!message.contains(leak) && !debug.contains(leak), "{url}: {message}");
            }
        }
        assert_eq!(redacted("s3://bucket/prefix"), "s3://bucket/prefix");
        assert_eq!(redacted("s3://a:b@bucket/prefix?c"), "s3://…@bucket/prefix?…");
    }
}
