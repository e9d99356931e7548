//! How `object_store` speaks HTTP here: hyper over TCP or rustls (ring), one connector for every cloud.
//!
//! Deliberately absent: retries and signatures (the crate's), time-outs (those of each operation), redirects, proxies, HTTP/2.

use std::error::Error;
use std::io::{self, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable, ErrorKind::TimedOut};
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_RANGE, HeaderValue, USER_AGENT};
use hyper::http::response::Parts;
use hyper::{Method, Response, StatusCode};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, RetryConfig};

use crate::edge::store::checksum::{self, GOOGLE_HASH};
use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::values;
use crate::edge::store::error::{self, NotTrusted};
use crate::edge::store::http::body::{ANSWER, Outgoing, Watched, error};
use crate::edge::store::http::progress::Progress;
use crate::edge::store::http::{response_check, tls};

/// To connect to a store. Metadata servers have a shorter limit, which the crate sets.
const CONNECT: Duration = Duration::from_secs(5);
/// Of what is sent the kernel holds no more than this back: what it has taken counts as moved.
const SEND_BUFFER: usize = 256 << 10;
/// Servers close idle connections after 20 s and more.
const IDLE: Duration = Duration::from_secs(15);
/// Bytes of a listing: Azure puts 5,000 names in one, of up to 1,024 characters that XML may spell in six.
const LISTING: usize = 64 << 20;
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
#[derive(Debug)]
pub(in crate::edge::store) struct Connector(pub(in crate::edge::store) Access);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let given = options.get_config_value(&ClientConfigKey::ConnectTimeout);
        let connect = given.and_then(|text| humantime::parse_duration(&text).ok()).unwrap_or(CONNECT);
        Ok(HttpClient::new(Service { access: self.0.clone(), connect, client: OnceLock::new() }))
    }
}

