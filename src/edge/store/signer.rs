//! Who signs what a store is asked for. Credentials are asked for anew where a store no longer believes those that the
//! crate still holds on to: rotated, revoked, or run out by another clock than ours. And the old ones stay in use where
//! nobody says for now which come next: mostly they hold for some minutes more.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hyper::header::AUTHORIZATION;
use object_store::CredentialProvider;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::azure::AzureCredential;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};
use object_store::gcp::GcpCredential;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use super::error::{Failed, NotRenewed};
use crate::edge::blocking::blocking;
use crate::edge::clock::Clock;

/// So long new credentials are waited for while there are old ones, and so long nobody is asked again where none came.
const PATIENCE: Duration = Duration::from_secs(3);
const REST: Duration = Duration::from_secs(30);

/// Who says which credentials are ours, and remembers them.
pub(super) type Provider<C> = Arc<dyn CredentialProvider<Credential = C>>;
/// One that remembers nothing yet, from what the environment and its files say now.
type Find<C> = dyn Fn() -> Option<Provider<C>> + Send + Sync;

/// Credentials that come from elsewhere than the environment, where they never change.
pub(super) struct Signer<C> {
    find: Arc<Find<C>>,
    /// Those that were last had.
    held: Mutex<Option<Arc<C>>>,
    /// Locked by who asks for others.
    asked: AsyncMutex<Asked<C>>,
    /// How often they were asked for anew.
    rounds: AtomicU64,
    clock: Clock,
}

struct Asked<C> {
    who: Provider<C>,
    rests_until: Duration,
}

impl<C> fmt::Debug for Signer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer(..)")
    }
}

/// As a connection knows it.
#[async_trait]
pub(super) trait SignsAgain: fmt::Debug + Send + Sync {
    /// The request that was refused for who signed it, signed by credentials that were had since; `None` where there are
    /// no others. Errors: they are not to be had.
    async fn sign_again(&self, refused: HttpRequest) -> Result<Option<HttpRequest>, HttpError>;
}

/// A cloud's credentials, as its requests carry them.
pub(super) trait Signs: fmt::Debug + Send + Sync + 'static {
    fn has_signed(&self, request: &HttpRequest) -> bool;
    /// In the place of whoever did; `None` where they cannot.
    fn sign(&self, request: HttpRequest) -> Option<HttpRequest>;
}

impl<C: Signs> Signer<C> {
    pub(super) fn new(who: Provider<C>, find: impl Fn() -> Option<Provider<C>> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Signer {
            find: Arc::new(find),
            held: Mutex::default(),
            asked: AsyncMutex::new(Asked { who, rests_until: Duration::ZERO }),
            rounds: AtomicU64::new(0),
            clock: Clock::start(),
        })
    }

    fn held(&self) -> Option<Arc<C>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn hold(&self, found: &Arc<C>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(found));
    }

    async fn ask_anew(&self, asked: &mut Asked<C>) -> Result<(), HttpError> {
        let find = Arc::clone(&self.find);
        let Some(who) = blocking(move || Ok(find())).await.ok().flatten() else { return Ok(()) };
        let found = who.get_credential().await;
        let found =
            found.map_err(|failed| HttpError::new(HttpErrorKind::Unknown, NotRenewed(Failed::from(&failed).detail)))?;
        self.hold(&found);
        *asked = Asked { who, rests_until: Duration::ZERO };
        Ok(())
    }
}

#[async_trait]
impl<C: Signs> CredentialProvider for Signer<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        let Some(held) = self.held() else {
            let found = self.asked.lock().await.who.get_credential().await?;
            self.hold(&found);
            return Ok(found);
        };
        // Whoever asks already will know.
        let Ok(mut asked) = self.asked.try_lock() else { return Ok(held) };
        if self.clock.now() < asked.rests_until {
            return Ok(held);
        }
        match timeout(PATIENCE, asked.who.get_credential()).await {
            Ok(Ok(found)) => {
                self.hold(&found);
                Ok(found)
            }
            _ => {
                asked.rests_until = self.clock.now() + REST;
                Ok(held)
            }
        }
    }
}

#[async_trait]
impl<C: Signs> SignsAgain for Signer<C> {
    async fn sign_again(&self, refused: HttpRequest) -> Result<Option<HttpRequest>, HttpError> {
        let round = self.rounds.load(Relaxed);
        let mut asked = self.asked.lock().await;
        let is_held = || self.held().is_some_and(|held| held.has_signed(&refused));
        // Who has waited for another that asked has its answer.
        if is_held() && self.rounds.load(Relaxed) == round {
            let answer = self.ask_anew(&mut asked).await;
            self.rounds.fetch_add(1, Relaxed);
            answer?;
        }
        if is_held() {
            return Ok(None);
        }
        Ok(self.held().and_then(|held| held.sign(refused)))
    }
}

