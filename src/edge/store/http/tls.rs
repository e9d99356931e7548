//! The root certificates for TLS: those that are built in, so that an image without CA files works, those of the image
//! (`SSL_CERT_FILE`, `SSL_CERT_DIR`), and those of AWS's tools (`AWS_CA_BUNDLE`).

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};

use crate::edge::store::clouds::access::Access;

/// The settings of every TLS connection. Errors: a named file of roots cannot be used.
pub(in crate::edge::store) fn config(access: &Access) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let bundle = access.given("AWS_CA_BUNDLE").map(|file| load_certs_from_paths(Some(Path::new(file)), None));
    for (name, found) in [("SSL_CERT_FILE", load_native_certs()), ("AWS_CA_BUNDLE", bundle.unwrap_or_default())] {
        if let (Some(file), true, Some(error)) = (access.given(name), found.certs.is_empty(), found.errors.first()) {
            return Err(format!("{name}={file} cannot be used: {error}"));
        }
        roots.add_parsable_certificates(found.certs);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| format!("no TLS: {error}"))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
