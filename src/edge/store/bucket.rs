//! A store that is a bucket of a cloud, through `object_store`.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{
    Extensions, GetOptions, GetRange, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
};
use object_store::{PutOptions, PutPayload, PutResult};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::checksum::Checksum;
use super::error::{Failed, Trouble, silent};
use super::list::Object;
use super::ranged_read::ObjectInfo;
use crate::edge::clock::Clock;
use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::{Opened, amazon, azure, google};
use crate::rules::store::address::{self, Cloud};

/// Time limit for a store to assemble the parts of an object, plus the time for its bytes.
const ASSEMBLY: Duration = Duration::from_secs(30);
const ASSEMBLED_BYTES_PER_SECOND: u64 = 16 << 20;
const ASSEMBLY_POLL: Duration = Duration::from_secs(1);
/// A longer listing counts as endless, and so does one that repeats more objects or takes longer. A server may send a page twice.
const MOST_OBJECTS: usize = 1_000_000;
const MOST_REPEATS: usize = 5_000;
const LONGEST_LISTING: Duration = Duration::from_secs(600);

pub(super) struct Bucket {
    bucket: address::Bucket,
    access: Access,
    opened: RwLock<Arc<Opened>>,
    /// Held while an operation opens the bucket again.
    reopens: Mutex<()>,
    /// The start of every key; ends in `/` unless empty.
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

