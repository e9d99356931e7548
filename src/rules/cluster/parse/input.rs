//! The input of a platform's reader, and the parsers for variables: ranks, counts, hosts, ports.
//!
//! Deliberately absent: the names of variables.

use crate::cluster::parse::address::{Address, parse_host, parse_port};
use crate::cluster::spec::{ClusterError, ClusterOptions, quote};
use crate::process::env::Env;

/// No cluster has more nodes or processes, so a larger number is a mistake. Lists of this length are harmless.
pub const MAX_REPLICAS: u32 = 1 << 20;

/// Reads the file at a path: `None` if it does not exist. Returns at most [`crate::cluster::parse::json::MAX_BYTES`] and one byte.
/// Errors: why an existing file cannot be read.
pub type Files<'a> = &'a dyn Fn(&str) -> Result<Option<String>, String>;

/// Everything that a reader may use.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The environment.
    pub env: &'a Env,
    /// The files of platforms that write files.
    pub files: Files<'a>,
    /// The user's options.
    pub options: &'a ClusterOptions,
}

impl Input<'_> {
    /// The content of a platform's file, if it exists. Errors: `missing_cluster`, because without the file each replica
    /// would train alone.
    pub fn file(&self, path: &str) -> Result<Option<String>, ClusterError> {
        (self.files)(path).map_err(|why| {
            let message = format!(
                "cannot be read, so the rank of this replica is unknown: {why}; make it readable for this user, or name another \
                 source with --platform"
            );
            ClusterError::new("missing_cluster", path, message)
        })
    }

    /// A rank, if the variable is set. Errors: `bad_task_index`.
    pub fn rank(&self, variable: &str) -> Result<Option<u32>, ClusterError> {
        self.env.given(variable).map(|text| rank(variable, text)).transpose()
    }

    /// A number of replicas, if the variable is set. Errors: `bad_cluster`.
    pub fn count(&self, variable: &str) -> Result<Option<u32>, ClusterError> {
        self.env.given(variable).map(|text| count(variable, text)).transpose()
    }

    /// A host without a port, if the variable is set. Errors: `bad_address`.
    pub fn host(&self, variable: &str) -> Result<Option<String>, ClusterError> {
        self.env.given(variable).map(|text| host(variable, text)).transpose()
    }

    /// A port, if the variable is set. Errors: `bad_address`.
    pub fn port(&self, variable: &str) -> Result<Option<u16>, ClusterError> {
        self.env.given(variable).map(|text| port(variable, text)).transpose()
    }

    /// A host with or without a port, if the variable is set. Errors: `bad_address`.
    pub fn endpoint(&self, variable: &str) -> Result<Option<(String, Option<u16>)>, ClusterError> {
        let Some(text) = self.env.given(variable) else { return Ok(None) };
        if let Ok(host) = parse_host(text.trim()) {
            return Ok(Some((host, None)));
        }
        let address = address(variable, text.trim())?;
        Ok(Some((address.host, Some(address.port))))
    }
}

/// Reads a whole number from 0. Errors: `bad_task_index`.
pub fn rank(variable: &str, text: &str) -> Result<u32, ClusterError> {
    text.trim().parse().map_err(|_| {
        let message = format!("expected a rank, a whole number from 0, found {}", quote(text));
        ClusterError::new("bad_task_index", variable, message)
    })
}

/// Reads a number of replicas. Errors: `bad_cluster`.
pub fn count(variable: &str, text: &str) -> Result<u32, ClusterError> {
    text.trim().parse().ok().filter(|count| (1..=MAX_REPLICAS).contains(count)).ok_or_else(|| {
        let message = format!("expected a number of replicas from 1 to {MAX_REPLICAS}, found {}", quote(text));
        ClusterError::new("bad_cluster", variable, message)
    })
}

/// Reads a host without a port. Errors: `bad_address`.
pub fn host(variable: &str, text: &str) -> Result<String, ClusterError> {
    parse_host(text.trim()).map_err(|what| bad_address(variable, text, &what, "a host name or IP address"))
}

/// Reads `host:port`. Errors: `bad_address`.
pub fn address(variable: &str, text: &str) -> Result<Address, ClusterError> {
    Address::parse(text.trim()).map_err(|what| bad_address(variable, text, &what, "host:port, or [IPv6]:port"))
}

/// Reads a port. Errors: `bad_address`.
pub fn port(variable: &str, text: &str) -> Result<u16, ClusterError> {
    parse_port(text.trim()).map_err(|what| {
        let hint = if text.contains("://") {
            "a port number; Kubernetes sets this value for a service of that name: rename the service, \
             or set enableServiceLinks: false"
        } else {
            "a port from 1 to 65535"
        };
        bad_address(variable, text, &what, hint)
    })
}

/// Errors: `task_index_out_of_range` if the rank is not smaller than the world size.
pub fn within(variable: &str, rank: u32, world_variable: &str, world: u32) -> Result<(), ClusterError> {
    if rank < world {
        return Ok(());
    }
    let message = format!(
        "rank {rank} does not exist in a world of {world} ({world_variable}); ranks go from 0 to {}",
        world - 1
    );
    Err(ClusterError::new("task_index_out_of_range", variable, message))
}

fn bad_address(variable: &str, text: &str, what: &str, expected: &str) -> ClusterError {
    ClusterError::new("bad_address", variable, format!("{} {what}; expected {expected}", quote(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::framework::resolve;
    use crate::cluster::spec::{Explicit, Nproc};

    #[test]
    fn a_number_of_replicas_beyond_any_cluster_is_refused_in_every_variable() {
        let first = |pairs: &[(&str, &str)], nnodes: Option<&str>| {
            let explicit = |text: &str| Explicit { place: "TRAINIT_NNODES".to_owned(), text: text.to_owned() };
            let options = ClusterOptions {
                nnodes: nnodes.map(explicit),
                node_rank: nnodes.map(|_| explicit("0")),
                leader: Some(explicit("h:1")),
                nproc: Some(Nproc::Count(1024)),
                ..ClusterOptions::default()
            };
            let env = Env::from_pairs(pairs.iter().copied());
            let found = resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]);
            found.map(|found| found.launches.len()).map_err(|error| error.code)
        };
        for count in ["1048577", "2147483648", "4294967295", "99999999999999999999", "1025"] {
            let jobs: [&[(&str, &str)]; 6] = [
                &[("RANK", "0"), ("WORLD_SIZE", count)],
                &[("PET_NNODES", count), ("PET_NODE_RANK", "0")],
                &[("NUM_PROCESSES", count), ("PROCESS_ID", "0"), ("COORDINATOR_ADDRESS", "h:1")],
                &[("AWS_BATCH_JOB_NUM_NODES", count), ("AWS_BATCH_JOB_NODE_INDEX", "0")],
                &[("NNODES", count), ("NODE_RANK", "0"), ("MASTER_ADDR", "h")],
                &[
                    ("TPU_WORKER_ID", "0"),
                    ("TPU_WORKER_HOSTNAMES", "a,b"),
                    ("MEGASCALE_NUM_SLICES", count),
                    ("MEGASCALE_SLICE_ID", "0"),
                ],
            ];
            for job in jobs {
                assert_eq!(first(job, None), Err("bad_cluster"), "{job:?}");
            }
            assert_eq!(first(&[], Some(count)), Err("bad_cluster"), "{count}");
        }
        assert_eq!(first(&[("RANK", "0"), ("WORLD_SIZE", "1024")], None), Ok(1024));
        assert_eq!(count("X", &MAX_REPLICAS.to_string()), Ok(MAX_REPLICAS));
    }
}
