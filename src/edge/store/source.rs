//! Stretches of files that are sent without being held in memory.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use nix::errno::Errno;
use nix::sys::sendfile::sendfile;

use crate::edge::beneath::{forget, is_sparse, read_into};
use crate::edge::pool::{Buffer, Pool};

/// Bytes that are read and sent at a time where the kernel does not send a file by itself.
const PIECE: usize = 64 << 10;

/// A stretch of a file, read once to know its checksum. What is sent of it later is the same, or the sending fails.
pub struct Source {
    file: File,
    pub(super) from: u64,
    pub(super) until: u64,
    pub(super) crc64: u64,
    /// Whether it has no holes, which to read takes longer than to know.
    pub(super) is_dense: bool,
    /// Whether the file is through with it: the page cache is the trainer's.
    is_last: bool,
    windows: Pool,
    fault: Mutex<Option<io::Error>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.from).field(&self.until).finish()
    }
}

impl Source {
    /// Reads `length` bytes, by as many as a window holds; all are shown to `seen`. `is_last`: nothing of the file will be
    /// read after it was sent. Errors: as pread(2); [`io::ErrorKind::UnexpectedEof`] where there are fewer.
    pub(crate) fn new(
        file: File,
        from: u64,
        length: u64,
        is_last: bool,
        windows: &Pool,
        mut seen: impl FnMut(&[u8]),
    ) -> io::Result<Source> {
        let (until, mut digest) = (from + length, Digest::new(CrcAlgorithm::Crc64Nvme));
        let (mut window, mut at) = (windows.take()?, from);
        while at < until {
            window.fill(until - at, |room| {
                read_into(&file, at, room, |bytes| {
                    digest.update(bytes);
                    seen(bytes);
                })
            })?;
            at += entire(&window, at, until)?;
        }
        let (crc64, is_dense) = (digest.finalize(), !is_sparse(&file.metadata()?));
        Ok(Source { file, from, until, crc64, is_dense, is_last, windows: windows.clone(), fault: Mutex::default() })
    }

    /// How many bytes it is.
    pub(crate) fn length(&self) -> u64 {
        self.until - self.from
    }

    /// What kept it from being sent. [`io::ErrorKind::UnexpectedEof`]: the file became shorter;
    /// [`io::ErrorKind::InvalidData`]: it has other bytes than it had.
    pub(crate) fn take_fault(&self) -> Option<io::Error> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps what the file did, and returns an error that is not taken for the connection's, after which one tries again.
    pub(super) fn at_fault(&self, fault: io::Error) -> io::Error {
        let told = io::Error::other(fault.to_string());
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
        told
    }

    /// The window from there on, and what all up to its end sums to. The last one comes only where that is what it was.
    pub(super) fn window(&self, at: u64, mut digest: Digest) -> io::Result<(Buffer, Digest)> {
        let mut window = self.windows.take()?;
        window.fill(self.until - at, |room| read_into(&self.file, at, room, |bytes| digest.update(bytes)))?;
        if at + entire(&window, at, self.until)? == self.until {
            if digest.finalize() != self.crc64 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.let_go();
        }
        Ok((window, digest))
    }

    /// Lets the kernel send the bytes from there on, `most` at most, which do not pass through here. `None`: the connection
    /// takes none now. Errors: as send(2); what [`Source::at_fault`] makes of the file's.
    pub(super) fn send(&self, at: u64, most: usize, to: &TcpStream) -> io::Result<Option<usize>> {
        let mut from = at as libc::off_t;
        match sendfile(to, &self.file, Some(&mut from), most) {
            Ok(0) => Err(self.at_fault(io::ErrorKind::UnexpectedEof.into())),
            Ok(sent) => Ok(Some(sent)),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            // It cannot with this file, it may not, or one of the two is broken.
            Err(_) => self.send_copied(at, most, to),
        }
    }

