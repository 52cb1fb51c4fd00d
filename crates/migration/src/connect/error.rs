//! Errors of connections, each with its remedy.

use std::io;

use rustls::{AlertDescription, CertificateError, Error as TlsError};
use thiserror::Error;

use crate::format::{FormatError, Refusal};
use crate::receive::ReceiveError;

/// Reason why there is no connection, or none any more.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The address cannot be reached.
    #[error(
        "{peer} cannot be reached: {error}; is the daemon there running, with migrate_listen set, and the port open?"
    )]
    Unreachable {
        /// Address that was tried.
        peer: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The peer is silent, or slower than anything that is at work.
    #[error(
        "the peer did not answer within {seconds} s while {doing}: is it overloaded, or does something between drop packets?"
    )]
    TimedOut {
        /// Operation that took too long.
        doing: &'static str,
        /// Limit, in seconds.
        seconds: u64,
    },
    /// The connection failed.
    #[error("the connection failed while {doing}: {error}")]
    Io {
        /// Operation that failed.
        doing: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// The peer's certificate is not accepted here.
    #[error("the peer's certificate is refused: {0}")]
    PeerCertificate(String),
    /// The certificate of this side is not accepted there.
    #[error("the peer refused this daemon's certificate: {0}")]
    OwnCertificate(String),
    /// The two sides cannot agree on TLS.
    #[error(
        "TLS failed: {0}; both sides must use TLS 1.3, and certificates (migrate_cert, migrate_key, migrate_ca)"
    )]
    Tls(TlsError),
    /// A file of keys or certificates is of no use.
    #[error("{path}: {reason}")]
    KeyFile {
        /// Path of the file.
        path: String,
        /// Description of what is wrong, with the remedy.
        reason: String,
    },
    /// The policy does not allow this peer.
    #[error(
        "no name in the peer's certificate is among migrate_from ({allowed}): add the name that it has, if it may migrate to this host"
    )]
    NotAllowed {
        /// Names that are allowed.
        allowed: String,
    },
    /// Plain connections are for one machine.
    #[error(
        "{0} is another machine, and there are no certificates: set migrate_cert, migrate_key and migrate_ca on both sides"
    )]
    NotLocal(String),
    /// The peer contradicts the protocol.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The peer refused, in its own words.
    #[error("the peer refused: {}", .0.reason)]
    Refused(Refusal),
    /// The peer sent something else than was due.
    #[error("the peer sent something else than {0}")]
    Unexpected(&'static str),
    /// The peer hung up.
    #[error("the peer hung up while {0}; its log says why")]
    HungUp(&'static str),
}

impl ConnectError {
    /// Makes an error of a failure of the socket, which may carry one of TLS.
    pub(crate) fn of_io(doing: &'static str, seconds: u64, error: io::Error) -> Self {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()).cloned();
        match (tls, error.kind()) {
            (Some(tls), _) => Self::of_tls(tls),
            (None, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                Self::TimedOut { doing, seconds }
            }
            (None, io::ErrorKind::UnexpectedEof) => Self::HungUp(doing),
            (None, _) => Self::Io { doing, error },
        }
    }

    pub(crate) fn of_receive(doing: &'static str, seconds: u64, error: ReceiveError) -> Self {
        match error {
            ReceiveError::Io(error) | ReceiveError::Target(error) => {
                Self::of_io(doing, seconds, error)
            }
            ReceiveError::Ended => Self::HungUp(doing),
            ReceiveError::Format(error) => Self::Format(error),
        }
    }

    pub(crate) fn of_tls(error: TlsError) -> Self {
        match error {
            TlsError::InvalidCertificate(reason) => Self::PeerCertificate(of_certificate(&reason)),
            TlsError::NoCertificatesPresented => {
                Self::PeerCertificate("it has none: set migrate_cert and migrate_key there".into())
            }
            TlsError::AlertReceived(alert) => of_alert(alert),
            TlsError::InvalidMessage(_) => Self::Format(FormatError::Foreign),
            error => Self::Tls(error),
        }
    }
}

fn of_certificate(reason: &CertificateError) -> String {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired: renew it there, and see that both clocks are right".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet: see that both clocks are right".into()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "no authority of migrate_ca has signed it: use one authority on both sides".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name: connect by a name that is in it, or reissue it with this one"
                .into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is not for this purpose: reissue it for servers and clients".into()
        }
        other => format!("{other}"),
    }
}

fn of_alert(alert: AlertDescription) -> ConnectError {
    let reason = match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "no authority of migrate_ca there has signed it: use one authority on both sides"
        }
        AlertDescription::CertificateExpired => {
            "it has expired: renew it here, and see that both clocks are right"
        }
        AlertDescription::CertificateRequired => {
            "it needs one: set migrate_cert and migrate_key here"
        }
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied => "the log of the daemon there says why",
        alert => return ConnectError::Tls(TlsError::AlertReceived(alert)),
    };
    ConnectError::OwnCertificate(reason.into())
}
