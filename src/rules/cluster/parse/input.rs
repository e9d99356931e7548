//! The input of a platform's reader, and the parsers for variables: ranks, counts, hosts, ports.
//!
//! Deliberately absent: the names of variables.

use crate::cluster::parse::address::{Address, parse_host, parse_port};
use crate::cluster::spec::{ClusterError, ClusterOptions, quote};
use crate::process::env::Env;

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

/// Reads a whole number from 1. Errors: `bad_cluster`.
pub fn count(variable: &str, text: &str) -> Result<u32, ClusterError> {
    match text.trim().parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => {
            let message = format!("expected a number of replicas from 1, found {}", quote(text));
            Err(ClusterError::new("bad_cluster", variable, message))
        }
    }
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
