//! An object that is written part by part.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use object_store::{GetOptions, GetResult, MultipartUpload, ObjectStoreExt};

use super::{Content, Store, StoreError, Trouble};
use crate::edge::blocking::blocking;
use crate::edge::clock::Clock;

/// Bytes that are written to a directory at a time.
const STEP: usize = 1 << 20;
/// An object of parts may take so long to be put together, and so many bytes a second are moved for it at least.
const PUT_TOGETHER: Duration = Duration::from_secs(30);
const SLOWEST: u64 = 16 << 20;
/// Between two looks whether it is.
const LOOK: Duration = Duration::from_secs(1);
/// Between two looks whether an upload is given up.
const MOMENT: Duration = Duration::from_millis(10);

/// A data object being written. Dropped before it is finished, nothing appears.
pub struct Upload {
    pub(super) store: Arc<Store>,
    pub(super) key: String,
    /// Bytes of the parts so far.
    pub(super) size: u64,
    /// `None` once finished.
    pub(super) upload: Option<Box<dyn MultipartUpload>>,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upload").field(&self.key).finish()
    }
}

impl Store {
    /// Starts writing a data object part by part.
    pub async fn begin(self: &Arc<Self>, key: &str) -> Result<Upload, StoreError> {
        let (at, data) = (self.key(key)?, Arc::clone(&self.data));
        let begun = match self.directory {
            None => data.put_multipart(&at).await,
            // The crate makes the file at once, on the thread that asks.
            Some(_) => {
                let begun = blocking(move || Ok(data.put_multipart(&at).now_or_never()));
                let begun = self.counted(0, begun).await.map_err(|error| self.io_error("write", key, &error))?;
                begun.ok_or_else(|| self.useless("write", key, "it was not begun"))?
            }
        };
        let upload = begun.map_err(|error| self.error("write", key, &error))?;
        Ok(Upload { store: Arc::clone(self), key: key.to_owned(), size: 0, upload: Some(upload) })
    }
}

impl Upload {
    /// The next part; parts come in the order of the calls, and several may be awaited at once.
    pub fn part(&mut self, content: Content) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        self.size += content.length();
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        let pieces = match content {
            Content::Blocks(blocks) if store.directory.is_some() => in_steps(blocks),
            content => vec![content],
        };
        let put = |piece: Content| {
            let (size, payload) = (piece.length(), store.payload(piece));
            let payload = payload.map_err(|error| store.io_error("write", &self.key, &error));
            self.upload.as_mut().map(|upload| payload.map(|payload| (size, upload.put_part(payload))))
        };
        let puts: Vec<_> = pieces.into_iter().filter_map(put).collect();
        async move {
            for put in puts {
                let (size, put) = put?;
                store.counted(size as usize, put).await.map_err(|error| store.error("write", &key, &error))?;
            }
            Ok(())
        }
    }

    /// The object appears, whole. Returns the store's tag for it.
    pub async fn finish(mut self, crc32c: u32) -> Result<Option<String>, StoreError> {
        let Some(upload) = &mut self.upload else { return Ok(None) };
        let (tag, found) = match self.store.counted(0, upload.complete()).await {
            Ok(result) => (result.e_tag, result.extensions),
            Err(error) => {
                let error = self.store.error("write", &self.key, &error);
                let there = self.await_it(&error).await.ok_or(error)?;
                (there.meta.e_tag, there.extensions)
            }
        };
        self.upload = None;
        self.store.compare(&self.key, &found, crc32c)?;
        Ok(tag)
    }

    /// What is there whole though the store says no: it was done and the answer was lost, after which servers know no such
    /// upload. So they say, too, while one that we did not wait for is still put together from its parts.
    async fn await_it(&self, error: &StoreError) -> Option<GetResult> {
        let limit = PUT_TOGETHER + Duration::from_secs(self.size / SLOWEST);
        let clock = Clock::start();
        loop {
            let found = self.find().await;
            let may_come = error.trouble == Trouble::Absent && self.store.directory.is_none() && clock.now() < limit;
            if found.is_some() || !may_come {
                return found;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

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

impl Store {
    /// Waits until nothing is left of the uploads that were dropped.
    pub async fn all_given_up(&self) {
        while Arc::strong_count(&self.given_up) > 1 {
            tokio::time::sleep(MOMENT).await;
        }
    }
}

/// In pieces that a slow file system takes one of in a few seconds: it is seen that it takes them.
fn in_steps(blocks: Vec<Bytes>) -> Vec<Content> {
    let mut pieces = Vec::new();
    for mut block in blocks {
        while !block.is_empty() {
            pieces.push(Content::Blocks(vec![block.split_to(STEP.min(block.len()))]));
        }
    }
    pieces
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Cut off by the clock: parts that stay are paid for and not listed.
        if let (Some(mut upload), Ok(runtime)) = (self.upload.take(), tokio::runtime::Handle::try_current()) {
            let under_way = Arc::clone(&self.store.given_up);
            runtime.spawn(async move {
                let _ = upload.abort().await;
                drop(under_way);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use object_store::{PutPayload, PutResult, UploadPart};

    use super::super::reading::tests::store_at;
    use super::*;

    /// One that the store says it does not know.
    #[derive(Debug)]
    struct Unknown;

    #[async_trait::async_trait]
    impl MultipartUpload for Unknown {
        fn put_part(&mut self, _: PutPayload) -> UploadPart {
            async { Ok(()) }.boxed()
        }

        async fn complete(&mut self) -> object_store::Result<PutResult> {
            let source = "answer 404 NoSuchUpload".into();
            Err(object_store::Error::NotFound { path: "object".to_owned(), source })
        }

        async fn abort(&mut self) -> object_store::Result<()> {
            Ok(())
        }
    }

    /// A bucket in which an object of this many bytes is there from the third question on.
    fn bucket(bytes: u64) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let at = format!("http://{}", listener.local_addr().expect("has an address"));
        std::thread::spawn(move || {
            for (asked, mut stream) in listener.incoming().flatten().enumerate() {
                let lines = BufReader::new(stream.try_clone().expect("a second one")).lines().map_while(Result::ok);
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let answer = if asked < 2 { "404 Not Found" } else { "200 OK" };
                let _ = write!(
                    stream,
                    "HTTP/1.1 {answer}\r\nContent-Length: {bytes}\r\nETag: \"whole\"\r\n\
                     Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n"
                );
            }
        });
        at
    }

    #[tokio::test]
    async fn what_a_store_is_still_putting_together_from_its_parts_is_waited_for() {
        let at = bucket(7);
        let store = store_at(&at).await;
        let upload = Some(Box::new(Unknown) as Box<dyn MultipartUpload>);
        let upload = Upload { store: Arc::new(store), key: "object".to_owned(), size: 7, upload };
        assert_eq!(upload.finish(0).await.expect("it is there").as_deref(), Some("\"whole\""));
    }
}
