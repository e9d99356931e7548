//! How `object_store` speaks HTTP here: hyper over TCP or rustls (ring), one connector for every cloud. A request, and the
//! body of its answer, is an error once no byte of it moves for the store's time-out.
//!
//! Deliberately absent: retries and signatures (the crate's), redirects, proxies, HTTP/2.

use std::error::Error;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_RANGE, DATE, HeaderValue, USER_AGENT};
use hyper::http::response::Parts;
use hyper::http::uri::Authority;
use hyper::{Method, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, RetryConfig};
use url::Url;

use crate::edge::store::checksum::{self, GOOGLE_HASH};
use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::values;
use crate::edge::store::error::{self, NoAnswer, NotTrusted};
use crate::edge::store::http::body::{Outgoing, Watched};
use crate::edge::store::http::progress::Operation;
use crate::edge::store::http::tls::{Roots, is_of_a_ca};
use crate::edge::store::http::{listing_page, response_check};
use crate::rules::text::timestamps::http_date;

/// To connect to a store. Metadata servers have a shorter limit, which the crate sets.
const CONNECT: Duration = Duration::from_secs(5);
/// For the answer of a metadata server.
const METADATA_SILENCE: Duration = Duration::from_secs(5);
/// A metadata server that refused more connections than these, in some ten seconds, will not start.
const METADATA_REFUSALS: u32 = 6;
/// Of what is sent the kernel holds no more than this back: what it has taken counts as moved.
const SEND_BUFFER: usize = 256 << 10;
/// Between two probes of an idle connection.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Servers close idle connections after 20 s and more.
const IDLE: Duration = Duration::from_secs(15);
/// Bytes of a listing: Azure puts 5,000 names in one, of up to 1,024 characters that XML may spell in six.
const LISTING: usize = 64 << 20;
/// Bytes of any other answer that is read whole, and what is read of a refusal.
pub(in crate::edge::store) const ANSWER: usize = 64 << 10;
/// Where the paths of Google's metadata server begin.
const GOOGLE_METADATA: &str = "/computeMetadata/";
/// What a container's credentials are asked for with.
pub(in crate::edge::store) const CONTAINER_TOKEN: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
const AGENT: &str = concat!("trainit/", env!("CARGO_PKG_VERSION"));

/// Retries until the store's time-out: their number is no limit. Each pause is drawn between the first and `base` times the
/// pause before it, so a small base would keep the pauses short.
pub(in crate::edge::store) fn retries(access: &Access) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 6.0,
        },
        max_retries: usize::MAX,
        retry_timeout: access.timeout,
    }
}

/// What the clouds' builders are given.
pub(in crate::edge::store) fn options() -> ClientOptions {
    ClientOptions::new().with_connect_timeout(CONNECT)
}

/// Makes clients for `object_store`.
#[derive(Debug, Clone)]
pub(in crate::edge::store) struct Connector {
    roots: Roots,
    /// Where the time goes that a store says it is, and what must not be printed.
    access: Access,
    /// Google's metadata servers that the environment names; the crate would ask the usual one beside them.
    machines: Vec<Authority>,
}

impl Connector {
    /// `bundle`: a file of root certificates for this cloud alone.
    pub(in crate::edge::store) fn new(access: &Access, bundle: Option<String>, machines: Vec<Authority>) -> Connector {
        let roots = Roots { file: access.given("SSL_CERT_FILE").map(str::to_owned), bundle };
        Connector { roots, access: access.clone(), machines }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let given = options.get_config_value(&ClientConfigKey::ConnectTimeout);
        let connect = given.and_then(|text| humantime::parse_duration(&text).ok()).unwrap_or(CONNECT);
        let refusals = AtomicU32::new(0);
        let (plain, secure) = (OnceLock::new(), OnceLock::new());
        Ok(HttpClient::new(Service { of: self.clone(), connect, refusals, plain, secure }))
    }
}

