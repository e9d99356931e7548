//! What lies in a store. Servers may tell a page twice; nobody who counts commits or deletes some may see one twice.

use std::io;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path as Key;

use super::{Store, StoreError, Trouble};

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
        let mut list = self.data.list(Some(&key).filter(|_| !under.is_empty())).map_ok(|meta| {
            let key = meta.location.to_string();
            Object {
                key: key.strip_prefix(&self.prefix).map(str::to_owned).unwrap_or(key),
                size: meta.size,
                modified: Duration::from_millis(meta.last_modified.timestamp_millis().try_into().unwrap_or(0)),
            }
        });
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
    fn what_a_server_tells_twice_is_there_once() {
        let object = |key: &str| Object { key: key.to_owned(), size: 1, modified: Duration::ZERO };
        let mut objects = ["b", "a", "b", "b", "a"].map(object).to_vec();
        once(&mut objects);
        assert_eq!(objects, ["a", "b"].map(object));
    }
}
