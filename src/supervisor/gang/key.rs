//! The key that all agents of a job share. It is never logged.

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::thread::{News, NewsSender, Order};
use super::{STORE_PAUSE, SharedStore};
use crate::edge::net::gang::random;
use crate::edge::store::StoreError;
use crate::rules::gang::handshake::GangKey;

const OBJECT: &str = ".trainit/gang/key";
const BYTES: usize = 32;

/// The source of the key.
#[derive(Debug)]
pub enum KeySource {
    /// A token, or the description of the cluster.
    Known(GangKey),
    /// The job's store, in which the first agent creates it.
    InStore,
}

impl KeySource {
    /// The key; retried until the store answers. `None`: the agent exits.
    pub(super) async fn find(
        &self,
        store: Option<&SharedStore>,
        news: &NewsSender,
        orders: &UnboundedReceiver<Order>,
    ) -> Option<GangKey> {
        if let KeySource::Known(key) = self {
            return Some(key.clone());
        }
        let store = store?;
        let address = &store.address;
        let mut is_logged = false;
        while !orders.is_closed() {
            match of_store(store).await.map(|kept| GangKey::derive("store", &kept)) {
                Ok(key) => return Some(key),
                Err(error) => {
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::warn!(
                            code = "gang",
                            "the gang's key cannot be read from {address}: {error}; it is tried again; nothing starts before, \
                             see that the store is well, or give all replicas the same TRAINIT_GANG_TOKEN"
                        );
                    }
                    news.send(News::Unreachable(format!("the gang's key cannot be read from {address}: {error}")));
                }
            }
            sleep(STORE_PAUSE).await;
        }
        None
    }
}

/// The bytes in the store, which the first agent creates.
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
    fn all_agents_read_the_key_of_the_first_and_refuse_a_damaged_one() {
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
