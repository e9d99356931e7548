//! The gang: connects the protocol (`rules/gang`), its connections (`edge/net/gang`) and the job machine.
//!
//! A separate thread ([`thread`]) holds the connections, because a beat that is delayed by other work looks like a lost
//! replica. It runs a member's link to the leader ([`leader_link`]), or the leader with its links to all members
//! ([`leader`]). The member's state machine runs in the main loop ([`member`]). Its lease is a timer of that loop, so the
//! trainer of a frozen loop runs no step after the lease.

mod borrowed_port;
mod claims;
mod key;
mod leader;
mod leader_link;
mod listener;
mod member;
mod referral;
mod thread;
mod trainers_connection;

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
use crate::rules::gang::settings::Settings;
use crate::rules::store::address::Address;

/// The pause before a retry if the store does not answer.
const STORE_PAUSE: Duration = Duration::from_secs(2);

/// The store that all replicas of the job share.
#[derive(Debug, Clone)]
pub struct SharedStore {
    /// Its root, not the prefix of a node.
    pub address: Address,
    /// The options to open it.
    pub access: Access,
}

impl SharedStore {
    /// Opens it. Errors: as [`Store::open`].
    async fn open(&self) -> Result<Store, StoreError> {
        Store::open(&self.address, true, &self.access).await
    }
}

/// The configuration of a replica's gang.
#[derive(Debug)]
pub struct Gang {
    /// The seats, and the address of the leader.
    pub place: Place,
    /// The source of the common key.
    pub key: KeySource,
    /// The store for the key and the claims, if the job has one.
    pub store: Option<SharedStore>,
    /// The directory for the leader's file, by which the other replicas detect whether they share the directory.
    pub checkpoint_dir: Option<PathBuf>,
    /// The times.
    pub timing: Timing,
    /// How the nodes keep their checkpoints.
    pub mode: Mode,
    /// Whether the job starts from the beginning although checkpoints exist.
    pub from_scratch: bool,
    /// The reaction of the other replicas to a notice to one.
    pub on_notice: OnNotice,
    /// The restart budget.
    pub limits: Limits,
    /// The gang hangs if no replica's step advances for this long.
    pub hang: Option<Duration>,
    /// The platform's id of the job; empty if the platform gives none.
    pub job_id: String,
    /// This host's name, for people.
    pub host: String,
}

impl Gang {
    /// The settings that all replicas must share.
    fn settings(&self) -> Settings {
        Settings::new(env!("TRAINIT_VERSION"), &self.place.roster, self.mode)
    }
}
