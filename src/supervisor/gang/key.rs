//! The key that all agents of a job share. It is never logged.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::SharedStore;
use super::thread::{News, Order, Outbox};
use crate::edge::net::gang::random;
use crate::edge::store::StoreError;
use crate::rules::gang::handshake::GangKey;

/// Where it lies in a store.
const OBJECT: &str = ".trainit/gang/key";
const BYTES: usize = 32;
/// Between two tries at a store that does not answer.
const PAUSE: Duration = Duration::from_secs(2);

/// Where the key comes from.
#[derive(Debug)]
pub enum KeySource {
    /// A token, or what the cluster says of itself.
    Known(GangKey),
    /// The job's store: the first agent puts it there.
    InStore,
}

impl KeySource {
    /// The key, however long the store takes. `None`: it is not wanted any more.
    pub(super) async fn find(
        &self,
        store: Option<&SharedStore>,
        outbox: &Outbox,
        orders: &UnboundedReceiver<Order>,
    ) -> Option<GangKey> {
        if let KeySource::Known(key) = self {
            return Some(key.clone());
        }
        let store = store?;
        let address = &store.address;
        let mut is_told = false;
        while !orders.is_closed() {
            match of_store(store).await.map(|kept| GangKey::derive("store", &kept)) {
                Ok(key) => return Some(key),
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(
                            code = "gang",
                            "the gang's key cannot be read from {address}: {error}; it is tried again; nothing starts before, \
                             see that the store is well, or give all replicas the same TRAINIT_GANG_TOKEN"
                        );
                    }
                    outbox.tell(News::Trouble(format!("the gang's key cannot be read from {address}: {error}")));
                }
            }
            sleep(PAUSE).await;
        }
        None
    }
}

/// The bytes that the store keeps; the first agent puts them there.
async fn of_store(shared: &SharedStore) -> Result<[u8; BYTES], StoreError> {
    let store = shared.open().await?;
    let fresh: [u8; BYTES] = random().map_err(|error| store.useless("make", OBJECT, &error.to_string()))?;
    store.create(OBJECT, fresh.to_vec()).await?;
    let kept = store.get(OBJECT, BYTES as u64).await?;
    <[u8; BYTES]>::try_from(&kept[..])
        .map_err(|_| store.useless("read", OBJECT, "it is no key of 32 bytes; delete it, and start all replicas again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::store::Access;
    use crate::edge::transfer::blocking;
    use crate::rules::store::address::Address;

    #[test]
    fn all_agents_find_the_key_that_the_first_has_put_and_a_spoilt_one_is_refused() {
        let place = tempfile::tempdir().expect("a directory");
        let address = Address::Directory(place.path().join("store"));
        let shared = SharedStore { address, access: Access::default() };
        blocking::runtime(true).expect("a runtime").block_on(async {
            let first = of_store(&shared).await.expect("a key");
            assert_eq!(of_store(&shared).await.ok(), Some(first));
            assert_ne!(first, [0; BYTES]);
            std::fs::write(place.path().join("store").join(OBJECT), "short").expect("written");
            assert!(of_store(&shared).await.is_err_and(|error| error.to_string().contains("no key of 32 bytes")));
        });
    }
}
