//! An object that is written part by part.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::multipart::PartId;

use super::bucket::Parts;
use super::staged::Staged;
use super::{Backend, Store, StoreError};

/// Between two looks whether the uploads that were dropped are given up.
const MOMENT: Duration = Duration::from_millis(10);

/// A data object being written. Dropped before it is finished, nothing appears.
pub struct Upload {
    store: Arc<Store>,
    key: String,
    /// Bytes of the parts so far, and their number.
    size: u64,
    count: usize,
    /// `None` once finished.
    to: Option<Place>,
}

#[derive(Clone)]
enum Place {
    File(Arc<Staged>),
    Parts(Parts),
}

/// A part that was written.
#[derive(Debug)]
pub struct Part {
    number: usize,
    /// `None` for a directory's.
    id: Option<PartId>,
}

impl Store {
    /// Starts writing a data object part by part.
    pub async fn begin(self: &Arc<Self>, key: &str) -> Result<Upload, StoreError> {
        let to = match &self.backend {
            Backend::Directory(directory) => directory.begin(key).await.map(Place::File),
            Backend::Bucket(bucket) => bucket.begin(key).await.map(Place::Parts),
        };
        let to = to.map_err(|failed| self.error("write", key, failed))?;
        Ok(Upload { store: Arc::clone(self), key: key.to_owned(), size: 0, count: 0, to: Some(to) })
    }

    /// Waits until nothing is left of the uploads that were dropped.
    pub async fn all_given_up(&self) {
        while Arc::strong_count(&self.given_up) > 1 {
            tokio::time::sleep(MOMENT).await;
        }
    }
}

impl Upload {
    /// The next part; parts come in the order of the calls, and several may be awaited at once.
    pub fn part(&mut self, blocks: Vec<Bytes>) -> impl Future<Output = Result<Part, StoreError>> + Send + use<> {
        let (from, number) = (self.size, self.count);
        self.size += blocks.iter().map(|block| block.len() as u64).sum::<u64>();
        self.count += 1;
        let (store, key, to) = (Arc::clone(&self.store), self.key.clone(), self.to.clone());
        async move {
            let id = match (&store.backend, &to) {
                (Backend::Directory(directory), Some(Place::File(staged))) => {
                    directory.part(staged, from, blocks).await.map(|()| None)
                }
                (Backend::Bucket(bucket), Some(Place::Parts(parts))) => {
                    bucket.part(parts, number, blocks).await.map(Some)
                }
                _ => return Err(store.useless("write", &key, "it was finished before")),
            };
            Ok(Part { number, id: id.map_err(|failed| store.error("write", &key, failed))? })
        }
    }

    /// The object appears, whole, from all its parts. Returns the store's tag for it.
    pub async fn finish(mut self, mut parts: Vec<Part>, crc32c: u32) -> Result<Option<String>, StoreError> {
        parts.sort_by_key(|part| part.number);
        let store = Arc::clone(&self.store);
        let to = if parts.len() == self.count { self.to.take() } else { None };
        let finished = match (&store.backend, to) {
            (Backend::Directory(directory), Some(Place::File(staged))) => {
                directory.finish(staged, store.placing()).await.map(|()| None)
            }
            (Backend::Bucket(bucket), Some(Place::Parts(mut to))) => {
                to.size = self.size;
                self.to = Some(Place::Parts(to.clone()));
                let ids = parts.into_iter().filter_map(|part| part.id).collect();
                let finished = bucket.finish(&to, ids, crc32c).await;
                self.to.take_if(|_| finished.is_ok());
                finished
            }
            _ => return Err(store.useless("write", &self.key, "a part of it is not through")),
        };
        finished.map_err(|failed| store.error("write", &self.key, failed))
    }

    /// Nothing appears.
    pub async fn abort(mut self) {
        if let Some(to) = self.to.take() {
            give_up(&self.store, to).await;
        }
    }
}

async fn give_up(store: &Store, to: Place) {
    match (&store.backend, to) {
        (Backend::Directory(directory), Place::File(staged)) => directory.abort(staged).await,
        (Backend::Bucket(bucket), Place::Parts(parts)) => bucket.abort(&parts).await,
        _ => {}
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Cut off by the clock: parts that stay are paid for and not listed.
        if let (Some(to), Ok(runtime)) = (self.to.take(), tokio::runtime::Handle::try_current()) {
            let (store, under_way) = (Arc::clone(&self.store), Arc::clone(&self.store.given_up));
            runtime.spawn(async move {
                give_up(&store, to).await;
                drop(under_way);
            });
        }
    }
}
