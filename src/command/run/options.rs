//! The options of `run`: every topic is read and checked in one place, so that `inspect` reports the same mistakes as
//! `run`, and all of them at once.

use std::time::Duration;

use crate::command::checkpoint::options::Keeping;
use crate::command::cluster::Wanted;
use crate::command::run::gang;
use crate::rules::cluster::framework::Resolved;
use crate::rules::cluster::peers::{Peer, Scope, to_reach};
use crate::rules::cluster::spec::ClusterError;
use crate::rules::gang::place::Place;
use crate::rules::gpu::Discovery;
use crate::rules::preempt;
use crate::rules::process::env::Env;
use crate::settings::cluster::peers as read_peers;
use crate::settings::fetch::{self, Fetching};
use crate::settings::gang::{GangSettings, read as read_gang};
use crate::settings::gpus::{self, Gpus};
use crate::settings::metrics::{Collected, collection};
use crate::settings::run::{RunSettings, read as read_run};
use crate::settings::values::reader::unquoted;
use crate::settings::{Complaint, Reader};

/// CUDA finds no device if the value has a quotation mark.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The settings of `run`, by topic.
pub(in crate::command) struct RunOptions {
    pub(in crate::command) run: RunSettings,
    pub(in crate::command) keeping: Keeping,
    pub(in crate::command) fetches: Vec<Fetching>,
    pub(in crate::command) gpus: Gpus,
    pub(in crate::command) collected: Option<Collected>,
    pub(in crate::command) gang: GangSettings,
    cluster: Wanted,
    wait: Option<(Duration, Scope)>,
}

/// The place of this replica.
pub(in crate::command) struct Placed {
    pub(in crate::command) resolved: Resolved,
    /// The peers to wait for, and the limit; `None`: no waiting.
    pub(in crate::command) peers: Option<(Duration, Vec<Peer>)>,
    /// Its seat in a gang, if one forms.
    pub(in crate::command) gang: Option<Place>,
}

impl RunOptions {
    /// Reads them for a subcommand (a bit of [`crate::settings::defs::on`]). Mistakes are collected in the reader.
    pub(in crate::command) fn read(reader: &mut Reader<'_>, sub: u8, env: &Env) -> RunOptions {
        let options = RunOptions {
            run: read_run(reader),
            keeping: Keeping::read(reader),
            fetches: fetch::read(reader, env),
            cluster: Wanted::read(reader, sub),
            wait: read_peers(reader),
            gang: read_gang(reader),
            gpus: gpus::read(reader, sub, env),
            collected: collection(reader, env),
        };
        let visible = env.get(VISIBLE).map(unquoted).and_then(Result::err);
        reader.complaints.extend(visible.map(|message| Complaint { place: VISIBLE.to_owned(), message }));
        // If the user named an unusable address, no other address may be used instead.
        let unusable = preempt::unusable(options.run.preemption, env);
        reader.complaints.extend(unusable.map(|(name, message)| Complaint { place: name.to_owned(), message }));
        options
    }

    /// Reads this replica's place; `discover` is called only if it matters. Errors: all mistakes of this start, those
    /// of the reader first.
    pub(in crate::command) fn place(
        &self,
        reader: &Reader<'_>,
        env: &Env,
        discover: impl FnOnce() -> Discovery,
    ) -> Result<Placed, Vec<ClusterError>> {
        let resolved = self.cluster.resolve(reader, env, &[], discover)?;
        let alone = u32::try_from(resolved.launches.len()).unwrap_or(u32::MAX);
        let count = resolved.spec.reading.process.as_ref().map_or(alone, |process| process.local_size.unwrap_or(alone));
        if let Some(reason) = self.collected.as_ref().and_then(|collected| collected.searched.empty_reason(count)) {
            return Err(vec![ClusterError::new("metric_rank", reader.place("metric-rank"), reason)]);
        }
        let peers = self.wait.map(|(limit, scope)| Ok((limit, to_reach(&resolved.spec, scope)?)));
        let peers = peers.transpose().map_err(|error: ClusterError| vec![error])?;
        let gang = gang::placed(&self.gang, &resolved).map_err(|error| vec![error])?;
        // A gang waits for its replicas itself.
        let peers = peers.filter(|(_, peers)| !peers.is_empty() && gang.is_none());
        Ok(Placed { resolved, peers, gang })
    }
}
