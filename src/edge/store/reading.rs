//! An object that is read from one byte to another.

use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use object_store::{GetOptions, GetRange};

use super::habits::BLOCK;
use super::{Store, StoreError, Trouble};

/// Where fewer bytes come at once and more than these are to follow, they are let [`GATHER`]: many small reads cost both
/// sides more than they bring.
const FULL: u64 = 64 << 10;
const GATHER: Duration = Duration::from_millis(2);

/// Bytes of an object on their way in.
pub struct Reading<'a> {
    store: &'a Store,
    key: String,
    at: u64,
    end: u64,
    /// From where it was asked for last.
    asked: u64,
    /// Whether the last bytes were fewer than [`FULL`].
    came_short: bool,
    /// `None` for a directory, which is asked block by block.
    stream: Option<BoxStream<'static, object_store::Result<Bytes>>>,
}

impl fmt::Debug for Reading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reading").field(&self.key).finish()
    }
}

impl<'a> Reading<'a> {
    pub(super) fn new(store: &'a Store, key: &str, run: Range<u64>) -> Reading<'a> {
        let (at, end) = (run.start, run.end);
        Reading { store, key: key.to_owned(), at, end, asked: at, came_short: false, stream: None }
    }

    /// Asks a bucket for what has not come yet.
    pub(super) async fn ask(&mut self) -> Result<(), StoreError> {
        let (store, key) = (self.store, &self.key);
        let options = GetOptions { range: Some(GetRange::Bounded(self.at..self.end)), ..GetOptions::default() };
        let got = store.data.get_opts(&store.key(key)?, options).await;
        self.stream = Some(got.map_err(|error| store.error("read", key, &error))?.into_stream());
        self.asked = self.at;
        Ok(())
    }

    /// The next bytes; `None` when all have come. Fewer than were asked for is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.at >= self.end {
            return Ok(None);
        }
        let (store, key) = (self.store, &self.key);
        let bytes = match (&mut self.stream, &store.directory) {
            (Some(stream), _) => {
                if self.came_short && self.end - self.at > FULL {
                    tokio::time::sleep(GATHER).await;
                }
                match stream.next().await.transpose().map_err(|error| store.error("read", key, &error)) {
                    // The crate asks for the rest in the first minute only; on a slow line all of it takes longer.
                    Err(error) if error.trouble == Trouble::Unreachable && self.at > self.asked => {
                        self.ask().await?;
                        return Box::pin(self.next()).await;
                    }
                    next => next?.unwrap_or_default(),
                }
            }
            (None, Some(directory)) => {
                let read = directory.read(store.key(key)?.as_ref(), self.at, BLOCK.min(self.end - self.at)).await;
                read.map_err(|error| store.io_error("read", key, &error))?.into()
            }
            (None, None) => Bytes::new(),
        };
        self.at += bytes.len() as u64;
        self.came_short = (bytes.len() as u64) < FULL;
        if bytes.is_empty() || self.at > self.end {
            return Err(self.store.io_error("read", &self.key, &io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        Ok(Some(bytes))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use futures_util::stream::iter;
    use object_store::client::HttpErrorKind;

    use super::super::Access;
    use super::super::connect::error;
    use super::*;
    use crate::rules::checkpoint::address::Address;
    use crate::rules::env::Env;

    /// A bucket with one object, of which it sends what it is asked for.
    fn bucket(object: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let at = format!("http://{}", listener.local_addr().expect("has an address"));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let lines = BufReader::new(stream.try_clone().expect("a second one")).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let range = head.iter().find_map(|line| line.strip_prefix("range: bytes=")?.split_once('-'));
                let (from, to) = range.expect("a part of it is asked for");
                let (from, to): (usize, usize) = (from.parse().expect("a number"), to.parse().expect("a number"));
                let (part, all) = (&object[from..=to], object.len());
                let _ = write!(
                    stream,
                    "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{to}/{all}\r\nContent-Length: {}\r\n\
                     ETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n",
                    part.len()
                );
                let _ = stream.write_all(part);
            }
        });
        at
    }

    pub(in super::super) async fn store_at(endpoint: &str) -> Store {
        let pairs = [
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMIEXAMPLEKEY"),
            ("AWS_REGION", "us-east-1"),
        ];
        let address = Address::parse("s3://bucket/job").expect("is one");
        Store::open(&address, true, &Access::new(Env::from_pairs(pairs), false)).await.expect("opens")
    }

    #[tokio::test]
    async fn what_breaks_off_is_read_on_from_where_it_was_and_what_brings_nothing_is_given_up() {
        let at = bucket(b"0123456789");
        let store = store_at(&at).await;
        let broken = || {
            let source = Box::new(error(HttpErrorKind::Interrupted, "the answer broke off".to_owned()));
            Err(object_store::Error::Generic { store: "S3", source })
        };
        let mut reading = Reading::new(&store, "object", 2..8);
        reading.stream = Some(iter([Ok(Bytes::from_static(b"234")), broken()]).boxed());
        let mut read = Vec::new();
        while let Some(bytes) = reading.next().await.expect("reads") {
            read.extend(bytes);
        }
        assert_eq!(read, b"234567");
        let mut reading = Reading::new(&store, "object", 2..8);
        reading.stream = Some(iter([broken()]).boxed());
        assert_eq!(reading.next().await.expect_err("nothing came").trouble, Trouble::Unreachable);
    }
}