fn header<'a>(request: &'a HttpRequest, name: &str) -> Option<&'a str> {
    request.headers().get(name)?.to_str().ok()
}

fn bears(request: &HttpRequest, token: &str) -> bool {
    header(request, AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer ")) == Some(token)
}

fn bearing(mut request: HttpRequest, token: &str) -> Option<HttpRequest> {
    let bearer = format!("Bearer {token}").try_into().ok()?;
    request.headers_mut().insert(AUTHORIZATION, bearer)?;
    Some(request)
}

impl Signs for GcpCredential {
    fn has_signed(&self, request: &HttpRequest) -> bool {
        bears(request, &self.bearer)
    }

    fn sign(&self, request: HttpRequest) -> Option<HttpRequest> {
        bearing(request, &self.bearer)
    }
}

impl Signs for AzureCredential {
    fn has_signed(&self, request: &HttpRequest) -> bool {
        matches!(self, AzureCredential::BearerToken(token) if bears(request, token))
    }

    fn sign(&self, request: HttpRequest) -> Option<HttpRequest> {
        match self {
            AzureCredential::BearerToken(token) => bearing(request, token),
            _ => None,
        }
    }
}

const TOKEN: &str = "x-amz-security-token";
const SUM: &str = "x-amz-content-sha256";

impl Signs for AwsCredential {
    fn has_signed(&self, request: &HttpRequest) -> bool {
        let by = format!("Credential={}/", self.key_id);
        let is_ours = header(request, AUTHORIZATION.as_str()).is_some_and(|value| value.contains(&by));
        is_ours && header(request, TOKEN) == self.token.as_deref()
    }

    fn sign(&self, mut request: HttpRequest) -> Option<HttpRequest> {
        let before = header(&request, AUTHORIZATION.as_str())?.to_owned();
        // `AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261126/us-east-1/s3/aws4_request, SignedHeaders=...`
        let mut scope = before.split_once("Credential=")?.1.split(',').next()?.rsplit('/').skip(1);
        let (service, region) = (scope.next()?, scope.next()?);
        let covers_body = header(&request, SUM) != Some("UNSIGNED-PAYLOAD");
        for name in [AUTHORIZATION.as_str(), TOKEN, SUM] {
            request.headers_mut().remove(name);
        }
        let signs = AwsAuthorizer::new(self, service, region).with_sign_payload(covers_body);
        signs.try_authorize(&mut request, None).ok()?;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> HttpRequest {
        let request = hyper::Request::put("https://b.s3.eu-west-1.amazonaws.com/a%20b?partNumber=1&uploadId=u");
        let request = request.header("x-amz-checksum-crc64nvme", "AAAA").header("user-agent", "trainit");
        request.body("bytes".to_owned().into()).expect("a request")
    }

    #[test]
    fn what_is_signed_again_is_as_if_nobody_had_signed_it_before() {
        let of = |id: &str| AwsCredential {
            key_id: id.to_owned(),
            secret_key: format!("secret of {id}"),
            token: Some(format!("token of {id}")),
        };
        let (old, new) = (of("OLD"), of("NEW"));
        for covers_body in [false, true] {
            let signed = |by: &AwsCredential| {
                let (mut request, signs) = (request(), AwsAuthorizer::new(by, "s3", "eu-west-1"));
                signs.with_sign_payload(covers_body).try_authorize(&mut request, None).expect("signs");
                request
            };
            let again = || new.sign(signed(&old)).expect("signs");
            // A second may begin in between.
            assert!((0..5).any(|_| again().headers() == signed(&new).headers()), "{:?}", again().headers());
            assert!(old.has_signed(&signed(&old)) && !new.has_signed(&signed(&old)));
            assert!(new.has_signed(&again()) && !old.has_signed(&again()));
        }
        assert!(new.sign(request()).is_none(), "nobody signed it");
    }

    #[test]
    fn a_bearer_takes_the_place_of_another_and_signs_nothing_that_had_none() {
        let [old, new] = ["old", "new"].map(|token| GcpCredential { bearer: token.to_owned() });
        let azure = AzureCredential::BearerToken("new".to_owned());
        let borne = || {
            let mut request = request();
            request.headers_mut().insert(AUTHORIZATION, "Bearer old".parse().expect("a value"));
            request
        };
        assert!(old.has_signed(&borne()) && !new.has_signed(&borne()) && !azure.has_signed(&borne()));
        assert!(new.has_signed(&new.sign(borne()).expect("signs")));
        assert!(azure.has_signed(&azure.sign(borne()).expect("signs")));
        assert!(new.sign(request()).is_none() && azure.sign(request()).is_none());
    }
}
