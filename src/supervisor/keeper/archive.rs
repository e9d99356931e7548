//! Many small files on their way out together, in one object.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::known::Sent;
use super::look::Local;
use super::mirror::blocking;
use super::pins::Pins;
use super::send::{Sending, Stop, unread};
use super::sums::Sums;
use crate::edge::beneath::{forget, read_into};
use crate::rules::checkpoint::Kind;
use crate::rules::checkpoint::archive::{END, Load, Member, loads};
use crate::rules::checkpoint::names::Stamp;

/// What goes out as one object, and under which key.
pub(super) struct Outgoing<'a> {
    load: Load<'a>,
    key: String,
}

impl Outgoing<'_> {
    /// The size of the file that is to be put. An archive is always put in one go, out of memory.
    pub(super) fn put_size(&self) -> u64 {
        match &self.load {
            Load::Alone(entry) => entry.size,
            Load::Together(_) => 0,
        }
    }
}

impl Local {
    /// How its files go out; `gathers`: whether many small ones may go together.
    pub(super) fn loads(&self, stamp: &Stamp, gathers: bool) -> Vec<Outgoing<'_>> {
        let files = self.entries.iter().filter(|entry| entry.kind == Kind::File);
        let (name, mut archives) = (self.archives(), 0);
        let outgoing = |load| {
            let key = match &load {
                Load::Alone(entry) => self.key(stamp, &entry.path),
                Load::Together(_) => {
                    archives += 1;
                    self.key(stamp, &format!("{}/{name}-{archives:05}.tar", self.candidate.unit))
                }
            };
            Outgoing { load, key }
        };
        loads(files, gathers).into_iter().map(outgoing).collect()
    }

    /// What the names of its archives begin with, and that of none of its files.
    fn archives(&self) -> String {
        let unit = format!("{}/", self.candidate.unit);
        let names = self.entries.iter().map(|entry| entry.path.strip_prefix(&unit).unwrap_or(&entry.path));
        let mut name = "small-files".to_owned();
        while names.clone().any(|other| other.starts_with(&name)) {
            name.push('_');
        }
        name
    }
}

/// What was read: the archive, and each file's sums.
struct Gathered {
    bytes: Bytes,
    sums: Vec<Sums>,
}

impl Sending<'_> {
    /// Copies what goes out as one object.
    pub(super) async fn send_load(&self, outgoing: Outgoing<'_>, pins: &Pins) -> Result<Vec<Sent>, Stop> {
        match outgoing.load {
            Load::Alone(entry) => Ok(vec![self.send(entry, pins.held(entry), outgoing.key).await?]),
            Load::Together(members) => self.send_together(&members, pins, outgoing.key).await,
        }
    }

    /// Copies files into one object under this key, but for those of which the bytes lie in the store already.
    async fn send_together(&self, members: &[Member<'_>], pins: &Pins, key: String) -> Result<Vec<Sent>, Stop> {
        let size = members.iter().map(|member| member.entry.size).sum();
        // All of it goes over the line, and of tiny files little else.
        self.take_turn(members.iter().map(Member::length).sum()).await;
        let _held = self.pieces.hold_archive().await;
        let Gathered { bytes, sums } = self.gather(members, pins).await?;
        let (mut from, mut at) = (0, 0);
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut sent = Vec::with_capacity(members.len());
        for (member, sums) in members.iter().zip(sums) {
            let (entry, length) = (member.entry, member.length());
            let strong = sums.strong();
            let mut item = self.item_of(entry, key.clone(), sums);
            if !self.find(entry, &mut item, strong.as_ref()) {
                item.offset = Some(at + member.own().start);
                at += length;
                let run = from..from + length as usize;
                match runs.last_mut().filter(|last| last.end == run.start) {
                    Some(last) => last.end = run.end,
                    None => runs.push(run),
                }
            }
            from += length as usize;
            sent.push(Sent { entry: entry.clone(), item, strong });
        }
        if !runs.is_empty() {
            let mut blocks: Vec<Bytes> = runs.into_iter().map(|run| bytes.slice(run)).collect();
            blocks.push(Bytes::from_static(&END));
            let crc32c = blocks.iter().fold(0, |crc, block| crc32c::crc32c_append(crc, block));
            self.made.begin(&key);
            let put = self.put(&key, blocks.into(), crc32c).await;
            let etag = self.made.end(&key, put)?;
            let ours = sent.iter_mut().map(|sent| &mut sent.item).filter(|item| item.key == key);
            ours.for_each(|item| item.etag.clone_from(&etag));
        }
        (self.told)(size);
        Ok(sent)
    }

    /// Reads them all into one archive.
    async fn gather(&self, members: &[Member<'_>], pins: &Pins) -> Result<Gathered, Stop> {
        let (dir, archives, is_hashed) = (Arc::clone(self.dir), self.pieces.archives(), self.strong || self.goes_on);
        let length = members.iter().map(Member::length).sum();
        // What may leave this thread.
        let owned =
            members.iter().map(|member| (pins.held(member.entry), *member.header(), member.own(), member.length()));
        let owned: Vec<_> = owned.collect();
        let gathered = blocking(move || {
            let (mut archive, mut sums) = (archives.take()?, Vec::with_capacity(owned.len()));
            let mut failed = None;
            archive.fill(length, |mut room| {
                for (number, (held, header, own, length)) in owned.into_iter().enumerate() {
                    let (place, rest) = std::mem::take(&mut room).split_at_mut(length as usize);
                    room = rest;
                    let (own, mut sum) = (own.start as usize..own.end as usize, Sums::new(is_hashed));
                    place[..own.start].copy_from_slice(&header);
                    place[own.end..].fill(0);
                    let read = held.open(&dir).and_then(|file| read_whole(&file, &mut place[own], &mut sum));
                    if let Err(error) = read {
                        failed = Some((number, error));
                        return Ok(0);
                    }
                    sums.push(sum);
                }
                Ok(length as usize)
            })?;
            Ok(match failed {
                None => Ok(Gathered { bytes: Bytes::from_owner(archive), sums }),
                Some(failed) => Err(failed),
            })
        });
        match gathered.await {
            Ok(Ok(gathered)) => Ok(gathered),
            Ok(Err((number, error))) => Err(unread(members[number].entry, &error)),
            Err(error) => Err(unread(members[0].entry, &error)),
        }
    }
}

/// Reads a file that is to be as long as its place. Errors: as pread(2); [`io::ErrorKind::UnexpectedEof`] where it is shorter.
fn read_whole(file: &File, place: &mut [u8], sums: &mut Sums) -> io::Result<()> {
    let read = read_into(file, 0, place, |bytes| sums.add(bytes))?;
    forget(file);
    if read < place.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}
