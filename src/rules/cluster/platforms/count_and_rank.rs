//! Launchers that start one trainit on each node and give it three facts: the number of nodes, the rank of this node and
//! the address of the first one. A launcher is a row here.
//!
//! Sources: SkyPilot, "Distributed Multi-Node Jobs"; dstack, "Distributed tasks"; LeaderWorkerSet, "Labels, annotations and
//! environment variables"; Metaflow, `@parallel`; Beaker, "Distributed training" and "Environment variables". A single node
//! is ignored, and without a leader the replicas may be independent, so `signs` warns. Deliberately absent: launchers whose
//! index counts within a role (`unread`).

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::parse::input::{Input, host, rank, within};
use crate::cluster::spec::{ClusterError, Leader, PlatformName, Reading, role_of_rank};
use crate::cluster::unread::signs::Signs;
use crate::cluster::written::{Job, Limit, Notice, Permanent, Replica, Restarts, Simulated, Success};

/// The variables of one launcher.
struct Row {
    name: PlatformName,
    count: &'static str,
    rank: &'static str,
    /// The host of the first node, or the hosts of all, best first.
    leaders: &'static [&'static str],
}

const SKYPILOT_ROW: Row = Row {
    name: PlatformName("skypilot"),
    count: "SKYPILOT_NUM_NODES",
    rank: "SKYPILOT_NODE_RANK",
    leaders: &["SKYPILOT_NODE_IPS"],
};
const DSTACK_ROW: Row = Row {
    name: PlatformName("dstack"),
    count: "DSTACK_NODES_NUM",
    rank: "DSTACK_NODE_RANK",
    leaders: &["DSTACK_MASTER_NODE_IP", "DSTACK_NODES_IPS"],
};
const METAFLOW_ROW: Row = Row {
    name: PlatformName("metaflow"),
    count: "MF_PARALLEL_NUM_NODES",
    rank: "MF_PARALLEL_NODE_INDEX",
    leaders: &["MF_PARALLEL_MAIN_IP"],
};
const BEAKER_ROW: Row = Row {
    name: PlatformName("beaker"),
    count: "BEAKER_REPLICA_COUNT",
    rank: "BEAKER_REPLICA_RANK",
    leaders: &["BEAKER_LEADER_REPLICA_HOSTNAME", "BEAKER_LEADER_REPLICA_IP"],
};
const LWS_ROW: Row = Row {
    name: PlatformName("lws"),
    count: "LWS_GROUP_SIZE",
    rank: "LWS_WORKER_INDEX",
    leaders: &["LWS_LEADER_ADDRESS"],
};

pub(in crate::cluster) const SKYPILOT: Platform = Platform {
    first: First::Host(&[SKYPILOT_ROW.rank]),
    signs: &[SKYPILOT_ROW.signs("SkyPilot", &[SKYPILOT_ROW.count, "SKYPILOT_NODE_IPS"], &[SKYPILOT_ROW.rank])],
    simulated: Some(SKYPILOT_ROW.simulated(|job, replica| SKYPILOT_ROW.write(job, replica), Permanent::All)),
    ..Platform::of(
        &[SKYPILOT_ROW.name],
        &[SKYPILOT_ROW.count, SKYPILOT_ROW.rank, "SKYPILOT_NODE_IPS"],
        "SKYPILOT_NUM_NODES, SKYPILOT_NODE_RANK and SKYPILOT_NODE_IPS of several nodes",
        |input, _| SKYPILOT_ROW.read(input),
    )
};

pub(in crate::cluster) const DSTACK: Platform = Platform {
    first: First::Host(&[DSTACK_ROW.rank]),
    signs: &[DSTACK_ROW.signs("dstack", &[DSTACK_ROW.count, "DSTACK_NODES_IPS"], &[DSTACK_ROW.rank])],
    simulated: Some(DSTACK_ROW.simulated(|job, replica| DSTACK_ROW.write(job, replica), Permanent::All)),
    ..Platform::of(
        &[DSTACK_ROW.name],
        &[DSTACK_ROW.count, DSTACK_ROW.rank, "DSTACK_MASTER_NODE_IP", "DSTACK_NODES_IPS"],
        "DSTACK_NODES_NUM, DSTACK_NODE_RANK and DSTACK_MASTER_NODE_IP of several nodes",
        |input, _| DSTACK_ROW.read(input),
    )
};

