//! AWS Batch's multi-node parallel jobs: `AWS_BATCH_JOB_NUM_NODES`, `AWS_BATCH_JOB_NODE_INDEX`, and the index and
//! address of the main node ("Environment variables available in AWS Batch" and "Multi-node parallel jobs" in its user
//! guide).
//!
//! The main node has rank 0 for any index, because only its address is known; the other nodes follow in the order of
//! their indices. The main node does not get its own address, and dials its own host name. Deliberately absent: array
//! jobs, whose children are independent.

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::parse::address::parse_host;
use crate::cluster::parse::input::{Input, rank, within};
use crate::cluster::spec::{ClusterError, Leader, PlatformName, Reading, Warning, role_of_rank};
use crate::cluster::unread::signs::Signs;

const NODES: &str = "AWS_BATCH_JOB_NUM_NODES";
const INDEX: &str = "AWS_BATCH_JOB_NODE_INDEX";
const MAIN: &str = "AWS_BATCH_JOB_MAIN_NODE_INDEX";
const ADDRESS: &str = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS";

/// The main node's own address if it has no host name.
const LOOPBACK: &str = "127.0.0.1";

const NAME: PlatformName = PlatformName("aws_batch");

pub(in crate::cluster) const AWS_BATCH: Platform = Platform {
    first: First::Equal([INDEX, MAIN]),
    signs: &[Signs { launcher: "AWS Batch", counts: &[NODES], places: &[INDEX], leaders: &[ADDRESS], ..Signs::NODES }],
    ..Platform::of(
        &[NAME],
        &[NODES, INDEX, MAIN, ADDRESS],
        "AWS_BATCH_JOB_NUM_NODES and AWS_BATCH_JOB_NODE_INDEX",
        read,
    )
};

/// Reads the rank and the leader.
fn read(input: &Input<'_>, _: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let (Some(nodes), Some(own)) = (input.count(NODES)?, input.env.given(INDEX)) else { return Ok(None) };
    let (index, main) = (rank(INDEX, own)?, input.rank(MAIN)?.unwrap_or(0));
    within(INDEX, index, NODES, nodes)?;
    within(MAIN, main, NODES, nodes)?;
    let node_rank = match index {
        index if index == main => 0,
        index if index < main => index + 1,
        index => index,
    };
    let host = match input.host(ADDRESS)? {
        Some(host) => Some(host),
        None if index == main => {
            let own = input.options.hostname.as_deref().and_then(|name| parse_host(name.trim()).ok());
            Some(own.unwrap_or_else(|| LOOPBACK.to_owned()))
        }
        None => None,
    };
    Ok(Some(Reading {
        leader: Leader { host, ..Leader::default() },
        leader_variable: ADDRESS,
        ..Reading::of(NAME, role_of_rank(node_rank), node_rank, nodes)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::detect;
    use crate::cluster::first::is_first;
    use crate::cluster::spec::ClusterOptions;
    use crate::process::env::Env;

    fn env(nodes: &str, index: &str, main: &str, address: Option<&str>) -> Env {
        let pairs = [(NODES, nodes), (INDEX, index), (MAIN, main)];
        Env::from_pairs(pairs.into_iter().chain(address.map(|address| (ADDRESS, address))))
    }

    /// Rank and leader, or the code of the error.
    fn placed(env: &Env) -> Result<(Option<u32>, String), &'static str> {
        let options = ClusterOptions { hostname: Some("ip-10-0-0-9".to_owned()), ..ClusterOptions::default() };
        let found = detect(&Input { env, files: &|_| Ok(None), options: &options }, &[]).map_err(|error| error.code)?;
        Ok((found.spec.reading.node_rank, found.spec.leader.map(|leader| leader.to_string()).unwrap_or_default()))
    }

    #[test]
    fn the_main_node_is_rank_0_for_any_index_and_each_rank_exists_once() {
        for main in 0..3 {
            let place = |index: u32| {
                let address = (index != main).then_some("10.0.0.4");
                placed(&env("3", &index.to_string(), &main.to_string(), address)).expect("a place")
            };
            let mut ranks: Vec<_> = (0..3).map(|index| place(index).0).collect();
            assert_eq!(place(main), (Some(0), "ip-10-0-0-9:29500".to_owned()));
            assert!((0..3).filter(|index| *index != main).all(|index| place(index).1 == "10.0.0.4:29500"));
            ranks.sort_unstable();
            assert_eq!(ranks, [Some(0), Some(1), Some(2)]);
        }
    }

    #[test]
    fn an_impossible_index_is_refused() {
        assert_eq!(placed(&env("2", "2", "0", Some("10.0.0.4"))), Err("task_index_out_of_range"));
        assert_eq!(placed(&env("2", "1", "2", Some("10.0.0.4"))), Err("task_index_out_of_range"));
        assert_eq!(placed(&env("2", "1", "0", None)), Err("missing_leader"));
        assert_eq!(placed(&env("0", "0", "0", None)), Err("bad_cluster"));
        assert_eq!(placed(&env("2", "1", "0", Some("http://x"))), Err("bad_address"));
    }

    #[test]
    fn only_the_main_node_reports() {
        assert!(is_first(&env("2", "1", "1", None)) && !is_first(&env("2", "0", "1", None)));
        assert!(!is_first(&Env::from_pairs([(INDEX, "1")])) && is_first(&Env::from_pairs([(INDEX, "0")])));
    }
}
