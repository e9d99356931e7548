//! The leader's own address, from the borrowed port or the store. It needs no protection, because the process at that address
//! must prove the common key.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};

use super::{STORE_PAUSE, SharedStore};
use crate::edge::net::gang::{HANDSHAKE_TIMEOUT, NoLink, dial};
use crate::edge::store::StoreError;
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::message::{Referral, ToMember};

const OBJECT: &str = ".trainit/gang/leader.json";
/// The longest referral that is read, in bytes.
const LIMIT: u64 = 1024;

/// Requests the referral at the borrowed port. This side closes first.
pub(super) async fn ask(host: &str, port: u16, key: &GangKey, silence: Duration) -> Result<Referral, NoLink> {
    let mut link = dial(host, port, true, key, silence).await?;
    match timeout(HANDSHAKE_TIMEOUT, link.reader.next()).await {
        Ok(Ok(ToMember::Refer(own))) => Ok(own),
        Ok(Ok(_)) => Err(NoLink::NotAgent("it does not send its own address".to_owned())),
        Ok(Err(_)) | Err(_) => Err(NoLink::Unreachable("it has closed its borrowed port".to_owned())),
    }
}

/// Reads the referral from the store.
pub(super) async fn read(shared: &SharedStore) -> Result<Referral, NoLink> {
    let read = async { shared.open().await?.get(OBJECT, LIMIT).await };
    let bytes = read.await.map_err(|error: StoreError| NoLink::Unreachable(error.to_string()))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| NoLink::Unreachable(format!("{OBJECT} in the store is no address: {error}")))
}

/// Writes the referral to the store, in place of an earlier leader's; retried until the store answers.
pub(super) async fn write(shared: SharedStore, own: Referral) {
    let body = Bytes::from(serde_json::to_vec(&own).unwrap_or_default());
    let mut is_logged = false;
    loop {
        let written = async {
            let store = shared.open().await?.replacing();
            store.put(OBJECT, vec![body.clone()], crc32c::crc32c(&body)).await
        };
        match written.await {
            Ok(_) => return,
            Err(error) if !std::mem::replace(&mut is_logged, true) => tracing::warn!(
                code = "gang",
                "{OBJECT} cannot be written: {error}; it is tried again; until then replicas that come late find the gang's \
                 leader only at the rendezvous port, while no trainer runs"
            ),
            Err(_) => {}
        }
        sleep(STORE_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use super::*;
    use crate::edge::store::Access;
    use crate::edge::transfer::blocking;
    use crate::rules::store::address::Address;

    #[test]
    fn the_store_has_the_address_of_the_newest_leader() {
        let place = tempfile::tempdir().expect("a directory");
        let address = Address::Directory(place.path().join("store"));
        let shared = SharedStore { address, access: Access::default() };
        blocking::runtime(true).expect("a runtime").block_on(async {
            assert!(matches!(read(&shared).await, Err(NoLink::Unreachable(_))));
            for port in [1, 2] {
                let own = Referral { ip: Ipv6Addr::LOCALHOST.into(), port };
                write(shared.clone(), own).await;
                assert_eq!(read(&shared).await, Ok(own));
            }
            std::fs::write(place.path().join("store").join(OBJECT), "{\"ip\":\"a name\",\"port\":1}").expect("written");
            assert!(matches!(read(&shared).await, Err(NoLink::Unreachable(why)) if why.contains("no address")));
        });
    }
}
