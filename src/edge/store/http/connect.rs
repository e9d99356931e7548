//! HTTP for `object_store`: hyper over TCP or rustls (ring), one connector for every cloud.
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

use crate::edge::net::names::Resolver;
use crate::edge::store::checksum::{self, GOOGLE_HASH};
use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::values;
use crate::edge::store::error::{self, NotTrusted};
use crate::edge::store::http::body::{ANSWER, RequestBody, ResponseBody, error};
use crate::edge::store::http::progress::Progress;
use crate::edge::store::http::{response_check, tls};

/// Time limit to connect to a store. The crate sets a shorter one for metadata servers.
const CONNECT: Duration = Duration::from_secs(5);
/// Small, because bytes count as moved once they are in this buffer.
const SEND_BUFFER: usize = 256 << 10;
/// Servers close idle connections after 20 s and more.
const IDLE: Duration = Duration::from_secs(15);
/// Limit for a listing: Azure lists 5,000 names of up to 1,024 characters, each of up to six bytes in XML.
const LISTING: usize = 64 << 20;
const AGENT: &str = concat!("trainit/", env!("CARGO_PKG_VERSION"));

/// Retries until the store's time-out. Each pause is random, between the first one and `base` times the previous one, so a
/// small base would keep the pauses short.
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

pub(in crate::edge::store) fn options() -> ClientOptions {
    ClientOptions::new().with_connect_timeout(CONNECT)
}

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
    client: OnceLock<Client<HttpsConnector<Tcp<Resolver>>, RequestBody>>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(crc32c) = request.extensions().get().copied() {
            request.headers_mut().extend(checksum::header_value(crc32c).map(|value| (GOOGLE_HASH, value)));
        }
        // Without a user and a password.
        let host = request.uri().authority().and_then(|a| a.as_str().rsplit('@').next()).unwrap_or_default().to_owned();
        let (roots, sent) = (response_check::possible_roots(&request), response_check::secrets(&request));
        let is_get = *request.method() == Method::GET;
        let left = match &roots {
            Some(_) if is_get => LISTING,
            None if is_get && !self.is_metadata() => usize::MAX,
            _ => ANSWER,
        };
        let progress = self.access.meter().current();
        let (mut parts, body) = self.send(&host, request, &progress).await?.into_parts();
        Service::correct_head(&mut parts);
        let is_good = parts.status.is_success();
        if is_good {
            progress.answered(false);
        }
        let body = ResponseBody { body, host: host.clone(), left, is_good, progress: progress.clone() };
        let body = if !is_good {
            let mut words = String::from_utf8_lossy(&body.beginning().await).into_owned();
            if let Some(message) = error::redirect_message(&parts) {
                (parts.status, words) = (StatusCode::BAD_REQUEST, message);
            }
            parts.status = error::transient_status(&words).unwrap_or(parts.status);
            // The final status says whether the refusal means "later", which is no progress.
            progress.answered(matches!(parts.status.as_u16(), 408 | 429 | 500..=599));
            response_check::redact(&sent, self.access.redacted(words)).into()
        } else if let Some(roots) = roots {
            // A truncated response is retried. Starting an upload twice costs nothing.
            let again = |e: HttpError| match e.kind() {
                HttpErrorKind::Decode => e,
                _ => HttpError::new(HttpErrorKind::Request, e),
            };
            let words = body.collect().await.map_err(again)?.to_bytes();
            let whole = response_check::complete(&host, roots, words, &sent);
            response_check::without_directories(whole.map_err(|why| error(HttpErrorKind::Request, why))?).into()
        } else {
            HttpResponseBody::new(body)
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

impl Service {
    /// Sends the request and returns the response before its body.
    async fn send(
        &self,
        host: &str,
        request: HttpRequest,
        progress: &Progress,
    ) -> Result<Response<Incoming>, HttpError> {
        if request.uri().scheme_str() != Some("https")
            && !self.is_http_allowed(request.uri().host().unwrap_or_default())
        {
            let text = format!(
                "{host} would be asked by plain http, which every machine on the way can read and alter; use https, or set --allow-http"
            );
            return Err(HttpError::new(HttpErrorKind::Unknown, NotTrusted(text)));
        }
        let request = request.map(|body| RequestBody::new(body, progress.clone()));
        self.client()?.request(request).await.map_err(|failed| self.failure(host, &failed))
    }

    /// Corrects statuses that the crate would misread, and adds the checksum.
    fn correct_head(parts: &mut Parts) {
        if parts.status == StatusCode::NOT_IMPLEMENTED {
            // The crate would retry it.
            parts.status = StatusCode::METHOD_NOT_ALLOWED;
        }
        // rclone's S3 sends a requested range with the status of a whole object.
        if parts.status == StatusCode::OK && parts.headers.contains_key(CONTENT_RANGE) {
            parts.status = StatusCode::PARTIAL_CONTENT;
        }
        parts.extensions.clear();
        if let Some(checksum) = checksum::of_response(&parts.headers) {
            parts.extensions.insert(checksum);
        }
    }

    fn is_http_allowed(&self, host: &str) -> bool {
        let is_allowed = self.access.allows_http || self.access.is_on("AWS_ALLOW_HTTP");
        is_allowed || self.is_metadata() || values::is_loopback(host)
    }

    /// The crate sets one second to connect to metadata servers.
    fn is_metadata(&self) -> bool {
        self.connect < CONNECT
    }

    fn client(&self) -> Result<&Client<HttpsConnector<Tcp<Resolver>>, RequestBody>, HttpError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let tls = tls::config(&self.access).map_err(|why| error(HttpErrorKind::Unknown, why))?;
        let mut tcp = Tcp::new_with_resolver(Resolver);
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
            // A metadata server that does not answer does not exist; one that refuses may be starting.
            let is_absent = |kind| matches!(kind, TimedOut | HostUnreachable | NetworkUnreachable);
            let is_given_up = self.is_metadata() && io.is_some_and(|io| is_absent(io.kind()));
            let tls = cause.downcast_ref::<rustls::Error>();
            if let Some(rustls::Error::InvalidCertificate(why)) = tls {
                return not_trusted(host, why);
            }
            if cause.downcast_ref().is_some_and(is_unanswered) {
                kind = HttpErrorKind::Request;
            }
            // Another protocol: a retry does not help.
            let is_other = matches!(tls, Some(rustls::Error::InvalidMessage(_)))
                || cause.downcast_ref().is_some_and(hyper::Error::is_parse);
            if is_given_up || is_other {
                kind = HttpErrorKind::Unknown;
            }
            // `source()` of an I/O error skips the error inside it.
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
    // webpki refuses a CA certificate as a server's, which `openssl req -x509` makes. Only the debug form names this case.
    let way_out = match format!("{why:?}").contains("CaUsedAsEndEntity") {
        true => "make one with -addext basicConstraints=critical,CA:FALSE",
        false => "name the file of its CA in SSL_CERT_FILE or AWS_CA_BUNDLE, or correct its names and dates",
    };
    HttpError::new(
        HttpErrorKind::Unknown,
        NotTrusted(format!("the certificate of {host} is not trusted ({why}); {way_out}")),
    )
}

fn is_unanswered(error: &hyper::Error) -> bool {
    error.is_closed() || error.is_canceled() || error.is_incomplete_message() || error.is_body_write_aborted()
}
