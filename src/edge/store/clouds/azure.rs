//! Blob Storage. The account: the URL's, else `AZURE_STORAGE_ACCOUNT` or `AZURE_STORAGE_ACCOUNT_NAME`. Credentials, the
//! first that is there: an account key, a workload identity's token file, a client secret, a SAS
//! token, the managed identity (`IDENTITY_ENDPOINT`, else the instance metadata).
//! <https://learn.microsoft.com/azure/storage/blobs/authorize-data-operations-cli>

use std::sync::Arc;

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use url::Url;

use crate::edge::store::bucket::Opened;
use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::values;
use crate::edge::store::error::Failed;
use crate::edge::store::http::connect::{self, Connector};
use crate::rules::store::address::Bucket;

const WAY_OUT: &str =
    "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or give the machine an identity that may use the account";

/// Against half a key.
const COPIED_WHOLE: &str = "copy the storage account's key or the SAS token whole, a key with the = at its end";

/// Variables of Azure's tools and SDKs, and what the crate calls them.
const VARIABLES: &[(&str, AzureConfigKey)] = &[
    ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
    ("AZURE_STORAGE_ACCOUNT_NAME", AzureConfigKey::AccountName),
    ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
    ("AZURE_STORAGE_ACCESS_KEY", AzureConfigKey::AccessKey),
    ("AZURE_STORAGE_ACCOUNT_KEY", AzureConfigKey::AccessKey),
    ("AZURE_STORAGE_SAS_TOKEN", AzureConfigKey::SasKey),
    ("AZURE_STORAGE_SAS_KEY", AzureConfigKey::SasKey),
    ("AZURE_STORAGE_TOKEN", AzureConfigKey::Token),
    ("AZURE_ENDPOINT", AzureConfigKey::Endpoint),
    ("AZURE_STORAGE_ENDPOINT", AzureConfigKey::Endpoint),
    ("AZURE_STORAGE_USE_EMULATOR", AzureConfigKey::UseEmulator),
    ("AZURE_CLIENT_ID", AzureConfigKey::ClientId),
    ("AZURE_CLIENT_SECRET", AzureConfigKey::ClientSecret),
    ("AZURE_TENANT_ID", AzureConfigKey::AuthorityId),
    ("AZURE_AUTHORITY_HOST", AzureConfigKey::AuthorityHost),
    ("AZURE_FEDERATED_TOKEN_FILE", AzureConfigKey::FederatedTokenFile),
    ("AZURE_MSI_ENDPOINT", AzureConfigKey::MsiEndpoint),
    ("IDENTITY_ENDPOINT", AzureConfigKey::MsiEndpoint),
];

/// Where the crate finds the emulator.
const EMULATOR: &str = "AZURITE_BLOB_STORAGE_URL";
/// Not read. In its place the machine's identity must not be used.
const CONNECTION: &str = "AZURE_STORAGE_CONNECTION_STRING";
const ADDRESSES: &[&str] = &[
    "AZURE_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_AUTHORITY_HOST",
    "AZURE_MSI_ENDPOINT",
    "IDENTITY_ENDPOINT",
    EMULATOR,
];

/// Fixed credentials. With one of them no token is requested.
const FIXED: [AzureConfigKey; 3] = [AzureConfigKey::AccessKey, AzureConfigKey::SasKey, AzureConfigKey::Token];

pub(in crate::edge::store) async fn open(bucket: &Bucket, access: &Access) -> Result<Opened, Failed> {
    let given = VARIABLES.iter().filter_map(|(name, key)| Some((*key, access.given(name)?)));
    let pairs: Vec<(AzureConfigKey, &str)> = given.collect();
    check(access, &pairs)?;
    let has = |wanted: &[AzureConfigKey]| pairs.iter().any(|(key, _)| wanted.contains(key));
    let is_emulated = access.is_on("AZURE_STORAGE_USE_EMULATOR");
    let (is_named, renews) = (has(&[AzureConfigKey::AccountName]), !is_emulated && !has(&FIXED));
    if access.given(CONNECTION).is_some() && renews {
        let way_out =
            "set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, or unset it if the machine's identity is to sign";
        return Err(values::unusable(CONNECTION, "trainit does not read it", way_out));
    }
    let endpoint = pairs.iter().rev().find(|(key, _)| *key == AzureConfigKey::Endpoint);
    let told = endpoint.and_then(|(_, url)| account_of(url)).filter(|_| !is_named && !is_emulated);
    let account = bucket.account.clone().or(told);
    if !is_named && account.is_none() && !is_emulated {
        return Err(Failed::of_credentials("no storage account is named; set AZURE_STORAGE_ACCOUNT, or write abfss://container@account.dfs.core.windows.net/prefix".to_owned()));
    }
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name(&bucket.name)
        .with_retry(connect::retries(access))
        .with_client_options(connect::options())
        .with_http_connector(Connector::new(access, None, Vec::new()));
    for (key, value) in pairs {
        builder = builder.with_config(key, value);
    }
    if let Some(account) = account {
        builder = builder.with_account(account);
    }
    let store = builder.build().map_err(|error| Failed::no_credentials(&error, COPIED_WHOLE))?;
    store.credentials().get_credential().await.map_err(|error| Failed::no_credentials(&error, WAY_OUT))?;
    Ok(Opened { client: Arc::new(store), renews })
}

/// Errors: a value that the crate would panic at.
fn check(access: &Access, pairs: &[(AzureConfigKey, &str)]) -> Result<(), Failed> {
    let names: Vec<&str> = VARIABLES.iter().map(|(name, _)| *name).chain(["IDENTITY_HEADER"]).collect();
    values::each(access, &names, values::text)?;
    values::each(access, ADDRESSES, values::address)?;
    values::each(access, &["AZURE_FEDERATED_TOKEN_FILE"], values::is_ours)?;
    pairs.iter().try_for_each(|(key, value)| match key {
        AzureConfigKey::AccountName => values::label("the storage account's name", value),
        AzureConfigKey::AuthorityId => values::label("AZURE_TENANT_ID", value),
        AzureConfigKey::Endpoint => values::address("the Blob endpoint", value),
        _ => Ok(()),
    })
}

/// The account's name where it stands in the address: `https://ACCOUNT.blob.core.windows.net`.
fn account_of(endpoint: &str) -> Option<String> {
    let url = Url::parse(endpoint).ok()?;
    url.host_str()?.split_once(".blob.").map(|(account, _)| account.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_is_read_from_the_address() {
        assert_eq!(account_of("https://acct.blob.core.windows.net/").as_deref(), Some("acct"));
        assert_eq!(account_of("http://127.0.0.1:10000/acct"), None);
    }
}
