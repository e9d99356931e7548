//! A scripted metadata server on loopback: it speaks HTTP/1.1, can hang, break off or send without end, and records its
//! requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// The server's reaction to a request.
pub enum Reply {
    /// Status line without the version, headers, body.
    Answer(&'static str, Vec<(&'static str, String)>, String),
    /// Never answers.
    Hang,
    /// Closes the connection without an answer.
    Close,
    /// Announces more than it sends.
    Half(&'static str),
    /// An endless body.
    Endless,
}

/// 200 with this body.
pub fn ok(body: impl Into<String>) -> Reply {
    Reply::Answer("200 OK", Vec::new(), body.into())
}

/// A status with an empty body.
pub fn status(status: &'static str) -> Reply {
    Reply::Answer(status, Vec::new(), String::new())
}

/// The state that a test can change while the server runs.
#[derive(Default)]
struct Shared {
    /// Raised by `turn`; a reply may depend on it or wait for it.
    stage: Mutex<(u32, Vec<Request>)>,
    changed: Condvar,
    /// Bytes of endless bodies that clients have read.
    babbled: AtomicUsize,
}

/// The server. Its threads end with the test process.
pub struct Metadata {
    /// `host:port`.
    pub at: String,
    shared: Arc<Shared>,
}

/// Lets a reply wait for the test.
pub struct Stage<'a>(&'a Shared);

impl Stage<'_> {
    /// The number of calls of `turn`.
    pub fn now(&self) -> u32 {
        self.0.stage.lock().unwrap().0
    }

    /// Waits until the stage differs from this one.
    pub fn wait_while(&self, stage: u32) -> u32 {
        let guard = self.0.stage.lock().unwrap();
        self.0.changed.wait_while(guard, |(now, _)| *now == stage).unwrap().0
    }
}

impl Metadata {
    pub fn start(reply: impl Fn(&Request, &Stage<'_>) -> Reply + Send + Sync + 'static) -> Metadata {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let (shared, reply) = (Arc::new(Shared::default()), Arc::new(reply));
        let ours = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, reply) = (Arc::clone(&ours), Arc::clone(&reply));
                std::thread::spawn(move || serve(stream, &shared, &*reply));
            }
        });
        Metadata { at, shared }
    }

    /// Advances to the next stage.
    pub fn turn(&self) {
        self.shared.stage.lock().unwrap().0 += 1;
        self.shared.changed.notify_all();
    }

    /// The requests so far, as `METHOD path`.
    pub fn asked(&self) -> Vec<String> {
        let stage = self.shared.stage.lock().unwrap();
        stage.1.iter().map(|r| format!("{} {}", r.method, r.path)).collect()
    }

    /// Bytes of endless bodies that clients have read.
    pub fn babbled(&self) -> usize {
        self.shared.babbled.load(Relaxed)
    }

    /// Waits until a request that contains the text has arrived this number of times.
    #[track_caller]
    pub fn after_question(&self, text: &str, times: usize) {
        super::eventually(&format!("{text} is asked {times} times"), || {
            self.asked().iter().filter(|q| q.contains(text)).count() >= times
        });
    }
}

fn serve(mut stream: TcpStream, shared: &Shared, reply: &dyn Fn(&Request, &Stage<'_>) -> Reply) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let headers = lines.by_ref().take_while(|l| !l.is_empty());
    let headers = headers.filter_map(|l| l.split_once(':').map(|(n, v)| (n.to_lowercase(), v.trim().to_owned())));
    let request = Request { method, path, headers: headers.collect() };
    shared.stage.lock().unwrap().1.push(request.clone());
    match reply(&request, &Stage(shared)) {
        Reply::Answer(status, headers, body) => {
            let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let length = body.len();
            let _ = write!(stream, "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
        }
        Reply::Hang => loop {
            std::thread::park();
        },
        Reply::Close => {}
        Reply::Half(body) => {
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 1000\r\n\r\n{body}");
        }
        Reply::Endless => {
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 1000000000\r\n\r\n");
            while stream.write_all(&[b'T'; 4096]).is_ok() {
                shared.babbled.fetch_add(4096, Relaxed);
            }
        }
    }
}

/// Google's answer.
pub fn google(etag: &str, body: &str) -> Reply {
    let headers = vec![("Metadata-Flavor", "Google".to_owned()), ("ETag", etag.to_owned())];
    Reply::Answer("200 OK", headers, body.to_owned())
}

/// Google's `preempted`.
pub fn gce(request: &Request, stage: &Stage<'_>) -> Reply {
    gce_key("preempted", ["FALSE", "TRUE"], request, stage)
}

/// Google's, as documented: a key hangs on `wait_for_change` until the value differs from the ETag's; it changes with the
/// stage. The server has no other key.
pub fn gce_key(key: &str, values: [&str; 2], request: &Request, stage: &Stage<'_>) -> Reply {
    if request.header("metadata-flavor") != Some("Google") {
        return status("403 Forbidden");
    }
    if !request.path.starts_with(&format!("/computeMetadata/v1/instance/{key}")) {
        return Reply::Answer("404 Not Found", vec![("Metadata-Flavor", "Google".to_owned())], String::new());
    }
    let mut now = stage.now();
    if request.path.contains("wait_for_change=true") && request.path.contains("last_etag=e0") {
        now = stage.wait_while(0);
    }
    if now == 0 { google("e0", values[0]) } else { google("e1", values[1]) }
}