/// Connections to one store or metadata server; each kind is made when it is first needed.
#[derive(Debug)]
struct Service {
    of: Connector,
    connect: Duration,
    refusals: AtomicU32,
    plain: OnceLock<Client<Tcp, Outgoing>>,
    secure: OnceLock<Client<HttpsConnector<Tcp>, Outgoing>>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.mend(&mut request);
        let host = request.uri().authority().map_or(String::new(), |a| values::bare(a.as_str()).to_owned());
        let (owed, sent) = (response_check::owed(&request), response_check::secrets(&request));
        let is_get = *request.method() == Method::GET;
        let left = match &owed {
            Some(_) if is_get => LISTING,
            // Data are taken piece by piece.
            None if is_get && !self.is_metadata() => usize::MAX,
            _ => ANSWER,
        };
        let operation = self.of.access.meter().begin();
        let (mut parts, body) = self.send(&host, request, &operation).await?.into_parts();
        self.mend_head(&mut parts);
        let (progress, is_good) = (operation.progress().clone(), parts.status.is_success());
        if is_good {
            progress.answered(false);
        }
        let body = Watched::new(body, (host, is_good), left, self.silence(), operation);
        let body = if !is_good {
            let mut words = String::from_utf8_lossy(&body.beginning().await).into_owned();
            if let Some(told) = error::elsewhere(&parts) {
                (parts.status, words) = (StatusCode::BAD_REQUEST, told);
            }
            parts.status = error::of_the_moment(&words).unwrap_or(parts.status);
            // Only now is it known whether the refusal means "later", which is no progress.
            progress.answered(matches!(parts.status.as_u16(), 408 | 429 | 500..=599));
            response_check::without(&sent, self.of.access.censored(words)).into()
        } else if self.is_metadata() || owed.is_some() {
            whole(body, owed, &sent, &self.of.access).await?.into()
        } else {
            HttpResponseBody::new(body)
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// The body of an answer that is judged before the crate reads it: one of these elements where that is `owed`, else a
/// metadata server's.
async fn whole(body: Watched, owed: Option<&[&str]>, sent: &[String], access: &Access) -> Result<Bytes, HttpError> {
    let host = body.host.clone();
    // What was not sent is always sent again, and this may be: an upload that is begun twice costs nothing.
    let is_to_repeat = |e: &HttpError| owed.is_some() && e.kind() != HttpErrorKind::Decode;
    let broke_off = |e| if is_to_repeat(&e) { HttpError::new(HttpErrorKind::Request, e) } else { e };
    let words = body.collect().await.map_err(broke_off)?.to_bytes();
    let refused = |kind| move |why| error(kind, why);
    match owed {
        Some(root) => {
            let whole = response_check::whole(&host, root, words, sent).map_err(refused(HttpErrorKind::Request))?;
            Ok(listing_page::without_odd_names(whole, &mut |name| access.odd().note(name)))
        }
        None => response_check::usable(&host, &words).map_err(refused(HttpErrorKind::Unknown)),
    }
}

impl Service {
    /// The answer, whose body has yet to come.
    async fn send(
        &self,
        host: &str,
        request: HttpRequest,
        operation: &Operation,
    ) -> Result<Response<Incoming>, HttpError> {
        let is_secure = request.uri().scheme_str() == Some("https");
        if !is_secure && !self.is_plain_allowed(request.uri()) {
            let text = format!(
                "{host} would be asked by plain http, which every machine on the way can read and alter; use https, or say --allow-http"
            );
            return Err(HttpError::new(HttpErrorKind::Unknown, NotTrusted(text)));
        }
        let request = request.map(|body| Outgoing::new(body, operation.progress().clone()));
        let answer = if is_secure { self.secure()?.request(request) } else { self.plain().request(request) };
        match operation.within(self.silence(), answer).await {
            Some(answer) => answer.map_err(|failed| self.failure(host, &failed)),
            None => {
                let seconds = self.silence().as_secs();
                Err(error(HttpErrorKind::Timeout, format!("no byte went to or came from {host} for {seconds} s")))
            }
        }
    }

    /// What the crate does not say as we or the environment want it said.
    fn mend(&self, request: &mut HttpRequest) {
        let is_named = |at: &Authority| self.of.machines.contains(at);
        if let Some(machine) = self.of.machines.first().filter(|_| self.is_metadata())
            && !request.uri().authority().is_some_and(is_named)
            && let Some((_, path)) = request.uri().to_string().split_once(GOOGLE_METADATA)
            && let Ok(uri) = format!("http://{machine}{GOOGLE_METADATA}{path}").parse()
        {
            *request.uri_mut() = uri;
        }
        // A container's, which the crate knows from a file only.
        if request.headers().get(AUTHORIZATION).is_some_and(HeaderValue::is_empty) {
            request.headers_mut().remove(AUTHORIZATION);
            let token = self.of.access.given(CONTAINER_TOKEN).and_then(|token| HeaderValue::try_from(token).ok());
            request.headers_mut().extend(token.map(|token| (AUTHORIZATION, token)));
        }
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(crc32c) = request.extensions().get().copied() {
            request.headers_mut().extend(checksum::sent(crc32c).map(|value| (GOOGLE_HASH, value)));
        }
    }

    /// What the crate would misread, and what is heard beside.
    fn mend_head(&self, parts: &mut Parts) {
        if parts.status == StatusCode::NOT_IMPLEMENTED {
            // The crate would try that again and again.
            parts.status = StatusCode::METHOD_NOT_ALLOWED;
        }
        // rclone's S3 sends the part that was asked for and calls it the whole.
        if parts.status == StatusCode::OK && parts.headers.contains_key(CONTENT_RANGE) {
            parts.status = StatusCode::PARTIAL_CONTENT;
        }
        if !self.is_metadata()
            && let Some(date) = parts.headers.get(DATE).and_then(|v| v.to_str().ok()).and_then(http_date)
        {
            self.of.access.meter().set_date(date.try_into().unwrap_or(0));
        }
        parts.extensions.clear();
        if let Some(checksum) = checksum::checksum(&parts.headers) {
            parts.extensions.insert(checksum);
        }
    }

    fn silence(&self) -> Duration {
        if self.is_metadata() { METADATA_SILENCE.min(self.of.access.timeout) } else { self.of.access.timeout }
    }

    fn is_plain_allowed(&self, uri: &Uri) -> bool {
        let access = &self.of.access;
        let is_here = || Url::parse(&uri.to_string()).is_ok_and(|url| values::is_here(&url));
        self.is_metadata() || access.is_plain_fine || access.is_on("AWS_ALLOW_HTTP") || is_here()
    }

    /// The crate gives metadata servers one second to connect.
    fn is_metadata(&self) -> bool {
        self.connect < CONNECT
    }

    /// A metadata server that does not answer is not there; one that refuses may be about to start.
    fn is_given_up(&self, problem: io::ErrorKind) -> bool {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
        let is_gone = matches!(problem, TimedOut | HostUnreachable | NetworkUnreachable);
        let is_refused = || problem == ConnectionRefused && self.refusals.fetch_add(1, Relaxed) >= METADATA_REFUSALS;
        self.is_metadata() && (is_gone || is_refused())
    }

    fn plain(&self) -> &Client<Tcp, Outgoing> {
        self.plain.get_or_init(|| builder().build(self.tcp()))
    }

    fn secure(&self) -> Result<&Client<HttpsConnector<Tcp>, Outgoing>, HttpError> {
        if let Some(client) = self.secure.get() {
            return Ok(client);
        }
        let tls = self.of.roots.config().map_err(|why| error(HttpErrorKind::Unknown, why))?;
        let mut tcp = self.tcp();
        tcp.enforce_http(false);
        let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1();
        Ok(self.secure.get_or_init(|| builder().build(https.wrap_connector(tcp))))
    }

    fn tcp(&self) -> Tcp {
        let mut tcp = Tcp::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(self.connect));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_send_buffer_size(Some(SEND_BUFFER));
        tcp
    }

    fn failure(&self, host: &str, failed: &ClientError) -> HttpError {
        let mut kind = if failed.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Unknown };
        let mut cause: &dyn Error = failed;
        loop {
            if let Some(hyper) = cause.downcast_ref::<hyper::Error>() {
                kind = kind_of(hyper, kind);
            }
            match cause.downcast_ref() {
                Some(rustls::Error::InvalidCertificate(why)) => return not_trusted(host, why),
                // It speaks no TLS, and will not in a second.
                Some(rustls::Error::InvalidMessage(_)) => kind = HttpErrorKind::Unknown,
                _ => {}
            }
            let io = cause.downcast_ref::<io::Error>();
            match io.map(io::Error::kind) {
                Some(problem) if self.is_given_up(problem) => kind = HttpErrorKind::Unknown,
                Some(
                    io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof
                    // That stood still; one that was never made has a kind of its own.
                    | io::ErrorKind::TimedOut,
                ) if kind == HttpErrorKind::Unknown => kind = HttpErrorKind::Interrupted,
                _ => {}
            }
            // The source of an I/O error is not the error it was made from, but the source of that.
            let inner = io.and_then(io::Error::get_ref).map(|inner| inner as &dyn Error);
            match inner.or_else(|| cause.source()) {
                Some(deeper) => cause = deeper,
                None => break,
            }
        }
        error(kind, format!("no answer from {host}: {cause}"))
    }
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).http1_max_buf_size(BUFFER);
    builder
}

