//! Classifies requests without a response: the server did not answer, which may be temporary, or it is not
//! the API server, which is permanent.

use std::error::Error;

use hyper_util::client::legacy;
use rustls::pki_types::InvalidDnsNameError;
use rustls::{AlertDescription, CertificateError};

use super::RequestError;
use crate::cluster::connect::{CredentialsError, causes, chain};

/// Why there was no answer.
#[allow(clippy::needless_pass_by_value)] // For use with `map_err`.
pub(super) fn transport(error: kube::Error) -> RequestError {
    if let Some(error) = causes(&error).find_map(|cause| cause.downcast_ref::<CredentialsError>()) {
        return RequestError::Credentials(error.clone());
    }
    let tls = causes(&error).find_map(|cause| cause.downcast_ref::<rustls::Error>());
    let remedy = tls.and_then(remedy).map(|remedy| format!(" ({remedy})")).unwrap_or_default();
    let kind = if causes(&error).any(is_of_a_wrong_peer) {
        RequestError::WrongPeer
    } else {
        RequestError::Transport
    };
    let text = match &error {
        // The wrappers only add "ServiceError" and "client error".
        kube::Error::Service(inner) => match inner.downcast_ref::<legacy::Error>() {
            Some(error) => error.source().map_or_else(|| chain(error), chain),
            None => chain(&**inner),
        },
        other => chain(other),
    };
    kind(text + &remedy)
}

/// What helps where the server's certificate is not trusted.
fn remedy(error: &rustls::Error) -> Option<&'static str> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => Some(
            "no certificate authority of the kubeconfig has signed it; put the right one into \
             certificate-authority",
        ),
        rustls::Error::InvalidCertificate(CertificateError::Other(other))
            if other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) =>
        {
            Some(
                "it is that of a certificate authority, which is accepted if certificate-authority \
                 holds exactly this one",
            )
        }
        _ => None,
    }
}

fn is_of_a_wrong_peer(cause: &(dyn Error + 'static)) -> bool {
    if let Some(error) = cause.downcast_ref::<rustls::Error>() {
        return !passes(error);
    }
    // A name that no certificate can be for is found out before anyone is connected to.
    cause.is::<InvalidDnsNameError>()
        || cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse)
}

/// Whether a handshake that failed so may succeed later: when one of the clocks is right, the
/// certificate is renewed, or the server has read its own.
fn passes(error: &rustls::Error) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }
        ) | rustls::Error::AlertReceived(AlertDescription::InternalError)
    )
}

#[cfg(test)]
mod tests;
