//! A bucket on loopback that speaks the XML dialects of Cloud Storage, S3 and Azure (`blobs`) over real HTTP. A test
//! can read it, damage it, and configure its misbehaviour.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

mod dialect;
mod server;

pub use dialect::base64;
pub(super) use dialect::{escape, get, hash_of};
pub(super) use server::decode;
use server::serve;

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// Decoded, without the bucket; empty for the bucket itself.
    pub key: String,
    pub query: BTreeMap<String, String>,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// How the bucket misbehaves for one request.
pub enum Fault {
    /// Returns this answer without performing the request.
    Refuse(&'static str, &'static str),
    /// Performs the request, and returns this answer.
    Afterwards(&'static str),
    /// Closes the connection without performing the request.
    Close,
    /// Performs the request, and closes the connection without an answer.
    Lose,
    /// Closes the connection after the headers, while the body is sent.
    Cut,
    /// Never answers.
    Hang,
    /// Performs the request, and never answers.
    Mute,
    /// Answers 200 without performing the request.
    Pretend,
    /// Sends half of the announced body.
    Half,
    /// Sends half of the body and announces only that half.
    Short,
    /// Flips a bit of a stored or sent object.
    Flip,
    /// Lists nothing, as the last page.
    LosePage,
    /// Answers 200 with this text without performing the request.
    Say(&'static str),
    /// The same with a text that was made for this request.
    Tell(String),
    /// Answers with this status and this text, and then sends more text until the client closes.
    Endless(&'static str, &'static str),
}

#[derive(Clone)]
struct Object {
    bytes: Vec<u8>,
    generation: u64,
}

#[derive(Default)]
pub(super) struct State {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<String, BTreeMap<u32, Vec<u8>>>,
    /// Azure's blocks, by blob and id.
    pub(super) blocks: BTreeMap<(String, String), Vec<u8>>,
    generation: u64,
    asked: Vec<Request>,
}

type Rule = dyn Fn(&Request) -> Option<Fault> + Send + Sync;

struct Shared {
    state: Mutex<State>,
    rule: Mutex<Option<Arc<Rule>>>,
    ignores_conditions: bool,
    babbled: AtomicUsize,
}

/// The bucket. Its threads end with the test process.
pub struct Bucket {
    /// `host:port`.
    pub at: String,
    shared: Arc<Shared>,
}

/// The bucket's name.
pub const NAME: &str = "train-bucket";

impl Bucket {
    pub fn start() -> Bucket {
        Bucket::of(false)
    }

    /// A bucket that ignores If-None-Match and generations.
    pub fn liar() -> Bucket {
        Bucket::of(true)
    }

    fn of(ignores_conditions: bool) -> Bucket {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let shared = Shared {
            state: Mutex::default(),
            rule: Mutex::new(None),
            ignores_conditions,
            babbled: AtomicUsize::new(0),
        };
        let shared = Arc::new(shared);
        let ours = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&ours);
                std::thread::spawn(move || serve(&stream, &shared));
            }
        });
        Bucket { at, shared }
    }

    /// The variables to use it as Cloud Storage.
    pub fn as_google(&self) -> Vec<(&'static str, String)> {
        vec![("STORAGE_EMULATOR_HOST", self.at.clone())]
    }

    /// The variables to use it as S3.
    pub fn as_amazon(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", format!("http://{}", self.at)),
            ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    /// The variables to use it as Azure Blob Storage.
    pub fn as_azure(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AZURE_STORAGE_ACCOUNT", "acc".to_owned()),
            ("AZURE_STORAGE_KEY", super::blobs::KEY.to_owned()),
            ("AZURE_STORAGE_ENDPOINT", format!("http://{}", self.at)),
        ]
    }

    /// From now on, this rule decides about each request first.
    pub fn misbehave(&self, rule: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static) {
        *self.shared.rule.lock().unwrap() = Some(Arc::new(rule));
    }

    /// Makes the first PUT of a key with this ending wait between the check whether the name is free and the write of a
    /// [`Bucket::liar`]. The receiver gets a message when it waits, and the sender continues it.
    pub fn hesitate(&self, end: &'static str) -> (Receiver<()>, Sender<()>) {
        let ((waits, waiting), (go_on, word)) = (channel(), channel());
        let (first, shared) = (Mutex::new(Some(word)), Arc::clone(&self.shared));
        self.misbehave(move |r| {
            let is_there = shared.state.lock().unwrap().has(&r.key);
            if is_there && r.header("if-none-match").is_some() {
                return Some(Fault::Refuse("412 Precondition Failed", "PreconditionFailed"));
            }
            let is_it = r.method == "PUT" && r.key.ends_with(end);
            let word: Option<Receiver<()>> = is_it.then(|| first.lock().unwrap().take())?;
            if let Some(word) = word {
                waits.send(()).unwrap();
                word.recv().unwrap();
            }
            None
        });
        (waiting, go_on)
    }

    pub fn behave(&self) {
        *self.shared.rule.lock().unwrap() = None;
    }

    pub fn keys(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    pub fn object(&self, key: &str) -> Option<Vec<u8>> {
        self.state().objects.get(key).map(|o| o.bytes.clone())
    }

    /// Adds an object without a request.
    pub fn place(&self, key: &str, bytes: &[u8]) {
        self.state().put(key, bytes.to_vec());
    }

    pub fn remove(&self, key: &str) {
        self.state().objects.remove(key);
    }

    /// Uploads in parts that were neither completed nor aborted.
    pub fn uploads(&self) -> usize {
        self.state().uploads.len()
    }

    /// Every request so far.
    pub fn asked(&self) -> Vec<Request> {
        self.state().asked.clone()
    }

    /// Every request so far as `METHOD key`.
    pub fn request_lines(&self) -> Vec<String> {
        self.asked().iter().map(|r| format!("{} {}", r.method, r.key)).collect()
    }

    /// Bytes of endless answers that clients have read.
    pub fn babbled(&self) -> usize {
        self.shared.babbled.load(Relaxed)
    }

    pub fn forget(&self) {
        self.state().asked.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }
}

/// The access key of `as_amazon`.
pub const SECRET: &str = "wJalrXUtnFEMIEXAMPLEKEYhunter2";

impl State {
    pub(super) fn has(&self, key: &str) -> bool {
        self.objects.contains_key(key)
    }

    pub(super) fn remove(&mut self, key: &str) -> bool {
        self.objects.remove(key).is_some()
    }

    pub(super) fn sizes(&self) -> impl Iterator<Item = (String, usize)> {
        self.objects.iter().map(|(key, object)| (key.clone(), object.bytes.len()))
    }

    pub(super) fn put(&mut self, key: &str, bytes: Vec<u8>) -> u64 {
        self.generation += 1;
        self.objects.insert(key.to_owned(), Object { bytes, generation: self.generation });
        self.generation
    }
}

pub(super) struct Answer {
    pub(super) status: &'static str,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

pub(super) fn answer(status: &'static str) -> Answer {
    Answer { status, headers: Vec::new(), body: Vec::new() }
}

pub(super) fn error(status: &'static str, code: &str) -> Answer {
    let body = format!("<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} it is.</Message></Error>");
    Answer { body: body.into_bytes(), ..answer(status) }
}

pub(super) fn xml(body: String) -> Answer {
    Answer { body: format!("<?xml version='1.0' encoding='UTF-8'?>{body}").into_bytes(), ..answer("200 OK") }
}
