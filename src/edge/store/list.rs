//! What lies in a store. Servers may tell a page twice; nobody who counts commits or deletes some may see one twice.

use std::io;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore};

use super::{Store, StoreError, Trouble};

/// Objects that servers tell at once.
pub const PAGE: usize = 1000;
/// Pages that are asked for at once.
const AT_ONCE: usize = 8;
/// So many objects that are all known already are the sign of a listing without an end.
const REPEATS: usize = 20_000;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Relative to the prefix.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// Time of the last change, since 1970 by the store's clock.
    pub modified: Duration,
}

impl Store {
    /// Every object under a prefix that ends at a `/`, once, by key. Failing part-way is a failure.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Object>, StoreError> {
        let under = format!("{}{prefix}", self.prefix);
        let key = Key::parse(&under).map_err(|error| self.io_error("list", prefix, &io::Error::other(error)))?;
        if let Some(directory) = &self.directory {
            let listed = directory.list(key.as_ref()).await;
            let mut objects = listed.map_err(|error| self.io_error("list", prefix, &error))?;
            once(&mut objects);
            return Ok(objects);
        }
        let list = self.data.list(Some(&key).filter(|_| !under.is_empty()));
        let mut list = list.map_ok(|meta| self.object(meta));
        let (mut objects, mut known) = (Vec::new(), 0);
        while let Some(object) = list.try_next().await.map_err(|error| self.error("list", prefix, &error))? {
            objects.push(object);
            if objects.len() < 2 * known + REPEATS {
                continue;
            }
            once(&mut objects);
            if objects.len() == known {
                let detail = "it tells the same objects again and again, without an end".to_owned();
                return Err(StoreError::new("list", self.place(prefix), detail, Trouble::Other));
            }
            known = objects.len();
        }
        once(&mut objects);
        Ok(objects)
    }

    /// The same, where these keys are thought to be there, in order; not all that lies beside them, and where a server tells
    /// no more of what comes next, not all of them. A server tells one page after the other: several are asked for at once,
    /// each by what its keys have in common.
    pub async fn list_along(&self, prefix: &str, keys: &[&str]) -> Result<Vec<Object>, StoreError> {
        let Some(pages) = self.pages.as_ref().filter(|_| keys.len() > PAGE) else { return self.list(prefix).await };
        let runs = keys.chunks(PAGE).enumerate().map(|(number, run)| {
            let after = (number * PAGE).checked_sub(1).map(|at| keys[at]);
            self.list_run(&**pages, prefix, after, run)
        });
        let mut objects: Vec<Object> = stream::iter(runs).buffer_unordered(AT_ONCE).try_concat().await?;
        once(&mut objects);
        Ok(objects)
    }

    async fn list_run(
        &self,
        pages: &dyn PaginatedListStore,
        prefix: &str,
        after: Option<&str>,
        run: &[&str],
    ) -> Result<Vec<Object>, StoreError> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(Vec::new()) };
        let under = format!("{}{}", self.prefix, in_common(first, last));
        let mut objects: Vec<Object> = Vec::new();
        let offset = after.map(|after| format!("{}{after}", self.prefix));
        let mut options = PaginatedListOptions { offset, ..Default::default() };
        loop {
            let page = pages.list_paginated(Some(&under), options.clone()).await;
            let page = page.map_err(|error| self.error("list", prefix, &error))?;
            let known = objects.iter().map(|o| o.key.as_str()).max().unwrap_or("").to_owned();
            objects.extend(page.result.objects.into_iter().map(|meta| self.object(meta)));
            let newest = objects.iter().map(|o| o.key.as_str()).max().unwrap_or("");
            if page.page_token.is_none() || newest >= *last || newest <= known.as_str() {
                return Ok(objects);
            }
            options.page_token = page.page_token;
        }
    }

    fn object(&self, meta: ObjectMeta) -> Object {
        let key = meta.location.to_string();
        Object {
            key: key.strip_prefix(&self.prefix).map(str::to_owned).unwrap_or(key),
            size: meta.size,
            modified: Duration::from_millis(meta.last_modified.timestamp_millis().try_into().unwrap_or(0)),
        }
    }
}

/// What both begin with.
fn in_common<'a>(one: &'a str, other: &str) -> &'a str {
    let differ = one.char_indices().zip(other.chars()).find(|((_, a), b)| a != b);
    &one[..differ.map_or(one.len().min(other.len()), |((at, _), _)| at)]
}

/// Each key once.
fn once(objects: &mut Vec<Object>) {
    objects.sort_by(|a, b| a.key.cmp(&b.key));
    objects.dedup_by(|a, b| a.key == b.key);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_keys_have_in_common_ends_where_a_character_does() {
        for (one, other, expected) in
            [("", "a", ""), ("a/b1", "a/b2", "a/b"), ("a", "a/b", "a"), ("\u{e4}", "\u{e5}", "")]
        {
            assert_eq!((in_common(one, other), in_common(other, one)), (expected, expected));
        }
    }

    #[test]
    fn what_a_server_tells_twice_is_there_once() {
        let object = |key: &str| Object { key: key.to_owned(), size: 1, modified: Duration::ZERO };
        let mut objects = ["b", "a", "b", "b", "a"].map(object).to_vec();
        once(&mut objects);
        assert_eq!(objects, ["a", "b"].map(object));
    }
}
