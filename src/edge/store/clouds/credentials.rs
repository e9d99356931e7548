//! Credentials that come from elsewhere than the environment. The last ones stay in use while no others are to be had:
//! mostly they hold for some minutes more.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use object_store::CredentialProvider;
use tokio::time::timeout;

use crate::edge::clock::Clock;

/// So long others are waited for while there are old ones, and so long they are not asked for again where none came.
const TIMEOUT: Duration = Duration::from_secs(3);
const REST: Duration = Duration::from_secs(30);

pub(in crate::edge::store) type Provider<C> = Arc<dyn CredentialProvider<Credential = C>>;

pub(in crate::edge::store) struct Kept<C> {
    source: Provider<C>,
    clock: Clock,
    /// The last ones, and until when they are not asked for again.
    last: Mutex<(Option<Arc<C>>, Duration)>,
}

impl<C> fmt::Debug for Kept<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept(..)")
    }
}

impl<C> Kept<C> {
    pub(in crate::edge::store) fn of(source: &Provider<C>) -> Provider<C>
    where
        C: fmt::Debug + Send + Sync + 'static,
    {
        Arc::new(Kept { source: Arc::clone(source), clock: Clock::start(), last: Mutex::default() })
    }
}

#[async_trait]
impl<C: fmt::Debug + Send + Sync> CredentialProvider for Kept<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        let lock = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, rests_until) = lock().clone();
        let found = match &last {
            Some(last) if self.clock.now() < rests_until => return Ok(Arc::clone(last)),
            Some(_) => timeout(TIMEOUT, self.source.get_credential()).await.ok().and_then(Result::ok),
            None => Some(self.source.get_credential().await?),
        };
        let rests_until = if found.is_some() { Duration::ZERO } else { self.clock.now() + REST };
        let held = found.or(last);
        *lock() = (held.clone(), rests_until);
        held.ok_or(object_store::Error::NotImplemented { operation: "sign".into(), implementer: "trainit".into() })
    }
}
