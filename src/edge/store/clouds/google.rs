//! Cloud Storage. Credentials, the first that is there: `GOOGLE_BEARER_TOKEN`, a service account (its JSON in
//! `GOOGLE_SERVICE_ACCOUNT_KEY`, its file in `GOOGLE_SERVICE_ACCOUNT` or `GOOGLE_SERVICE_ACCOUNT_PATH`),
//! `GOOGLE_APPLICATION_CREDENTIALS` (a service account's or an authorised user's file), the file that `gcloud auth
//! application-default login` writes, the metadata server (`GCE_METADATA_HOST`).
//! <https://cloud.google.com/docs/authentication/application-default-credentials>
//!
//! `STORAGE_EMULATOR_HOST` is asked without credentials, as Google's own libraries do, and so is every server with
//! `GOOGLE_SKIP_SIGNATURE` or `"disable_oauth": true` in a service account's JSON;
//! `CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE` (gcloud's), `GOOGLE_BASE_URL` and `gcs_base_url` in that JSON are another
//! address of the real thing.

use std::sync::Arc;

use object_store::StaticCredentialProvider;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use serde_json::Value;

use crate::edge::store::bucket::Opened;
use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::values;
use crate::edge::store::error::Failed;
use crate::edge::store::http::connect::{self, Connector};
use crate::rules::store::address::Bucket;

const WAY_OUT: &str =
    "run as a service account (metadata server), or name its key file in GOOGLE_APPLICATION_CREDENTIALS";

const EMULATOR: &str = "STORAGE_EMULATOR_HOST";
const BASES: [&str; 2] = ["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "GOOGLE_BASE_URL"];
const TOKEN: &str = "GOOGLE_BEARER_TOKEN";
const KEY: &str = "GOOGLE_SERVICE_ACCOUNT_KEY";
const FILES: [&str; 3] = ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS"];
/// What `gcloud auth application-default login` writes, below the home directory.
const LOGIN: &str = ".config/gcloud/application_default_credentials.json";
const MACHINES: [&str; 3] = ["GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"];

pub(in crate::edge::store) async fn open(bucket: &Bucket, access: &Access) -> Result<Opened, Failed> {
    let emulator = access
        .given(EMULATOR)
        .map(|host| if host.contains("://") { host.to_owned() } else { format!("http://{host}") });
    let account = if emulator.is_some() { None } else { Account::read(access)? };
    let given = BASES.iter().find_map(|name| Some(((*name).to_owned(), access.given(name)?.to_owned())));
    let base = emulator.clone().map(|host| (EMULATOR.to_owned(), host)).or(given);
    let base = base.or_else(|| account.as_ref().and_then(|account| account.address("gcs_base_url")));
    let mut machines = Vec::new();
    for (name, host) in MACHINES.into_iter().filter_map(|name| Some((name, access.given(name)?))) {
        let host = host.trim_start_matches("http://").trim_end_matches('/');
        values::address(name, &format!("http://{host}"))?;
        machines.extend(host.parse());
    }
    let is_unsigned = access.is_on("GOOGLE_SKIP_SIGNATURE");
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&bucket.name)
        .with_retry(connect::retries(access))
        .with_client_options(connect::options())
        .with_http_connector(Connector::new(access, None, machines))
        .with_skip_signature(is_unsigned);
    if let Some((name, base)) = base {
        values::address(&name, &base)?;
        builder = builder.with_base_url(base.trim_end_matches('/'));
    }
    let (mut renews, mut way_out) = (true, WAY_OUT.to_owned());
    if emulator.is_some() || is_unsigned || account.as_ref().is_some_and(Account::needs_nobody) {
        renews = false;
        // The crate would still ask for a token before it writes.
        let nobody = GcpCredential { bearer: String::new() };
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(nobody)));
    } else if let Some(token) = access.given(TOKEN) {
        renews = false;
        values::text(TOKEN, token)?;
        builder = builder.with_bearer_token(token);
    } else if let Some(account) = account {
        way_out = format!("see that {} is whole, with its private_key as Google wrote it", account.name);
        builder = match account.user_file {
            Some(path) => builder.with_application_credentials(path),
            None => builder.with_service_account_key(account.json.to_string()),
        };
    } else if let Some(name) = MACHINES.into_iter().find(|name| access.is_blank(name)) {
        // The crate would panic at it.
        return Err(values::unusable(name, "it is empty", "name a host, or take it away"));
    }
    let no_credentials = |error: object_store::Error| Failed::no_credentials(&error, &way_out);
    let store = builder.build().map_err(no_credentials)?;
    store.credentials().get_credential().await.map_err(no_credentials)?;
    Ok(Opened { client: Arc::new(store), renews })
}

/// A service account or an authorised user that the environment names.
struct Account {
    /// What named it.
    name: String,
    json: Value,
    /// Of a user: the crate reads those from a file only.
    user_file: Option<String>,
}

impl Account {
    /// The first that is named. Errors, in words where the crate would call it a decoding error: it cannot be used.
    fn read(access: &Access) -> Result<Option<Account>, Failed> {
        let file = || FILES.iter().find_map(|name| Some((*name, access.given(name)?)));
        let (name, text, path) = match (access.given(KEY), file()) {
            (Some(text), _) => (KEY.to_owned(), text.to_owned(), ""),
            (None, Some((name, path))) => {
                let name = format!("{name}={path}");
                let text = values::file(path).map_err(|error| unusable(&name, &format!("cannot be read: {error}")))?;
                (name, text, path)
            }
            (None, None) => {
                // The crate reads the file of a user's login itself.
                let login = access.given("HOME").map(|home| format!("{home}/{LOGIN}"));
                return login.map_or(Ok(()), |path| values::is_ours("the login", &path)).map(|()| None);
            }
        };
        let json: Value = serde_json::from_str(&text).map_err(|_| unusable(&name, "is no JSON"))?;
        let kind = json["type"].as_str().unwrap_or("unknown").to_owned();
        let mut account = Account { name, json, user_file: None };
        if let Some((name, uri)) = account.address("token_uri") {
            values::address(&name, &uri)?;
        }
        match kind.as_str() {
            "service_account" => {}
            "unknown" if account.json["private_key"].is_string() || account.needs_nobody() => {}
            "authorized_user" if account.name.starts_with(FILES[2]) => account.user_file = Some(path.to_owned()),
            kind => {
                return Err(unusable(&account.name, &format!("is of the type {kind:?}, which trainit cannot use")));
            }
        }
        Ok(Some(account))
    }

    /// An address in it, and what to call it.
    fn address(&self, field: &str) -> Option<(String, String)> {
        Some((format!("{field} in {}", self.name), self.json[field].as_str()?.to_owned()))
    }

    /// Whether it turns authentication off, as for an emulator.
    fn needs_nobody(&self) -> bool {
        self.json["disable_oauth"] == true
    }
}

fn unusable(name: &str, why: &str) -> Failed {
    Failed::of_credentials(format!("{name} {why}; {WAY_OUT}"))
}
