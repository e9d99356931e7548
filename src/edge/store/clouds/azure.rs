//! Blob Storage. The account: the URL's, else `AZURE_STORAGE_ACCOUNT` or `AZURE_STORAGE_ACCOUNT_NAME`. Credentials, the
//! first found: an account key, a workload identity's token file, a client secret, a SAS token, the managed
//! identity (`IDENTITY_ENDPOINT`, else the instance metadata).
//! <https://learn.microsoft.com/azure/storage/blobs/authorize-data-operations-cli>

use std::sync::Arc;

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::{Opened, values};
use crate::edge::store::error::Failed;
use crate::edge::store::http::connect::{self, Connector};
use crate::rules::store::address::Bucket;

const WAY_OUT: &str =
    "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or give the machine an identity that may use the account";
/// For a truncated key.
const COPIED_WHOLE: &str = "copy the storage account's key or the SAS token whole, a key with the = at its end";
/// Not read. The machine's identity must not replace it.
const CONNECTION: &str = "AZURE_STORAGE_CONNECTION_STRING";
const WAY_OUT_OF_CONNECTION: &str =
    "set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, or unset it if the machine's identity is to sign";
/// Variables of Azure's own tools that the crate does not know.
const TOOLS: [(&str, AzureConfigKey); 3] = [
    ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
    ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
    ("IDENTITY_ENDPOINT", AzureConfigKey::MsiEndpoint),
];
/// Fixed credentials. With one of them no token is requested.
const FIXED: [AzureConfigKey; 3] = [AzureConfigKey::AccessKey, AzureConfigKey::SasKey, AzureConfigKey::Token];
/// The crate would start `az`, and only the supervisor starts processes.
const PROGRAM: [AzureConfigKey; 2] = [AzureConfigKey::UseAzureCli, AzureConfigKey::CredentialType];

pub(in crate::edge::store) async fn open(bucket: &Bucket, access: &Access) -> Result<Opened, Failed> {
    values::check(access, &["AZURE_", "AZURITE_", "IDENTITY_"])?;
    let tools = TOOLS.iter().filter_map(|(name, key)| Some((*key, access.given(name)?)));
    let known = values::settings(access, "AZURE_")?.into_iter().filter(|(key, _)| !PROGRAM.contains(key));
    let settings: Vec<(AzureConfigKey, &str)> = tools.chain(known).collect();
    let has = |wanted: &[AzureConfigKey]| settings.iter().any(|(key, _)| wanted.contains(key));
    let is_emulated = access.is_on("AZURE_STORAGE_USE_EMULATOR");
    let renews = !is_emulated && !has(&FIXED);
    if access.given(CONNECTION).is_some() && renews {
        return Err(values::unusable(CONNECTION, "trainit does not read it", WAY_OUT_OF_CONNECTION));
    }
    if bucket.account.is_none() && !has(&[AzureConfigKey::AccountName]) && !is_emulated {
        return Err(Failed::of_credentials("no storage account is named; set AZURE_STORAGE_ACCOUNT, or write abfss://container@account.dfs.core.windows.net/prefix".to_owned()));
    }
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in settings {
        builder = builder.with_config(key, value);
    }
    if let Some(account) = &bucket.account {
        builder = builder.with_account(account);
    }
    let builder = builder
        .with_container_name(&bucket.name)
        .with_retry(connect::retries(access))
        .with_client_options(connect::options())
        .with_http_connector(Connector(access.clone()));
    let store = builder.build().map_err(|error| Failed::no_credentials(&error, COPIED_WHOLE))?;
    access.wait_for(store.credentials().get_credential(), WAY_OUT).await?;
    Ok(Opened { client: Arc::new(store), renews })
}
