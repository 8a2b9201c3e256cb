//! What it means that a request had no answer: nobody gave one, which may pass, or what is there is
//! not the API server, which does not.

use std::error::Error;
use std::io;
use std::iter::successors;

use rustls::pki_types::InvalidDnsNameError;
use rustls::{AlertDescription, CertificateError};

use super::RequestError;
use crate::cluster::connect::chain;

/// Why there was no answer.
pub(super) fn transport(error: kube::Error) -> RequestError {
    let kind = if causes(&error).any(is_of_a_wrong_peer) {
        RequestError::WrongPeer
    } else {
        RequestError::Transport
    };
    kind(match error {
        // The wrapper only adds "ServiceError".
        kube::Error::Service(inner) => chain(&*inner),
        other => chain(&other),
    })
}

/// The error and its causes. An I/O error tells the causes of what it wraps, and not what that is.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| match error.downcast_ref().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    })
}

fn is_of_a_wrong_peer(cause: &(dyn Error + 'static)) -> bool {
    if let Some(error) = cause.downcast_ref::<rustls::Error>() {
        return !passes(error);
    }
    // A name that no certificate can be for is found out before anybody is connected to.
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