    /// Runs the operation. If the credentials may be stale, opens the bucket again and retries once.
    async fn run<T, F>(&self, work: impl Fn(Arc<dyn ObjectStore>) -> F) -> Result<T, Failed>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let opened = self.opened();
        // Boxed because the future is large.
        let refused = match self.wait(Box::pin(work(Arc::clone(&opened.client)))).await? {
            Ok(done) => return Ok(done),
            Err(error) => Failed::from(&error),
        };
        // A refused HEAD has no body that names stale credentials.
        let may_be_stale = matches!(refused.trouble, Trouble::InvalidCredentials | Trouble::Denied | Trouble::Other);
        if !opened.renews || !may_be_stale || refused.says_exists {
            return Err(refused);
        }
        let again = self.reopen(&opened).await.map_err(|why| {
            let detail =
                format!("the credentials are no longer valid ({}), and no others are available", refused.detail);
            Failed::new(Trouble::StaleCredentials, format!("{detail}: {}", why.detail))
        })?;
        self.step(Box::pin(work(Arc::clone(&again.client)))).await
    }

    /// [`Bucket::run`] for the object under a key.
    async fn run_on<T, F>(&self, key: &str, work: impl Fn(Arc<dyn ObjectStore>, Key) -> F) -> Result<T, Failed>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let key = self.key(key)?;
        self.run(|client| work(client, key.clone())).await
    }

    /// Runs an operation that cannot be retried. Refused credentials count as stale if they can be renewed.
    pub(super) async fn step<T>(&self, work: impl Future<Output = object_store::Result<T>>) -> Result<T, Failed> {
        self.wait(work).await?.map_err(|error| {
            let failed = Failed::from(&error);
            match failed.trouble {
                Trouble::InvalidCredentials if self.opened().renews => {
                    Failed { trouble: Trouble::StaleCredentials, ..failed }
                }
                _ => failed,
            }
        })
    }

    /// Waits for the work while bytes move.
    pub(super) async fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, Failed> {
        let limit = self.access.timeout;
        let done = self.access.meter().watch(limit, work).await;
        done.ok_or_else(|| Failed::new(Trouble::Unreachable, silent(limit)))
    }

    /// Opens the bucket with the current credentials, unless another operation has done so.
    async fn reopen(&self, stale: &Arc<Opened>) -> Result<Arc<Opened>, Failed> {
        let _guard = self.reopens.lock().await;
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
        self.run_on(key, |client, key| async move { client.put_multipart(&key).await }).await
    }

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

    /// Looks for the complete object after an error. Servers report an unknown upload when the response to the first request was
    /// lost, and while they still assemble the parts.
    async fn await_whole(&self, key: &str, size: u64, failed: Failed) -> Result<(Option<String>, Extensions), Failed> {
        let limit = ASSEMBLY + Duration::from_secs(size / ASSEMBLED_BYTES_PER_SECOND);
        let (key, clock) = (self.key(key)?, Clock::start());
        loop {
            let head = self.run(|client| {
                let (key, head) = (key.clone(), GetOptions { head: true, ..GetOptions::default() });
                async move { client.get_opts(&key, head).await }
            });
            if let Some(found) = head.await.ok().filter(|found| found.meta.size == size) {
                return Ok((found.meta.e_tag, found.extensions));
            }
            if failed.trouble != Trouble::Absent || clock.now() >= limit {
                return Err(failed);
            }
            tokio::time::sleep(ASSEMBLY_POLL).await;
        }
    }

    pub(super) async fn get(&self, key: &str, limit: u64) -> Result<Bytes, Failed> {
        self.run_on(key, |client, key| async move {
            let found = client.get(&key).await?;
            match found.meta.size.min(limit) {
                0 => Ok(Bytes::new()),
                length if length == found.meta.size => found.bytes().await,
                length => client.get_range(&key, 0..length).await,
            }
        })
        .await
    }

    pub(super) async fn stream(
        &self,
        key: &str,
        from: u64,
        until: u64,
    ) -> Result<(BoxStream<'static, object_store::Result<Bytes>>, ObjectInfo), Failed> {
        let got = self.run_on(key, |client, key| {
            let options = GetOptions { range: Some(GetRange::Bounded(from..until)), ..GetOptions::default() };
            async move { client.get_opts(&key, options).await }
        });
        let got = got.await?;
        let crc32c = got.extensions.get::<Checksum>().map(|Checksum(sum)| *sum);
        let info = ObjectInfo { size: got.meta.size, tag: got.meta.e_tag.clone(), crc32c };
        Ok((got.into_stream(), info))
    }

    pub(super) async fn look(&self, key: &str) -> Result<Option<Object>, Failed> {
        match self.run_on(key, |client, key| async move { client.head(&key).await }).await {
            Err(failed) if failed.trouble == Trouble::Absent => Ok(None),
            found => found.map(|meta| Some(self.object(meta))),
        }
    }

    pub(super) async fn delete(&self, key: &str) -> Result<(), Failed> {
        self.run_on(key, |client, key| async move { client.delete(&key).await }).await
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Object>, Failed> {
        let under = format!("{}{prefix}", self.prefix);
        let key = self.key(prefix)?;
        let listed = self.run(|client| {
            let key = Some(key.clone()).filter(|_| !under.is_empty());
            // A server may also send pages without objects for ever.
            async move { timeout(LONGEST_LISTING, all(client.list(key.as_ref()))).await.unwrap_or(Ok(None)) }
        });
        let listed = listed.await?.ok_or_else(|| {
            Failed::new(
                Trouble::Other,
                "the listing has no end: it repeats itself, or is longer than any store's".to_owned(),
            )
        });
        Ok(listed?.into_iter().map(|meta| self.object(meta)).collect())
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

/// Every object of a listing; `None`: it has no end.
async fn all(
    mut listing: impl Stream<Item = object_store::Result<ObjectMeta>> + Unpin,
) -> object_store::Result<Option<Vec<ObjectMeta>>> {
    let (mut objects, mut seen, mut repeats) = (Vec::new(), HashSet::new(), 0);
    while let Some(object) = listing.try_next().await? {
        let mut key = DefaultHasher::new();
        object.location.as_ref().hash(&mut key);
        repeats += usize::from(!seen.insert(key.finish()));
        objects.push(object);
        if repeats > MOST_REPEATS || objects.len() > MOST_OBJECTS {
            return Ok(None);
        }
    }
    Ok(Some(objects))
}

/// Errors: the store reports another checksum than that of the bytes sent.
fn same_sum(answer: &Extensions, sent: Option<Checksum>) -> Result<(), Failed> {
    match (answer.get::<Checksum>(), sent) {
        (Some(Checksum(stored)), Some(Checksum(sent))) if *stored != sent => {
            let detail = format!("the store holds crc32c {stored:08x}, sent was {sent:08x}: damaged on the way");
            Err(Failed::new(Trouble::Other, detail))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    #[tokio::test]
    async fn a_listing_of_ever_new_keys_has_no_end() {
        let object = |number: u64| ObjectMeta {
            location: Key::from(number.to_string()),
            last_modified: Default::default(),
            size: 1,
            e_tag: None,
            version: None,
        };
        let numbers = |count: u64| stream::iter((0..count).map(move |number| Ok(object(number))));
        assert_eq!(all(numbers(10)).await.expect("lists").map(|objects| objects.len()), Some(10));
        assert_eq!(all(numbers(u64::MAX)).await.expect("ends").map(|objects| objects.len()), None);
    }
}
