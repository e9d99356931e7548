//! A store that is a bucket of a cloud, through `object_store`'s own interface.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path as Key;
use object_store::{
    Extensions, GetOptions, GetRange, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
};
use object_store::{PutOptions, PutPayload, PutResult};
use tokio::sync::Mutex;

use super::checksum::Checksum;
use super::error::{Failed, Trouble, silent};
use super::list::Object;
use super::ranged_read::Seen;
use crate::edge::clock::Clock;
use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::{Opened, amazon, azure, google};
use crate::rules::store::address::{self, Cloud};

/// An object of parts may take so long to be put together, and so many bytes a second are moved for it at least.
const PUT_TOGETHER: Duration = Duration::from_secs(30);
const SLOWEST: u64 = 16 << 20;
/// Between two looks whether it is.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Bucket {
    bucket: address::Bucket,
    access: Access,
    opened: RwLock<Arc<Opened>>,
    /// Held by the operation that opens it again.
    reopens: Mutex<()>,
    /// What stands before every key; ends in `/` unless empty.
    prefix: String,
}

async fn open(bucket: &address::Bucket, access: &Access) -> Result<Opened, Failed> {
    match bucket.cloud {
        Cloud::Google => google::open(bucket, access).await,
        Cloud::Amazon => amazon::open(bucket, access).await,
        Cloud::Azure => azure::open(bucket, access).await,
    }
}

impl Bucket {
    pub(super) async fn open(bucket: &address::Bucket, access: &Access) -> Result<Bucket, Failed> {
        let opened = RwLock::new(Arc::new(Box::pin(open(bucket, access)).await?));
        let prefix = if bucket.prefix.is_empty() { String::new() } else { format!("{}/", bucket.prefix) };
        Ok(Bucket { bucket: bucket.clone(), access: access.clone(), opened, reopens: Mutex::default(), prefix })
    }

    fn opened(&self) -> Arc<Opened> {
        Arc::clone(&self.opened.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does the operation. If the credentials may be stale, opens the bucket again and does it once more.
    async fn run<T, F>(&self, work: impl Fn(Arc<dyn ObjectStore>) -> F) -> Result<T, Failed>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let opened = self.opened();
        // Boxed: a thread's stack holds few futures of this size.
        let refused = match self.wait(Box::pin(work(Arc::clone(&opened.client)))).await? {
            Ok(done) => return Ok(done),
            Err(error) => Failed::from(&error),
        };
        // The answer to HEAD has no words that would tell stale credentials from others.
        let may_be_stale = matches!(refused.trouble, Trouble::NotBelieved | Trouble::Denied | Trouble::Other);
        if !opened.renews || !may_be_stale || refused.says_there_is {
            return Err(refused);
        }
        let again = self.reopen(&opened).await.map_err(|why| {
            let detail =
                format!("the credentials do not hold any more ({}), and no others are to be had", refused.detail);
            Failed::new(Trouble::Outdated, format!("{detail}: {}", why.detail))
        })?;
        self.step(Box::pin(work(Arc::clone(&again.client)))).await
    }

    /// Does what can be done once. Credentials that are not believed may be so later.
    pub(super) async fn step<T>(&self, work: impl Future<Output = object_store::Result<T>>) -> Result<T, Failed> {
        self.wait(work).await?.map_err(|error| {
            let failed = Failed::from(&error);
            match failed.trouble {
                Trouble::NotBelieved if self.opened().renews => Failed { trouble: Trouble::Outdated, ..failed },
                _ => failed,
            }
        })
    }

    /// Waits as long as bytes move.
    pub(super) async fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, Failed> {
        let limit = self.access.timeout;
        let done = self.access.meter().watch(limit, work).await;
        done.ok_or_else(|| Failed::new(Trouble::Unreachable, silent(limit)))
    }

    /// Opens it with the credentials that there are now, unless another operation has done so since.
    async fn reopen(&self, stale: &Arc<Opened>) -> Result<Arc<Opened>, Failed> {
        let _alone = self.reopens.lock().await;
        let now = self.opened();
        if !Arc::ptr_eq(&now, stale) {
            return Ok(now);
        }
        let fresh = Arc::new(Box::pin(open(&self.bucket, &self.access)).await?);
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&fresh);
        Ok(fresh)
    }

    fn key(&self, key: &str) -> Result<Key, Failed> {
        let invalid = |error: object_store::path::Error| Failed::new(Trouble::Other, error.to_string());
        Key::parse(format!("{}{key}", self.prefix)).map_err(invalid)
    }

    /// Puts an object, with its crc32c where the cloud checks it.
    pub(super) async fn put(
        &self,
        key: &str,
        blocks: Vec<Bytes>,
        mode: PutMode,
        crc32c: Option<u32>,
    ) -> Result<Option<String>, Failed> {
        let (at, payload) = (self.key(key)?, blocks.into_iter().collect::<PutPayload>());
        let crc32c = crc32c.filter(|_| self.bucket.cloud == Cloud::Google).map(Checksum);
        let put = self.run(|client| {
            let (at, payload) = (at.clone(), payload.clone());
            let mut options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            crc32c.map(|sum| options.extensions.insert(sum));
            async move { client.put_opts(&at, payload, options).await }
        });
        let PutResult { e_tag, extensions, .. } = put.await?;
        same_sum(&extensions, crc32c)?;
        Ok(e_tag)
    }

