//! An object that is written part by part.

use std::fmt;

use bytes::Bytes;
use object_store::{GetOptions, GetResult, MultipartUpload};

use super::{Store, StoreError};

/// A data object being written. Dropped before it is finished, nothing appears.
pub struct Upload<'a> {
    pub(super) store: &'a Store,
    pub(super) key: String,
    /// Bytes of the parts so far.
    pub(super) size: u64,
    /// `None` once finished.
    pub(super) upload: Option<Box<dyn MultipartUpload>>,
}

impl fmt::Debug for Upload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upload").field(&self.key).finish()
    }
}

impl<'a> Upload<'a> {
    /// The next part; parts come in the order of the calls, and several may be awaited at once.
    pub fn part(&mut self, blocks: Vec<Bytes>) -> impl Future<Output = Result<(), StoreError>> + use<'a> {
        self.size += blocks.iter().map(|block| block.len() as u64).sum::<u64>();
        let (store, key) = (self.store, self.key.clone());
        let put = self.upload.as_mut().map(|upload| upload.put_part(blocks.into_iter().collect()));
        async move {
            match put {
                Some(put) => put.await.map_err(|error| store.error("write", &key, &error)),
                None => Ok(()),
            }
        }
    }

    /// The object appears, whole. Returns the store's tag for it.
    pub async fn finish(mut self, crc32c: u32) -> Result<Option<String>, StoreError> {
        let Some(upload) = &mut self.upload else { return Ok(None) };
        let (tag, found) = match upload.complete().await {
            Ok(result) => (result.e_tag, result.extensions),
            Err(error) => {
                let there = self.find().await.ok_or_else(|| self.store.error("write", &self.key, &error))?;
                (there.meta.e_tag, there.extensions)
            }
        };
        self.upload = None;
        self.store.compare(&self.key, &found, crc32c)?;
        Ok(tag)
    }

    /// What is there whole though the store says no: it was done and the answer was lost, after which servers know no such
    /// upload.
    async fn find(&self) -> Option<GetResult> {
        let is_bucket = self.store.directory.is_none();
        let key = self.store.key(&self.key).ok().filter(|_| is_bucket)?;
        let head = GetOptions { head: true, ..GetOptions::default() };
        let there = self.store.data.get_opts(&key, head).await.ok()?;
        (there.meta.size == self.size).then_some(there)
    }

    /// Nothing appears.
    pub async fn abort(mut self) {
        if let Some(mut upload) = self.upload.take() {
            let _ = upload.abort().await;
        }
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        // Cut off by the clock: parts that stay are paid for and not listed.
        if let (Some(mut upload), Ok(runtime)) = (self.upload.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { upload.abort().await });
        }
    }
}
