//! Sends a JSON body to an HTTP or HTTPS server.
//!
//! Deliberately absent: retries, redirects, proxies, the content.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};
use tokio::time::timeout;

use crate::edge::net::names::Resolver;
use crate::edge::transfer::blocking::blocking;
use crate::rules::push::Receiver;

/// A token is shorter.
const TOKEN_BYTES: u64 = 64 << 10;
const AGENT: &str = concat!("trainit/", env!("CARGO_PKG_VERSION"));

type Connections = Pool<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>;

/// Connections to one receiver, made at the first request.
#[derive(Default)]
pub struct Client(Mutex<Option<Connections>>);

/// Sends a body. Errors: one clause without secrets.
pub async fn send(client: &Client, receiver: &Receiver, body: String) -> Result<(), String> {
    let limit = receiver.timeout;
    let sent = timeout(limit, exchange(client, receiver, body)).await;
    sent.unwrap_or_else(|_| Err(format!("no answer within {} s", limit.as_secs_f64())))
}

async fn exchange(client: &Client, receiver: &Receiver, body: String) -> Result<(), String> {
    let mut request = Request::builder().method(Method::POST).uri(&receiver.url);
    request = request.header(CONTENT_TYPE, "application/json").header(USER_AGENT, AGENT);
    for (name, value) in &receiver.headers {
        let header = name.parse::<HeaderName>().ok().zip(HeaderValue::from_str(value).ok());
        let (name, value) = header.ok_or("a header of the settings is no HTTP header")?;
        request = request.header(name, value);
    }
    if let Some(file) = receiver.token_file.clone() {
        let token =
            blocking(move || read_token(&file)).await.map_err(|error| format!("its token cannot be read: {error}"))?;
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| "its token is no text")?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    let request = request.body(Full::from(body)).map_err(|_| "its address is no URL")?;
    let connections = connections(client, receiver.ca_file.clone()).await?;
    let response = connections.request(request).await.map_err(|error| innermost(&error))?;
    match response.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("it answered {status}")),
    }
}

fn read_token(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(TOKEN_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

async fn connections(client: &Client, ca_file: Option<std::path::PathBuf>) -> Result<Connections, String> {
    let open = || client.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(connections) = open().clone() {
        return Ok(connections);
    }
    let tls =
        blocking(move || tls(ca_file.as_deref()).map_err(std::io::Error::other)).await.map_err(|e| e.to_string())?;
    let mut tcp = HttpConnector::new_with_resolver(Resolver);
    tcp.enforce_http(false);
    let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    let made = Pool::builder(TokioExecutor::new()).build(https.wrap_connector(tcp));
    Ok(open().insert(made).clone())
}

/// Trusts the given authorities, or those of the image and the built-in ones. Errors: the file has none.
fn tls(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(file) => {
            roots.add_parsable_certificates(load_certs_from_paths(Some(file), None).certs);
            if roots.is_empty() {
                return Err(format!("{} has no certificate", file.display()));
            }
        }
        None => {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
            roots.add_parsable_certificates(load_native_certs().certs);
        }
    }
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| format!("no TLS: {error}"))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The text of the deepest cause.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