pub(in crate::cluster) const METAFLOW: Platform = Platform {
    first: First::Host(&[METAFLOW_ROW.rank]),
    signs: &[METAFLOW_ROW.signs("Metaflow", &[METAFLOW_ROW.count], &[METAFLOW_ROW.rank])],
    simulated: Some(METAFLOW_ROW.simulated(|job, replica| METAFLOW_ROW.write(job, replica), Permanent::None)),
    ..Platform::of(
        &[METAFLOW_ROW.name],
        &[METAFLOW_ROW.count, METAFLOW_ROW.rank, "MF_PARALLEL_MAIN_IP"],
        "MF_PARALLEL_NUM_NODES, MF_PARALLEL_NODE_INDEX and MF_PARALLEL_MAIN_IP of several nodes",
        |input, _| METAFLOW_ROW.read(input),
    )
};

pub(in crate::cluster) const BEAKER: Platform = Platform {
    first: First::Host(&[BEAKER_ROW.rank]),
    signs: &[BEAKER_ROW.signs("Beaker", &[BEAKER_ROW.count], &[BEAKER_ROW.rank])],
    simulated: Some(BEAKER_ROW.simulated(|job, replica| BEAKER_ROW.write(job, replica), Permanent::All)),
    ..Platform::of(
        &[BEAKER_ROW.name],
        &[BEAKER_ROW.count, BEAKER_ROW.rank, "BEAKER_LEADER_REPLICA_HOSTNAME", "BEAKER_LEADER_REPLICA_IP"],
        "BEAKER_REPLICA_COUNT, BEAKER_REPLICA_RANK and BEAKER_LEADER_REPLICA_HOSTNAME (leaderSelection: true)",
        |input, _| BEAKER_ROW.read(input),
    )
};

pub(in crate::cluster) const LWS: Platform = Platform {
    first: First::Host(&[LWS_ROW.rank]),
    signs: &[LWS_ROW.signs("LeaderWorkerSet", &[LWS_ROW.count], &[LWS_ROW.rank])],
    simulated: Some(LWS_ROW.simulated(|job, replica| LWS_ROW.write(job, replica), Permanent::None)),
    ..Platform::of(
        &[LWS_ROW.name],
        &[LWS_ROW.count, LWS_ROW.rank, "LWS_LEADER_ADDRESS"],
        "LWS_GROUP_SIZE, LWS_WORKER_INDEX and LWS_LEADER_ADDRESS of several pods",
        |input, _| LWS_ROW.read(input),
    )
};

