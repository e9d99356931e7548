//! The peers that a replica waits for before its trainer starts: the leader, or all others (replicas start at different
//! times).
//!
//! The leader is ready when a server listens at its rendezvous port, or at another address that a framework's leader
//! uses. The other trainers may wait themselves, so a name that resolves and a machine that answers is enough for them,
//! even if it refuses the connection. Deliberately absent: dialling.

use super::framework::FRAMEWORKS;
use super::framework::vars::AlternativeAddress;
use super::parse::address::Address;
use super::spec::{ClusterError, ClusterSpec};

/// The peers to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Node rank 0.
    Leader,
    /// Every other training replica.
    All,
}

/// A peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: Address,
    /// The other address where it may listen.
    pub alternative: Option<AlternativeAddress>,
    /// Whether a server must listen there.
    pub must_listen: bool,
}

/// The peers of this replica. There are none if it does not train, is the only one, or is the leader that would wait
/// for itself. Errors: `missing_leader` and `bad_setting` if their addresses are unknown.
pub fn to_reach(spec: &ClusterSpec, scope: Scope) -> Result<Vec<Peer>, ClusterError> {
    let (Some(own), Some(nodes @ 2..)) = (spec.reading.node_rank, spec.reading.num_nodes) else {
        return Ok(Vec::new());
    };
    if spec.reading.hands_off || (scope == Scope::Leader && own == 0) {
        return Ok(Vec::new());
    }
    let Some(leader) = &spec.leader else {
        let message = "cannot be followed, because the leader's address is unknown; set TRAINIT_LEADER=HOST:PORT";
        return Err(ClusterError::new("missing_leader", "--wait-for-peers", message));
    };
    let mut alternatives = FRAMEWORKS.iter().filter_map(|framework| (framework.alternative_leader)(spec));
    let alternative = alternatives.find(|alternatives| alternatives.address != *leader);
    let leader = Peer { address: leader.clone(), alternative, must_listen: true };
    if scope == Scope::Leader {
        return Ok(vec![leader]);
    }
    let Some(hosts) = spec.reading.hosts.as_ref().filter(|hosts| hosts.len() == nodes as usize) else {
        let message = format!(
            "cannot be followed, because {} gives only the leader's address, not those of all {nodes} nodes; give a time without all:, to wait for the leader",
            spec.reading.platform.word()
        );
        return Err(ClusterError::new("bad_setting", "--wait-for-peers all:", message));
    };
    let peers = hosts.iter().zip(0u32..).filter(|(_, rank)| *rank != own).map(|(host, rank)| match rank {
        0 => leader.clone(),
        _ => Peer {
            address: Address { host: host.clone(), port: leader.address.port },
            alternative: None,
            must_listen: false,
        },
    });
    Ok(peers.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::detect;
    use crate::cluster::parse::input::Input;
    use crate::cluster::spec::{ClusterOptions, Explicit};
    use crate::process::env::Env;

    fn spec(pairs: &[(&str, &str)], options: &ClusterOptions) -> ClusterSpec {
        let env = Env::from_pairs(pairs.iter().copied());
        detect(&Input { env: &env, files: &|_| Ok(None), options }, &[]).expect("a cluster").spec
    }

    fn slurm(own: &str) -> ClusterSpec {
        let pairs = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_PROCID", own),
            ("SLURM_NTASKS", "3"),
            ("SLURM_NNODES", "3"),
            ("SLURM_NODEID", own),
            ("SLURM_JOB_NODELIST", "n[0-2]"),
        ];
        spec(&pairs, &ClusterOptions::default())
    }

    fn peers(spec: &ClusterSpec, scope: Scope) -> Vec<(String, bool)> {
        let peers = to_reach(spec, scope).expect("known");
        peers.into_iter().map(|peer| (peer.address.to_string(), peer.must_listen)).collect()
    }

    #[test]
    fn the_leader_must_listen_and_has_no_peers_itself() {
        assert_eq!(peers(&slurm("2"), Scope::Leader), [("n0:15007".to_owned(), true)]);
        assert_eq!(peers(&slurm("0"), Scope::Leader), []);
    }

    #[test]
    fn of_all_peers_only_the_leader_must_listen() {
        let seen = [("n0:15007".to_owned(), true), ("n2:15007".to_owned(), false)];
        assert_eq!(peers(&slurm("1"), Scope::All), seen);
        assert_eq!(
            peers(&slurm("0"), Scope::All).iter().map(|(_, listens)| *listens).collect::<Vec<_>>(),
            [false, false]
        );
    }

    #[test]
    fn if_the_platform_gives_tensorflows_addresses_the_leader_may_listen_there() {
        let alternative = |pairs: &[(&str, &str)]| {
            let peers = to_reach(&spec(pairs, &ClusterOptions::default()), Scope::Leader).expect("known");
            peers
                .into_iter()
                .map(|peer| {
                    (peer.address.to_string(), peer.alternative.map(|alternatives| alternatives.address.to_string()))
                })
                .collect::<Vec<_>>()
        };
        let cluster = r#"{"cluster":{"workerpool0":["a:2222"],"workerpool1":["b:2222"]},"task":{"type":"workerpool1","index":0}}"#;
        let found = alternative(&[("CLUSTER_SPEC", cluster)]);
        assert_eq!(found, [("a:3333".to_owned(), Some("a:2222".to_owned()))]);
        let workers = r#"{"cluster":{"worker":["a:2222","b:2222"]},"task":{"type":"worker","index":1}}"#;
        assert_eq!(alternative(&[("TF_CONFIG", workers)]), [("a:2222".to_owned(), None)]);
    }

    #[test]
    fn a_single_node_and_a_parameter_server_have_no_peers() {
        assert_eq!(peers(&spec(&[], &ClusterOptions::default()), Scope::All), []);
        let ps = r#"{"cluster":{"chief":["a:1"],"worker":["b:1"],"ps":["c:1"]},"task":{"type":"ps","index":0}}"#;
        assert_eq!(peers(&spec(&[("TF_CONFIG", ps)], &ClusterOptions::default()), Scope::All), []);
    }

    #[test]
    fn unknown_peers_are_an_error() {
        let explicit = |text: &str| Some(Explicit { place: "x".into(), text: text.into() });
        let options = ClusterOptions {
            nnodes: explicit("2"),
            node_rank: explicit("1"),
            leader: explicit("h:1"),
            ..ClusterOptions::default()
        };
        let spec = spec(&[], &options);
        assert_eq!(peers(&spec, Scope::Leader), [("h:1".to_owned(), true)]);
        assert_eq!(to_reach(&spec, Scope::All).expect_err("unknown").code, "bad_setting");
    }
}