    fn send_copied(&self, at: u64, most: usize, mut to: &TcpStream) -> io::Result<Option<usize>> {
        let mut piece = vec![0; PIECE.min(most)];
        let read = match self.file.read_at(&mut piece, at) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            read => read,
        };
        let read = read.map_err(|error| self.at_fault(error))?;
        match to.write(&piece[..read]) {
            Ok(sent) => Ok(Some(sent)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads all of it again, after it was sent. Errors: what [`Source::at_fault`] makes of pread(2)'s, and of other bytes.
    pub(super) fn prove(&self) -> io::Result<()> {
        let (mut at, mut digest) = (self.from, Digest::new(CrcAlgorithm::Crc64Nvme));
        while at < self.until {
            let (window, so_far) = self.window(at, digest).map_err(|error| self.at_fault(error))?;
            (at, digest) = (at + window.as_ref().len() as u64, so_far);
        }
        Ok(())
    }

    /// Tells the kernel where nothing of the file will be read again.
    pub(super) fn let_go(&self) {
        if self.is_last {
            forget(&self.file);
        }
    }
}

/// The bytes that were read; fewer than a window's, or than are left, are too few.
fn entire(window: &Buffer, at: u64, until: u64) -> io::Result<u64> {
    let read = window.as_ref().len() as u64;
    if read == (until - at).min(window.room()) { Ok(read) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// What is to be sent.
#[derive(Debug)]
pub enum Content {
    /// It is here.
    Blocks(Vec<Bytes>),
    /// It is in a file.
    File(Arc<Source>),
}

impl From<Vec<Bytes>> for Content {
    fn from(blocks: Vec<Bytes>) -> Content {
        Content::Blocks(blocks)
    }
}

impl Content {
    /// The file's part of it.
    pub(crate) fn source(&self) -> Option<Arc<Source>> {
        match self {
            Content::Blocks(_) => None,
            Content::File(source) => Some(Arc::clone(source)),
        }
    }

    /// How many bytes.
    pub fn length(&self) -> u64 {
        match self {
            Content::Blocks(blocks) => blocks.iter().map(|block| block.len() as u64).sum(),
            Content::File(source) => source.length(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    const WINDOW: u64 = 64 << 10;
    pub(in super::super) const LENGTH: u64 = 5 * WINDOW + 7;
    const FROM: u64 = 11;

    /// A file, the bytes of a stretch of it, and the stretch.
    pub(in super::super) fn fixture() -> (File, Vec<u8>, Arc<Source>) {
        let file = tempfile::tempfile().expect("makes a file");
        let bytes: Vec<u8> = (0..LENGTH + FROM).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        file.write_all_at(&bytes, 0).expect("writes");
        let (mut seen, reader) = (Vec::new(), file.try_clone().expect("duplicates"));
        let source = Source::new(reader, FROM, LENGTH, true, &Pool::new(WINDOW), |more| seen.extend_from_slice(more));
        assert!(seen == bytes[FROM as usize..], "what is summed is shown");
        (file, seen, Arc::new(source.expect("reads")))
    }

    /// What may become of a file after it was summed, and how that is called.
    pub(in super::super) fn spoilt() -> impl Iterator<Item = (File, Arc<Source>, io::ErrorKind)> {
        let kinds = [
            (Some(FROM), LENGTH + FROM, io::ErrorKind::InvalidData),
            (Some(LENGTH + FROM - 1), LENGTH + FROM, io::ErrorKind::InvalidData),
            (None, LENGTH + FROM - 1, io::ErrorKind::UnexpectedEof),
            (None, 0, io::ErrorKind::UnexpectedEof),
        ];
        kinds.into_iter().map(|(at, length, fault)| {
            let (file, bytes, source) = fixture();
            if let Some(at) = at {
                file.write_all_at(&[!bytes[(at - FROM) as usize]], at).expect("writes");
            }
            file.set_len(length).expect("cuts");
            (file, source, fault)
        })
    }

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let ours = TcpStream::connect(listener.local_addr().expect("has an address")).expect("connects");
        ours.set_nonblocking(true).expect("sets");
        (ours, listener.accept().expect("accepts").0)
    }

    /// What comes of sending all of it.
    fn through(source: &Source) -> Vec<u8> {
        let (ours, mut theirs) = connected();
        let (mut at, mut came) = (source.from, Vec::new());
        while at < source.until {
            let sent = source.send(at, (source.until - at) as usize, &ours).expect("is sent");
            came.resize((at - source.from) as usize + sent.unwrap_or(0), 0);
            theirs.read_exact(&mut came[(at - source.from) as usize..]).expect("comes");
            at += sent.unwrap_or(0) as u64;
        }
        came
    }

    #[test]
    fn the_kernel_sends_what_is_in_the_file() {
        let (_file, bytes, source) = fixture();
        assert!(through(&source) == bytes);
        source.prove().expect("it is what was summed");
    }

    #[test]
    fn what_the_kernel_does_not_send_by_itself_is_sent_all_the_same() {
        // Memory is a file that can be read at any place, and not spliced.
        let bytes: Vec<u8> = (0..LENGTH).map(|n| (n % 251) as u8).collect();
        let (file, from) = (File::open("/proc/self/mem").expect("opens"), bytes.as_ptr().addr() as u64);
        let (until, windows) = (from + LENGTH, Pool::new(WINDOW));
        let (crc64, is_dense, is_last, fault) = (0, true, true, Mutex::default());
        let source = Source { file, from, until, crc64, is_dense, is_last, windows, fault };
        assert!(through(&source) == bytes);
    }

    #[test]
    fn a_connection_that_takes_nothing_now_is_no_error_and_one_that_is_gone_is_not_the_files() {
        let (_file, _, source) = fixture();
        let (ours, theirs) = connected();
        while source.send(FROM, LENGTH as usize, &ours).expect("is sent").is_some() {}
        drop(theirs);
        let gone = (0..).find_map(|_| source.send(FROM, LENGTH as usize, &ours).err()).expect("fails at last");
        assert!(matches!(gone.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{gone}");
        assert!(source.take_fault().is_none());
    }

    #[test]
    fn a_file_that_ends_before_it_should_is_at_fault() {
        let (file, _, source) = fixture();
        file.set_len(FROM + 5).expect("cuts");
        let (ours, _theirs) = connected();
        assert_eq!(source.send(FROM, LENGTH as usize, &ours).expect("is sent"), Some(5));
        source.send(FROM + 5, LENGTH as usize, &ours).expect_err("there is no more");
        assert_eq!(source.take_fault().map(|error| error.kind()), Some(io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn a_file_that_was_written_to_meanwhile_proves_nothing() {
        for (_file, source, fault) in spoilt() {
            source.prove().expect_err("has other bytes");
            assert_eq!(source.take_fault().map(|error| error.kind()), Some(fault));
        }
    }

    #[test]
    fn a_file_that_is_shorter_than_was_thought_is_no_source() {
        let short = Source::new(tempfile::tempfile().expect("makes a file"), 0, 1, true, &Pool::new(WINDOW), |_| {});
        assert_eq!(short.map_err(|error| error.kind()).expect_err("is too short"), io::ErrorKind::UnexpectedEof);
    }
}