/// Connections to one store or metadata server.
#[derive(Debug)]
struct Service {
    access: Access,
    connect: Duration,
    /// Made when it is first needed.
    client: OnceLock<Client<HttpsConnector<Tcp>, Outgoing>>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(crc32c) = request.extensions().get().copied() {
            request.headers_mut().extend(checksum::sent(crc32c).map(|value| (GOOGLE_HASH, value)));
        }
        // A user and a password may stand before it.
        let host = request.uri().authority().and_then(|a| a.as_str().rsplit('@').next()).unwrap_or_default().to_owned();
        let (owed, sent) = (response_check::owed(&request), response_check::secrets(&request));
        let is_get = *request.method() == Method::GET;
        let left = match &owed {
            Some(_) if is_get => LISTING,
            // Data are taken piece by piece.
            None if is_get && !self.is_metadata() => usize::MAX,
            _ => ANSWER,
        };
        let progress = self.access.meter().current();
        let (mut parts, body) = self.send(&host, request, &progress).await?.into_parts();
        Service::mend_head(&mut parts);
        let is_good = parts.status.is_success();
        if is_good {
            progress.answered(false);
        }
        let body = Watched { body, host: host.clone(), left, is_good, progress: progress.clone() };
        let body = if !is_good {
            let mut words = String::from_utf8_lossy(&body.beginning().await).into_owned();
            if let Some(message) = error::elsewhere(&parts) {
                (parts.status, words) = (StatusCode::BAD_REQUEST, message);
            }
            parts.status = error::of_the_moment(&words).unwrap_or(parts.status);
            // Only now is it known whether the refusal means "later", which is no progress.
            progress.answered(matches!(parts.status.as_u16(), 408 | 429 | 500..=599));
            response_check::without(&sent, self.access.censored(words)).into()
        } else if let Some(roots) = owed {
            // One that breaks off is asked for again: an upload that is begun twice costs nothing.
            let again = |e: HttpError| match e.kind() {
                HttpErrorKind::Decode => e,
                _ => HttpError::new(HttpErrorKind::Request, e),
            };
            let words = body.collect().await.map_err(again)?.to_bytes();
            let whole = response_check::whole(&host, roots, words, &sent);
            response_check::without_directories(whole.map_err(|why| error(HttpErrorKind::Request, why))?).into()
        } else {
            HttpResponseBody::new(body)
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

impl Service {
    /// The answer, whose body has yet to come.
    async fn send(
        &self,
        host: &str,
        request: HttpRequest,
        progress: &Progress,
    ) -> Result<Response<Incoming>, HttpError> {
        if request.uri().scheme_str() != Some("https")
            && !self.is_plain_allowed(request.uri().host().unwrap_or_default())
        {
            let text = format!(
                "{host} would be asked by plain http, which every machine on the way can read and alter; use https, or say --allow-http"
            );
            return Err(HttpError::new(HttpErrorKind::Unknown, NotTrusted(text)));
        }
        let request = request.map(|body| Outgoing::new(body, progress.clone()));
        self.client()?.request(request).await.map_err(|failed| self.failure(host, &failed))
    }

    /// What the crate would misread, and what is heard beside.
    fn mend_head(parts: &mut Parts) {
        if parts.status == StatusCode::NOT_IMPLEMENTED {
            // The crate would try that again and again.
            parts.status = StatusCode::METHOD_NOT_ALLOWED;
        }
        // rclone's S3 sends the part that was asked for and calls it the whole.
        if parts.status == StatusCode::OK && parts.headers.contains_key(CONTENT_RANGE) {
            parts.status = StatusCode::PARTIAL_CONTENT;
        }
        parts.extensions.clear();
        if let Some(checksum) = checksum::checksum(&parts.headers) {
            parts.extensions.insert(checksum);
        }
    }

    fn is_plain_allowed(&self, host: &str) -> bool {
        let is_allowed = self.access.is_plain_fine || self.access.is_on("AWS_ALLOW_HTTP");
        is_allowed || self.is_metadata() || values::is_here(host)
    }

    /// The crate gives metadata servers one second to connect.
    fn is_metadata(&self) -> bool {
        self.connect < CONNECT
    }

    fn client(&self) -> Result<&Client<HttpsConnector<Tcp>, Outgoing>, HttpError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let tls = tls::config(&self.access).map_err(|why| error(HttpErrorKind::Unknown, why))?;
        let mut tcp = Tcp::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(self.connect));
        tcp.set_send_buffer_size(Some(SEND_BUFFER));
        let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE);
        Ok(self.client.get_or_init(|| builder.build(https.wrap_connector(tcp))))
    }

    fn failure(&self, host: &str, failed: &ClientError) -> HttpError {
        let mut kind = if failed.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
        let mut cause: &dyn Error = failed;
        loop {
            let io = cause.downcast_ref::<io::Error>();
            // A metadata server that does not answer is not there; one that refuses may be about to start.
            let is_absent = |kind| matches!(kind, TimedOut | HostUnreachable | NetworkUnreachable);
            let is_given_up = self.is_metadata() && io.is_some_and(|io| is_absent(io.kind()));
            let tls = cause.downcast_ref::<rustls::Error>();
            if let Some(rustls::Error::InvalidCertificate(why)) = tls {
                return not_trusted(host, why);
            }
            if cause.downcast_ref().is_some_and(is_unanswered) {
                kind = HttpErrorKind::Request;
            }
            // What speaks another protocol will speak it a second later, too.
            let is_other = matches!(tls, Some(rustls::Error::InvalidMessage(_)))
                || cause.downcast_ref().is_some_and(hyper::Error::is_parse);
            if is_given_up || is_other {
                kind = HttpErrorKind::Unknown;
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

fn not_trusted(host: &str, why: &rustls::CertificateError) -> HttpError {
    // Only its debug form tells a CA's own certificate from others: `openssl req -x509` makes such, and webpki takes none.
    let way_out = match format!("{why:?}").contains("CaUsedAsEndEntity") {
        true => "make one with -addext basicConstraints=critical,CA:FALSE",
        false => "name the file of its CA in SSL_CERT_FILE or AWS_CA_BUNDLE, or see to its names and dates",
    };
    HttpError::new(
        HttpErrorKind::Unknown,
        NotTrusted(format!("the certificate of {host} is not trusted ({why}); {way_out}")),
    )
}

fn is_unanswered(error: &hyper::Error) -> bool {
    error.is_closed() || error.is_canceled() || error.is_incomplete_message() || error.is_body_write_aborted()
}
