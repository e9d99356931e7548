//! Whom to trust on the other side of TLS: the roots that are built in, so that an image without CA files works, and those
//! of the image beside them; `SSL_CERT_FILE` and `SSL_CERT_DIR` say where those lie.

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

/// Where else roots are read from, when the first connection wants them.
#[derive(Debug, Clone, Default)]
pub(super) struct Roots {
    /// `SSL_CERT_FILE`: one that is named must be there.
    pub(super) file: Option<String>,
    /// `AWS_CA_BUNDLE`, the same for S3 alone.
    pub(super) bundle: Option<String>,
}

impl Roots {
    /// The settings of every TLS connection. Errors: a file of roots that was named and cannot be used.
    pub(super) fn config(&self) -> Result<ClientConfig, String> {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let found = rustls_native_certs::load_native_certs();
        if let (Some(file), true, Some(error)) = (&self.file, found.certs.is_empty(), found.errors.first()) {
            return Err(format!("SSL_CERT_FILE={file} cannot be used: {error}"));
        }
        roots.add_parsable_certificates(found.certs);
        if let Some(file) = &self.bundle {
            let found = rustls_native_certs::load_certs_from_paths(Some(Path::new(file)), None);
            if let (true, Some(error)) = (found.certs.is_empty(), found.errors.first()) {
                return Err(format!("AWS_CA_BUNDLE={file} cannot be used: {error}"));
            }
            roots.add_parsable_certificates(found.certs);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| format!("no TLS: {error}"))?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }
}
