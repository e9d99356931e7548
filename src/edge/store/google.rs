//! Cloud Storage. Credentials, the first that is there: `GOOGLE_APPLICATION_CREDENTIALS` (a service account's or an
//! authorised user's file), the file that `gcloud auth application-default login` writes, the metadata server
//! (`GCE_METADATA_HOST`). <https://cloud.google.com/docs/authentication/application-default-credentials>
//!
//! `STORAGE_EMULATOR_HOST` is asked without credentials, as Google's own libraries do;
//! `CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE` (gcloud's) is another address of the real thing.

use std::sync::Arc;

use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::{ObjectStore, StaticCredentialProvider};

use super::access::Access;
use super::connect::{self, Connector};
use super::error::{Failed, Trouble};
use super::tls::Roots;
use super::values;
use crate::rules::checkpoint::address::Bucket;

const WAY_OUT: &str =
    "run as a service account (metadata server), or name its key file in GOOGLE_APPLICATION_CREDENTIALS";

const EMULATOR: &str = "STORAGE_EMULATOR_HOST";
const OVERRIDE: &str = "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE";

pub(super) async fn open(bucket: &Bucket, access: &Access) -> Result<Arc<dyn ObjectStore>, Failed> {
    let emulator = access
        .given(EMULATOR)
        .map(|host| if host.contains("://") { host.to_owned() } else { format!("http://{host}") });
    let emulated = emulator.as_deref().map(|host| (EMULATOR, host));
    let base = emulated.or_else(|| Some((OVERRIDE, access.given(OVERRIDE)?)));
    let url = base.map(|(name, base)| values::address(name, base)).transpose()?;
    for name in ["GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"] {
        if let Some(host) = access.given(name) {
            values::address(name, &format!("http://{host}"))?;
        }
    }
    let roots = Roots { file: access.given("SSL_CERT_FILE").map(str::to_owned), bundle: None };
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&bucket.name)
        .with_retry(connect::retries())
        .with_client_options(connect::options(connect::is_plain(url.as_ref(), access)?))
        .with_http_connector(Connector { roots, access: access.clone() });
    if let Some((_, base)) = base {
        builder = builder.with_base_url(base.trim_end_matches('/'));
    }
    if emulator.is_some() {
        let nobody = GcpCredential { bearer: String::new() };
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(nobody)));
    } else if let Some(path) = access.given("GOOGLE_APPLICATION_CREDENTIALS") {
        known_type(path)?;
        builder = builder.with_application_credentials(path);
    }
    let store = builder.build().map_err(|error| Failed::no_credentials(&error, WAY_OUT))?;
    store.credentials().get_credential().await.map_err(|error| Failed::no_credentials(&error, WAY_OUT))?;
    Ok(Arc::new(store))
}

/// Says in words what the crate would call a decoding error.
fn known_type(path: &str) -> Result<(), Failed> {
    let named = |detail: String| Failed {
        trouble: Trouble::NoCredentials,
        detail: format!("GOOGLE_APPLICATION_CREDENTIALS={path} {detail}; {WAY_OUT}"),
    };
    let text = std::fs::read(path).map_err(|error| named(format!("cannot be read: {error}")))?;
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|_| named("is no JSON".to_owned()))?;
    for field in ["token_uri", "gcs_base_url"] {
        if let Some(uri) = value[field].as_str() {
            values::address(&format!("{field} in GOOGLE_APPLICATION_CREDENTIALS={path}"), uri)?;
        }
    }
    match value["type"].as_str() {
        Some("service_account" | "authorized_user") => Ok(()),
        kind => Err(named(format!("is of the type {:?}, which trainit cannot use", kind.unwrap_or("unknown")))),
    }
}
