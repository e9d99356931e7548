//! The gang: carries between the protocol (`rules/gang`), its connections (`edge/net/gang`) and the job's machine.
//!
//! A thread of its own ([`thread`]) holds the connections, because a beat that waits behind other work is a false death. It
//! is a member's one link ([`leader_link`]) or the leader with its links to all ([`leader`]). The member itself lives in the main
//! loop ([`member`]): its lease is a timer there, so a loop that stands still trains no step after it.

mod borrowed_port;
mod claims;
mod key;
mod leader;
mod leader_link;
mod listener;
mod member;
mod referral;
mod thread;

use std::path::PathBuf;
use std::time::Duration;

pub use key::KeySource;
pub(super) use member::GangMember;

use crate::edge::store::{Access, Store, StoreError};
use crate::rules::gang::Timing;
use crate::rules::gang::agreement::Mode;
use crate::rules::gang::budget::Limits;
use crate::rules::gang::leader::OnNotice;
use crate::rules::gang::place::Place;
use crate::rules::store::address::Address;

/// The store that all replicas of the job share.
#[derive(Debug, Clone)]
pub struct SharedStore {
    /// Its root, not a node's corner of it.
    pub address: Address,
    /// What it takes to open it.
    pub access: Access,
}

impl SharedStore {
    /// Opens it. Errors: as [`Store::open`].
    async fn open(&self) -> Result<Store, StoreError> {
        Store::open(&self.address, true, &self.access).await
    }
}

/// What a replica is told of its gang.
#[derive(Debug)]
pub struct Gang {
    /// Its seat, and where the leader is.
    pub place: Place,
    /// Where the common key comes from.
    pub key: KeySource,
    /// Where its key and its generations are kept, if the job has a store.
    pub store: Option<SharedStore>,
    /// Where the leader puts the file by which the others see whether they share its directory.
    pub checkpoint_dir: Option<PathBuf>,
    /// The times.
    pub timing: Timing,
    /// How the nodes keep their checkpoints.
    pub mode: Mode,
    /// Whether the job begins anew although there are steps.
    pub from_scratch: bool,
    /// What the others do after a notice to one replica.
    pub on_notice: OnNotice,
    /// The restart budget.
    pub limits: Limits,
    /// No replica's step moves for so long: it hangs.
    pub hang: Option<Duration>,
    /// This host's name, for people.
    pub host: String,
}