impl Row {
    const fn signs(
        &self,
        launcher: &'static str,
        counts: &'static [&'static str],
        places: &'static [&'static str],
    ) -> Signs {
        Signs { launcher, counts, places, leaders: self.leaders, ..Signs::NODES }
    }

    const fn simulated(
        &self,
        write: fn(&Job, &Replica) -> Vec<(&'static str, String)>,
        permanent: Permanent,
    ) -> Simulated {
        Simulated {
            name: self.name.0,
            write,
            other_roles: &[],
            restarts: Restarts { whole_job: true, limit: Limit::None, permanent },
            success: Success::OfAll,
            notice: Notice::Signal,
        }
    }

    /// Reads the place of the node.
    fn read(&self, input: &Input<'_>) -> Result<Option<Reading>, ClusterError> {
        let Some(own) = input.env.given(self.rank) else { return Ok(None) };
        let Some(nodes) = input.count(self.count)?.filter(|nodes| *nodes > 1) else { return Ok(None) };
        let named = self.leaders.iter().find_map(|name| Some((*name, input.env.given(name)?)));
        if named.is_none() && input.options.leader.is_none() {
            return Ok(None);
        }
        let node_rank = rank(self.rank, own)?;
        within(self.rank, node_rank, self.count, nodes)?;
        let first =
            |list: &str| list.split([',', ' ', '\n']).map(str::trim).find(|entry| !entry.is_empty()).map(str::to_owned);
        let leader = named.map(|(name, list)| host(name, &first(list).unwrap_or_default())).transpose()?;
        Ok(Some(Reading {
            leader: Leader { host: leader, ..Leader::default() },
            leader_variable: self.leaders[0],
            ..Reading::of(self.name, role_of_rank(node_rank), node_rank, nodes)
        }))
    }

    /// The variables of a node, and the port that a job sets itself.
    fn write(&self, job: &Job, replica: &Replica) -> Vec<(&'static str, String)> {
        vec![
            (self.count, job.training().count().to_string()),
            (self.rank, job.rank(replica).to_string()),
            (self.leaders[0], job.leader_host().to_owned()),
            ("MASTER_PORT", job.rendezvous_port.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::framework::resolve;
    use crate::cluster::spec::{ClusterOptions, Explicit};
    use crate::process::env::Env;

    const ROWS: [&Row; 5] = [&SKYPILOT_ROW, &DSTACK_ROW, &METAFLOW_ROW, &BEAKER_ROW, &LWS_ROW];

    /// The platform, the variables for the command and the codes of the warnings; or the code of the error.
    type Found = Result<(&'static str, Vec<(String, String)>, Vec<&'static str>), &'static str>;

    fn found(pairs: &[(&str, &str)], flags: Option<[&str; 3]>) -> Found {
        let explicit =
            |at: usize| flags.map(|flags| Explicit { place: "a flag".to_owned(), text: flags[at].to_owned() });
        let (nnodes, node_rank, leader) = (explicit(0), explicit(1), explicit(2));
        let options = ClusterOptions { nnodes, node_rank, leader, ..ClusterOptions::default() };
        let env = Env::from_pairs(pairs.iter().copied());
        let found =
            resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).map_err(|error| error.code)?;
        let set = found.changes().set.into_iter().collect();
        Ok((found.spec.reading.platform.word(), set, found.warnings.iter().map(|warning| warning.code).collect()))
    }

    #[test]
    fn a_node_of_two_gets_what_the_flags_would_give() {
        for row in ROWS {
            for leader in row.leaders {
                for own in ["0", "1"] {
                    let job = [(row.count, "2"), (row.rank, own), (*leader, "10.0.0.5\n10.0.0.6")];
                    let (platform, set, warned) = found(&job, None).expect("a job");
                    let (_, by_flags, _) = found(&[], Some(["2", own, "10.0.0.5:29500"])).expect("a job");
                    assert_eq!((platform, set, warned), (row.name.0, by_flags, vec![]), "{job:?}");
                }
            }
        }
    }

    #[test]
    fn a_malformed_or_missing_variable_is_an_error_or_one_warning_and_never_a_silent_single_replica() {
        for row in ROWS {
            let leader = row.leaders[0];
            let with = |count, own, host| found(&[(row.count, count), (row.rank, own), (leader, host)], None);
            for count in ["two", "0", "-1", "2 2", "2\n2", "4294967296"] {
                assert_eq!(with(count, "1", "a").err(), Some("bad_cluster"), "{count}");
            }
            for own in ["one", "-1", "1 1"] {
                assert_eq!(with("2", own, "a").err(), Some("bad_task_index"), "{own}");
            }
            assert_eq!(with("2", "2", "a").err(), Some("task_index_out_of_range"));
            assert_eq!(with("2", "1", "http://a").err(), Some("bad_address"));
            let whole = [(row.count, "2"), (row.rank, "1"), (leader, "a")];
            for at in 0..3 {
                let half: Vec<_> =
                    whole.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, pair)| *pair).collect();
                let (platform, _, warned) = found(&half, None).expect("a warning");
                assert_eq!((platform, warned), ("none", vec!["node_rank_unknown"]), "{half:?}");
            }
            let (platform, set, warned) = with("1", "0", "a").expect("a single node");
            assert_eq!((platform, set, warned), ("none", vec![], vec![]), "a single node is no cluster");
        }
    }

    #[test]
    fn variables_of_another_launcher_that_disagree_are_named() {
        for row in ROWS {
            let job = [(row.count, "2"), (row.rank, "1"), (row.leaders[0], "a")];
            let torch = [("RANK", "0"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "a")];
            let (_, _, warned) = found(&[&job[..], &torch[..]].concat(), None).expect("a job");
            assert_eq!(warned, ["env_conflict"], "{job:?}");
        }
    }
}
