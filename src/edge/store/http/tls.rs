//! The root certificates for TLS: those that are built in, so that an image without CA files works, and those of the image
//! (`SSL_CERT_FILE`, `SSL_CERT_DIR`).

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};

/// Where else roots are read from, when the first connection wants them.
#[derive(Debug, Clone, Default)]
pub(in crate::edge::store) struct Roots {
    /// `SSL_CERT_FILE`: one that is named must be there.
    pub(in crate::edge::store) file: Option<String>,
    /// `AWS_CA_BUNDLE`, the same for S3 alone.
    pub(in crate::edge::store) bundle: Option<String>,
}

impl Roots {
    /// The settings of every TLS connection. Errors: a file of roots that was named and cannot be used.
    pub(in crate::edge::store) fn config(&self) -> Result<ClientConfig, String> {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let bundle = self.bundle.as_deref().map(|file| load_certs_from_paths(Some(Path::new(file)), None));
        let files = [("SSL_CERT_FILE", &self.file, Some(load_native_certs())), ("AWS_CA_BUNDLE", &self.bundle, bundle)];
        for (name, file, found) in files.into_iter().filter_map(|(name, file, found)| Some((name, file, found?))) {
            if let (Some(file), true, Some(error)) = (file, found.certs.is_empty(), found.errors.first()) {
                return Err(format!("{name}={file} cannot be used: {error}"));
            }
            roots.add_parsable_certificates(found.certs);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| format!("no TLS: {error}"))?;
        let verifier = Verifier::of(roots).map_err(|error| format!("no TLS: {error}"))?;
        Ok(config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
    }
}

/// Also accepts a root that a server presents as its own certificate, as `openssl req -x509` makes it. The user named its
/// file and so trusts this server. The other tools of the field accept it, webpki does not.
#[derive(Debug)]
struct Verifier {
    roots: Arc<RootCertStore>,
    usual: Arc<WebPkiServerVerifier>,
}

impl Verifier {
    fn of(roots: RootCertStore) -> Result<Verifier, String> {
        let (roots, provider) = (Arc::new(roots), Arc::new(rustls::crypto::ring::default_provider()));
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), provider).build();
        Ok(Verifier { roots, usual: usual.map_err(|error| error.to_string())? })
    }

    /// By its name and key, as one is found that signed another.
    fn is_root(&self, certificate: &CertificateDer) -> bool {
        let mut alone = RootCertStore::empty();
        alone.add(certificate.clone().into_owned()).is_ok() && self.roots.roots.contains(&alone.roots[0])
    }
}

/// Whether all that webpki has against it is that a CA shows it as its own; its dates are looked at before that. Only its
/// debug form tells it from others.
pub(in crate::edge::store) fn is_of_a_ca(why: &CertificateError) -> bool {
    format!("{why:?}").contains("CaUsedAsEndEntity")
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.usual.verify_server_cert(certificate, others, name, ocsp, now) {
            Err(Error::InvalidCertificate(why)) if is_of_a_ca(&why) && self.is_root(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            done => done,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