/// Bytes read from a connection at a time: as many as musl's heap serves from pages that stay.
const BUFFER: usize = 112 << 10;

pub(in crate::edge::store) fn error(kind: HttpErrorKind, text: String) -> HttpError {
    HttpError::new(kind, NoAnswer(text))
}

fn not_trusted(host: &str, why: &rustls::CertificateError) -> HttpError {
    let text = if is_of_a_ca(why) {
        format!(
            "the certificate of {host} is not trusted: it is one of a CA itself (CA:TRUE, as `openssl req -x509` makes them) and none that is named; name its file in SSL_CERT_FILE (for S3 also AWS_CA_BUNDLE)"
        )
    } else {
        let way_out =
            "name the file of its CA in SSL_CERT_FILE (for S3 also AWS_CA_BUNDLE), or see to its names and dates";
        format!("the certificate of {host} is not trusted ({why}); {way_out}")
    };
    HttpError::new(HttpErrorKind::Unknown, NotTrusted(text))
}

fn kind_of(error: &hyper::Error, otherwise: HttpErrorKind) -> HttpErrorKind {
    match error {
        _ if error.is_timeout() => HttpErrorKind::Timeout,
        _ if error.is_closed() || error.is_canceled() || error.is_incomplete_message() => HttpErrorKind::Request,
        _ if error.is_body_write_aborted() => HttpErrorKind::Request,
        _ => otherwise,
    }
}
