//! TLS: which server certificates are trusted, and the client certificate.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use rustls_platform_verifier::BuilderVerifierExt as _;

use super::chain;

/// Whose certificates are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Those that this machine trusts.
    System,
    /// These certificates, and what they have signed.
    These(Vec<CertificateDer<'static>>),
    /// Anybody's: `insecure-skip-tls-verify`.
    Anybody,
}

impl Trust {
    /// The authorities in this text.
    ///
    /// # Errors
    /// There are none, or they are no PEM.
    pub(super) fn pem(text: &[u8]) -> Result<Self, String> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        match all {
            Ok(all) if all.is_empty() => Err("it contains no PEM certificate".to_owned()),
            Ok(all) => Ok(Self::These(all)),
            Err(error) => Err(format!("its certificates are not valid PEM ({error})")),
        }
    }
}

/// A client's certificate and its key.
#[derive(Debug)]
pub(super) struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain && self.key.secret_der() == other.key.secret_der()
    }
}

impl Identity {
    /// Reads both.
    ///
    /// # Errors
    /// One of them is no PEM. The text does not show it.
    pub(super) fn pem(certificate: &[u8], key: &[u8]) -> Result<Self, String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
        let chain = chain.map_err(|_| "the client certificate is not valid PEM".to_owned())?;
        if chain.is_empty() {
            return Err("the client certificate contains no PEM certificate".to_owned());
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| "the client key contains no PEM private key".to_owned())?;
        Ok(Self { chain, key })
    }
}

/// How connections shake hands.
///
/// # Errors
/// What is configured cannot be used.
pub(super) fn client_config(
    trust: &Trust,
    identity: Option<&Identity>,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| chain(&error))?;
    let builder = match trust {
        Trust::System => builder.with_platform_verifier().map_err(|error| {
            format!(
                "this machine trusts no certificate authorities ({error}); set \
                 certificate-authority in the kubeconfig"
            )
        })?,
        Trust::These(authorities) => {
            let verifier = Pinned::new(authorities, provider)?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        Trust::Anybody => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
        }
    };
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(Identity { chain: certificates, key }) => builder
            .with_client_auth_cert(certificates.clone(), key.clone_key())
            .map_err(|error| format!("cannot use the client certificate and key: {error}")),
    }
}

/// Accepts what the given authorities have signed, and a server that shows exactly one of the given
/// certificates: as Go does. In a cluster whose API server has a self-signed certificate, that one
/// is both, and a strict verifier refuses an authority in the place of a server.
///
/// Such a server must still be named by the certificate, the certificate must be valid now, and the
/// handshake proves that the server has the key.
#[derive(Debug)]
struct Pinned {
    inner: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Pinned {
    fn new(
        certificates: &[CertificateDer<'static>],
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| format!("cannot use any certificate authority: {error}"))?;
        Ok(Self { inner, certificates: certificates.to_vec() })
    }
}

/// Whether this says no more than that the certificate's place in the chain is wrong. Its validity is
/// checked before that.
fn is_about_its_place(error: &rustls::Error) -> bool {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => {
            other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
        }
        _ => false,
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let inner = &self.inner;
        let verified =
            inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(error) if is_about_its_place(&error) && self.certificates.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Accepts any certificate, as set in the kubeconfig.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
