//! Writes an object in parts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use object_store::MultipartUpload;

use super::bucket::Bucket;
use super::directory::Directory;
use super::error::Failed;
use super::staged::Staged;
use super::{Backend, Store, StoreError};

/// Between two checks of [`Store::wait_for_aborts`].
const POLL: Duration = Duration::from_millis(10);

/// A data object that is being written. It appears only when [`Upload::finish`] succeeds.
pub struct Upload {
    store: Arc<Store>,
    key: String,
    size: u64,
    /// `None` once finished.
    to: Option<Place>,
}

enum Place {
    File(Arc<Directory>, Arc<Staged>),
    Parts(Arc<Bucket>, Box<dyn MultipartUpload>),
}

impl Store {
    /// Starts writing a data object part by part.
    pub async fn begin(self: &Arc<Self>, key: &str) -> Result<Upload, StoreError> {
        let to = match &self.backend {
            Backend::Directory(directory) => {
                directory.begin(key).await.map(|staged| Place::File(Arc::clone(directory), staged))
            }
            Backend::Bucket(bucket) => bucket.begin(key).await.map(|parts| Place::Parts(Arc::clone(bucket), parts)),
        };
        let to = to.map_err(|failed| self.error("write", key, failed))?;
        Ok(Upload { store: Arc::clone(self), key: key.to_owned(), size: 0, to: Some(to) })
    }

    /// Waits until every dropped upload has removed what it wrote.
    pub async fn wait_for_aborts(&self) {
        while Arc::strong_count(&self.aborts) > 1 {
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Upload {
    /// Writes the next part. Parts are in the order of the calls; several may be awaited at once.
    pub fn part(&mut self, blocks: Vec<Bytes>) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let from = self.size;
        self.size += blocks.iter().map(|block| block.len() as u64).sum::<u64>();
        let written: BoxFuture<'static, Result<(), Failed>> = match &mut self.to {
            Some(Place::File(directory, staged)) => {
                let (directory, staged) = (Arc::clone(directory), Arc::clone(staged));
                Box::pin(async move { directory.part(staged, from, blocks).await })
            }
            Some(Place::Parts(bucket, parts)) => {
                let (bucket, part) = (Arc::clone(bucket), parts.put_part(blocks.into_iter().collect()));
                Box::pin(async move { bucket.step(part).await })
            }
            None => Box::pin(async { Ok(()) }),
        };
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        async move { written.await.map_err(|failed| store.error("write", &key, failed)) }
    }

    /// Completes the object. All its parts must be written. Returns the store's tag for it.
    pub async fn finish(mut self, crc32c: u32) -> Result<Option<String>, StoreError> {
        let finished = match &mut self.to {
            Some(Place::File(directory, staged)) => {
                directory.finish(Arc::clone(staged), self.store.placing()).await.map(|()| None)
            }
            Some(Place::Parts(bucket, parts)) => bucket.finish(&self.key, self.size, parts.as_mut(), crc32c).await,
            None => Ok(None),
        };
        self.to.take_if(|_| finished.is_ok());
        finished.map_err(|failed| self.store.error("write", &self.key, failed))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Parts that stay in a bucket cost money and are not listed.
        if let (Some(to), Ok(runtime)) = (self.to.take(), tokio::runtime::Handle::try_current()) {
            let aborting = Arc::clone(&self.store.aborts);
            runtime.spawn(async move {
                match to {
                    Place::File(directory, staged) => directory.abort(staged).await,
                    Place::Parts(bucket, mut parts) => drop(bucket.step(parts.abort()).await),
                }
                drop(aborting);
            });
        }
    }
}
