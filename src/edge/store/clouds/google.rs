//! Cloud Storage. Credentials, the first found: `GOOGLE_BEARER_TOKEN`, a service account (its JSON in
//! `GOOGLE_SERVICE_ACCOUNT_KEY`, its file in `GOOGLE_SERVICE_ACCOUNT`), a service account's or a user's file in
//! `GOOGLE_APPLICATION_CREDENTIALS`, the file that `gcloud auth application-default login` writes, the metadata server
//! (`GCE_METADATA_HOST`).
//! <https://cloud.google.com/docs/authentication/application-default-credentials>
//!
//! `STORAGE_EMULATOR_HOST` is asked without credentials, as Google's own libraries do.

use std::sync::Arc;

use object_store::StaticCredentialProvider;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};

use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::{Opened, values};
use crate::edge::store::error::Failed;
use crate::edge::store::http::connect::{self, Connector};
use crate::rules::store::address::Bucket;
use crate::rules::text::quoted::shown;

const WAY_OUT: &str =
    "run as a service account (metadata server), or name its key file in GOOGLE_APPLICATION_CREDENTIALS";
const EMULATOR: &str = "STORAGE_EMULATOR_HOST";
const TOKEN: &str = "GOOGLE_BEARER_TOKEN";
const KEY: &str = "GOOGLE_SERVICE_ACCOUNT_KEY";
const FILES: [&str; 3] = ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS"];

pub(in crate::edge::store) async fn open(bucket: &Bucket, access: &Access) -> Result<Opened, Failed> {
    values::check(access, &["GCE_", "GOOGLE_", "CLOUDSDK_"])?;
    let emulator = access.given(EMULATOR);
    let emulator = emulator.map(|host| if host.contains("://") { host.to_owned() } else { format!("http://{host}") });
    if let Some(address) = &emulator {
        values::address(EMULATOR, address)?;
    }
    let is_unsigned = emulator.is_some() || access.is_on("GOOGLE_SKIP_SIGNATURE");
    let mut builder = GoogleCloudStorageBuilder::new();
    if is_unsigned {
        // The crate would still ask for a token before it writes.
        let anonymous = GcpCredential { bearer: String::new() };
        builder =
            builder.with_credentials(Arc::new(StaticCredentialProvider::new(anonymous))).with_skip_signature(true);
    } else {
        for (key, value) in values::settings(access, "GOOGLE_")? {
            builder = builder.with_config(key, value);
        }
    }
    let base = access.first(&["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "GOOGLE_BASE_URL"]);
    if let Some(base) = emulator.as_deref().or(base) {
        builder = builder.with_base_url(base.trim_end_matches('/'));
    }
    let file = || FILES.iter().find_map(|name| Some(format!("{name}={}", shown(access.given(name)?))));
    let account = access.given(KEY).map(|_| KEY.to_owned()).or_else(file);
    let way_out = account.map_or(WAY_OUT.to_owned(), |name| {
        format!("see that {name} is whole, with its private_key as Google wrote it")
    });
    let builder = builder
        .with_bucket_name(&bucket.name)
        .with_retry(connect::retries(access))
        .with_client_options(connect::options())
        .with_http_connector(Connector(access.clone()));
    let store = builder.build().map_err(|error| Failed::no_credentials(&error, &way_out))?;
    access.wait_for(store.credentials().get_credential(), &way_out).await?;
    Ok(Opened { client: Arc::new(store), renews: !is_unsigned && access.given(TOKEN).is_none() })
}