    pub(super) async fn begin(&self, key: &str) -> Result<Box<dyn MultipartUpload>, Failed> {
        let key = self.key(key)?;
        self.run(|client| {
            let key = key.clone();
            async move { client.put_multipart(&key).await }
        })
        .await
    }

    /// The object of so many bytes appears under its key.
    pub(super) async fn finish(
        &self,
        key: &str,
        size: u64,
        parts: &mut dyn MultipartUpload,
        crc32c: u32,
    ) -> Result<Option<String>, Failed> {
        let (e_tag, extensions) = match self.step(parts.complete()).await {
            Ok(PutResult { e_tag, extensions, .. }) => (e_tag, extensions),
            Err(failed) => self.await_whole(key, size, failed).await?,
        };
        same_sum(&extensions, Some(Checksum(crc32c)).filter(|_| self.bucket.cloud == Cloud::Google))?;
        Ok(e_tag)
    }

    /// The object, if it is complete although the store reports an error: the answer was lost, after which servers know no such
    /// upload. So they say, too, while an object is still put together from its parts.
    async fn await_whole(&self, key: &str, size: u64, failed: Failed) -> Result<(Option<String>, Extensions), Failed> {
        let (key, limit, clock) = (self.key(key)?, PUT_TOGETHER + Duration::from_secs(size / SLOWEST), Clock::start());
        loop {
            let head = self.run(|client| {
                let (key, head) = (key.clone(), GetOptions { head: true, ..GetOptions::default() });
                async move { client.get_opts(&key, head).await }
            });
            if let Some(there) = head.await.ok().filter(|there| there.meta.size == size) {
                return Ok((there.meta.e_tag, there.extensions));
            }
            if failed.trouble != Trouble::Absent || clock.now() >= limit {
                return Err(failed);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// An object, or its beginning.
    pub(super) async fn get(&self, key: &str, limit: u64) -> Result<Bytes, Failed> {
        let key = self.key(key)?;
        self.run(|client| {
            let key = key.clone();
            async move {
                let found = client.get(&key).await?;
                match found.meta.size.min(limit) {
                    0 => Ok(Bytes::new()),
                    length if length == found.meta.size => found.bytes().await,
                    length => client.get_range(&key, 0..length).await,
                }
            }
        })
        .await
    }

    pub(super) async fn stream(
        &self,
        key: &str,
        from: u64,
        until: u64,
    ) -> Result<(BoxStream<'static, object_store::Result<Bytes>>, Seen), Failed> {
        let key = self.key(key)?;
        let got = self.run(|client| {
            let key = key.clone();
            let options = GetOptions { range: Some(GetRange::Bounded(from..until)), ..GetOptions::default() };
            async move { client.get_opts(&key, options).await }
        });
        let got = got.await?;
        let crc32c = got.extensions.get::<Checksum>().map(|Checksum(sum)| *sum);
        let seen = Seen { size: got.meta.size, tag: got.meta.e_tag.clone(), crc32c };
        Ok((got.into_stream(), seen))
    }

    /// An object as a listing has it; `None`: there is no such object.
    pub(super) async fn look(&self, key: &str) -> Result<Option<Object>, Failed> {
        let key = self.key(key)?;
        let head = self.run(|client| {
            let key = key.clone();
            async move { client.head(&key).await }
        });
        match head.await {
            Err(failed) if failed.trouble == Trouble::Absent => Ok(None),
            there => there.map(|meta| Some(self.object(meta))),
        }
    }

    pub(super) async fn delete(&self, key: &str) -> Result<(), Failed> {
        let key = self.key(key)?;
        self.run(|client| {
            let key = key.clone();
            async move { client.delete(&key).await }
        })
        .await
    }

    /// Every object under a prefix that ends at a `/`, once.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Object>, Failed> {
        let under = format!("{}{prefix}", self.prefix);
        let key = self.key(prefix)?;
        let listed = self.run(|client| {
            let key = Some(key.clone()).filter(|_| !under.is_empty());
            async move { client.list(key.as_ref()).try_collect::<Vec<ObjectMeta>>().await }
        });
        Ok(listed.await?.into_iter().map(|meta| self.object(meta)).collect())
    }

    fn object(&self, meta: ObjectMeta) -> Object {
        let key = meta.location.to_string();
        Object {
            key: key.strip_prefix(&self.prefix).map(str::to_owned).unwrap_or(key),
            size: meta.size,
            modified: Duration::from_millis(meta.last_modified.timestamp_millis().try_into().unwrap_or(0)),
            tag: meta.e_tag,
        }
    }
}

/// Errors: the store says that it holds other bytes than were sent.
fn same_sum(answer: &Extensions, sent: Option<Checksum>) -> Result<(), Failed> {
    match (answer.get::<Checksum>(), sent) {
        (Some(Checksum(theirs)), Some(Checksum(ours))) if *theirs != ours => {
            let detail = format!("the store holds crc32c {theirs:08x}, sent was {ours:08x}: damaged on the way");
            Err(Failed::new(Trouble::Other, detail))
        }
        _ => Ok(()),
    }
}
