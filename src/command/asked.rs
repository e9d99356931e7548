//! What `run` was asked to do: every topic read and checked in one place, so that `inspect` complains of what `run` would
//! refuse, and of all of it at once.

use std::time::Duration;

use super::cluster::Wanted;
use super::keeping::Keeping;
use crate::rules::cluster::spec::ClusterError;
use crate::rules::env::Env;
use crate::rules::framework::Resolved;
use crate::rules::framework::peers::{Peer, Scope, to_reach};
use crate::rules::gpu::Discovery;
use crate::rules::preempt;
use crate::settings::cluster::peers as read_peers;
use crate::settings::gpus::Gpus;
use crate::settings::metrics::{Collected, collected};
use crate::settings::run::{RunSettings, read as read_run};
use crate::settings::{Complaint, Reader, gpus};

/// The settings of `run`, by topic.
pub(super) struct Asked {
    pub(super) run: RunSettings,
    pub(super) keeping: Keeping,
    pub(super) gpus: Gpus,
    pub(super) collected: Option<Collected>,
    cluster: Wanted,
    wait: Option<(Duration, Scope)>,
}

/// Where this replica stands.
pub(super) struct Placed {
    pub(super) resolved: Resolved,
    /// Whom it waits for, and how long; `None`: nobody.
    pub(super) peers: Option<(Duration, Vec<Peer>)>,
}

impl Asked {
    /// Reads them for a subcommand (a bit of [`crate::settings::defs::on`]); mistakes go to the reader.
    pub(super) fn read(reader: &mut Reader<'_>, sub: u8, env: &Env) -> Asked {
        let asked = Asked {
            run: read_run(reader),
            keeping: Keeping::read(reader),
            cluster: Wanted::read(reader),
            wait: read_peers(reader),
            gpus: gpus::read(reader, sub, env),
            collected: collected(reader, env),
        };
        // Whoever named an address wants no other one to be asked.
        let unusable = preempt::unusable(asked.run.preemption, env);
        reader.complaints.extend(unusable.map(|(name, message)| Complaint { place: name.to_owned(), message }));
        asked
    }

    /// Finds this replica's place; `discover` is asked only where it matters. Errors: all that is wrong with this start,
    /// the reader's complaints first.
    pub(super) fn place(
        &self,
        reader: &Reader<'_>,
        env: &Env,
        discover: impl FnOnce() -> Discovery,
    ) -> Result<Placed, Vec<ClusterError>> {
        let resolved = self.cluster.resolve(reader, env, &[], discover)?;
        let peers = self.wait.map(|(limit, scope)| Ok((limit, to_reach(&resolved.spec, scope)?)));
        let peers = peers.transpose().map_err(|error: ClusterError| vec![error])?;
        Ok(Placed { resolved, peers: peers.filter(|(_, peers)| !peers.is_empty()) })
    }
}
