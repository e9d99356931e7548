//! Whom a replica waits for before its trainer starts: the leader, or everybody else (replicas start at different times).
//!
//! The leader is there when somebody listens at its rendezvous port, or where a framework says that its leader listens
//! instead. The others' trainers may wait themselves, so of them it
//! is enough that the name resolves and the machine answers, if only that nobody listens yet. Deliberately absent: dialling.

use super::FRAMEWORKS;
use super::vars::Elsewhere;
use crate::rules::cluster::address::Address;
use crate::rules::cluster::spec::{ClusterError, ClusterSpec};

/// Who is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Node rank 0.
    Leader,
    /// Every other training replica.
    All,
}

/// One to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Where.
    pub address: Address,
    /// Where somebody may listen instead.
    pub instead: Option<Elsewhere>,
    /// Whether somebody must listen there.
    pub must_listen: bool,
}

/// The peers of this replica; none where it does not train, is alone, or leads and waits for the leader.
/// Errors: `missing_leader` and `bad_setting` where nobody says where they are.
pub fn to_reach(spec: &ClusterSpec, scope: Scope) -> Result<Vec<Peer>, ClusterError> {
    let (Some(own), Some(nodes @ 2..)) = (spec.said.node_rank, spec.said.num_nodes) else { return Ok(Vec::new()) };
    if spec.said.hands_off || (scope == Scope::Leader && own == 0) {
        return Ok(Vec::new());
    }
    let Some(leader) = &spec.leader else {
        let message = "cannot be followed: nobody says where the leader is; set TRAINIT_LEADER=HOST:PORT";
        return Err(ClusterError::new("missing_leader", "--wait-for-peers", message));
    };
    let mut elsewhere = FRAMEWORKS.iter().filter_map(|framework| (framework.leader_elsewhere)(spec));
    let instead = elsewhere.find(|elsewhere| elsewhere.address != *leader);
    let leader = Peer { address: leader.clone(), instead, must_listen: true };
    if scope == Scope::Leader {
        return Ok(vec![leader]);
    }
    let Some(hosts) = spec.said.hosts.as_ref().filter(|hosts| hosts.len() == nodes as usize) else {
        let message = format!(
            "cannot be followed: {} tells the leader's address only, not those of all {nodes} nodes; use leader",
            spec.said.platform.word()
        );
        return Err(ClusterError::new("bad_setting", "--peers all", message));
    };
    let peers = hosts.iter().zip(0u32..).filter(|(_, rank)| *rank != own).map(|(host, rank)| match rank {
        0 => leader.clone(),
        _ => Peer {
            address: Address { host: host.clone(), port: leader.address.port },
            instead: None,
            must_listen: false,
        },
    });
    Ok(peers.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::cluster::detect;
    use crate::rules::cluster::input::Input;
    use crate::rules::cluster::spec::{ClusterOptions, Explicit};
    use crate::rules::env::Env;

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

    fn told(spec: &ClusterSpec, scope: Scope) -> Vec<(String, bool)> {
        let peers = to_reach(spec, scope).expect("known");
        peers.into_iter().map(|peer| (peer.address.to_string(), peer.must_listen)).collect()
    }

    #[test]
    fn the_leader_must_listen_and_waits_for_nobody_itself() {
        assert_eq!(told(&slurm("2"), Scope::Leader), [("n0:15007".to_owned(), true)]);
        assert_eq!(told(&slurm("0"), Scope::Leader), []);
    }

    #[test]
    fn of_all_the_others_only_the_leader_must_listen() {
        let seen = [("n0:15007".to_owned(), true), ("n2:15007".to_owned(), false)];
        assert_eq!(told(&slurm("1"), Scope::All), seen);
        assert_eq!(
            told(&slurm("0"), Scope::All).iter().map(|(_, listens)| *listens).collect::<Vec<_>>(),
            [false, false]
        );
    }

    #[test]
    fn where_the_platform_names_tensorflows_addresses_the_leader_may_listen_there_instead() {
        let instead = |pairs: &[(&str, &str)]| {
            let peers = to_reach(&spec(pairs, &ClusterOptions::default()), Scope::Leader).expect("known");
            peers
                .into_iter()
                .map(|peer| (peer.address.to_string(), peer.instead.map(|elsewhere| elsewhere.address.to_string())))
                .collect::<Vec<_>>()
        };
        let cluster = r#"{"cluster":{"workerpool0":["a:2222"],"workerpool1":["b:2222"]},"task":{"type":"workerpool1","index":0}}"#;
        let found = instead(&[("CLUSTER_SPEC", cluster)]);
        assert_eq!(found, [("a:3333".to_owned(), Some("a:2222".to_owned()))]);
        let workers = r#"{"cluster":{"worker":["a:2222","b:2222"]},"task":{"type":"worker","index":1}}"#;
        assert_eq!(instead(&[("TF_CONFIG", workers)]), [("a:2222".to_owned(), None)]);
    }

    #[test]
    fn one_node_has_no_peers_and_a_parameter_server_waits_for_nobody() {
        assert_eq!(told(&spec(&[], &ClusterOptions::default()), Scope::All), []);
        let ps = r#"{"cluster":{"chief":["a:1"],"worker":["b:1"],"ps":["c:1"]},"task":{"type":"ps","index":0}}"#;
        assert_eq!(told(&spec(&[("TF_CONFIG", ps)], &ClusterOptions::default()), Scope::All), []);
    }

    #[test]
    fn who_cannot_be_known_cannot_be_waited_for() {
        let explicit = |text: &str| Some(Explicit { place: "x".into(), text: text.into() });
        let options = ClusterOptions {
            nnodes: explicit("2"),
            node_rank: explicit("1"),
            leader: explicit("h:1"),
            ..ClusterOptions::default()
        };
        let spec = spec(&[], &options);
        assert_eq!(told(&spec, Scope::Leader), [("h:1".to_owned(), true)]);
        assert_eq!(to_reach(&spec, Scope::All).expect_err("unknown").code, "bad_setting");
    }
}
