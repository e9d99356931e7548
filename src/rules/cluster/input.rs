//! What a platform's reader is given, and the ways in which variables are read: ranks, counts, hosts, ports.
//!
//! Deliberately absent: any variable's name.

use super::address::{Address, parse_host, parse_port};
use super::spec::{ClusterError, ClusterOptions, quote};
use crate::rules::env::Env;

/// Reads a file by its path: `None` where there is none. At most [`super::json::MAX_BYTES`] and one byte. Errors: why one
/// that is there cannot be read.
pub type Files<'a> = &'a dyn Fn(&str) -> Result<Option<String>, String>;

/// Everything a reader may look at.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The environment.
    pub env: &'a Env,
    /// The files of platforms that write files.
    pub files: Files<'a>,
    /// What the user asked for.
    pub options: &'a ClusterOptions,
}

impl Input<'_> {
    /// A file of the platform's, if it is there. Errors: `missing_cluster`; without what it says each replica would train
    /// alone.
    pub fn file(&self, path: &str) -> Result<Option<String>, ClusterError> {
        (self.files)(path).map_err(|why| {
            let message = format!(
                "cannot be read, so nobody knows which replica this is: {why}; let this user read it, or name another \
                 source with --platform"
            );
            ClusterError::new("missing_cluster", path, message)
        })
    }

    /// A rank, if it is given. Errors: `bad_task_index`.
    pub fn rank(&self, variable: &str) -> Result<Option<u32>, ClusterError> {
        self.env.given(variable).map(|text| rank(variable, text)).transpose()
    }

    /// A number of replicas, if it is given. Errors: `bad_cluster`.
    pub fn count(&self, variable: &str) -> Result<Option<u32>, ClusterError> {
        self.env.given(variable).map(|text| count(variable, text)).transpose()
    }

    /// A host without a port, if it is given. Errors: `bad_address`.
    pub fn host(&self, variable: &str) -> Result<Option<String>, ClusterError> {
        self.env.given(variable).map(|text| host(variable, text)).transpose()
    }

    /// A port, if it is given. Errors: `bad_address`.
    pub fn port(&self, variable: &str) -> Result<Option<u16>, ClusterError> {
        self.env.given(variable).map(|text| port(variable, text)).transpose()
    }

    /// A host with or without a port, if it is given. Errors: `bad_address`.
    pub fn endpoint(&self, variable: &str) -> Result<Option<(String, Option<u16>)>, ClusterError> {
        let Some(text) = self.env.given(variable) else { return Ok(None) };
        if let Ok(host) = parse_host(text.trim()) {
            return Ok(Some((host, None)));
        }
        let address = address(variable, text.trim())?;
        Ok(Some((address.host, Some(address.port))))
    }
}

/// A whole number from 0. Errors: `bad_task_index`.
pub fn rank(variable: &str, text: &str) -> Result<u32, ClusterError> {
    text.trim().parse().map_err(|_| {
        let message = format!("expected a rank, a whole number from 0, found {}", quote(text));
        ClusterError::new("bad_task_index", variable, message)
    })
}

/// A whole number from 1. Errors: `bad_cluster`.
pub fn count(variable: &str, text: &str) -> Result<u32, ClusterError> {
    match text.trim().parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => {
            let message = format!("expected a number of replicas from 1, found {}", quote(text));
            Err(ClusterError::new("bad_cluster", variable, message))
        }
    }
}

/// A host without a port. Errors: `bad_address`.
pub fn host(variable: &str, text: &str) -> Result<String, ClusterError> {
    parse_host(text.trim()).map_err(|what| bad_address(variable, text, &what, "a host name or IP address"))
}

/// `host:port`. Errors: `bad_address`.
pub fn address(variable: &str, text: &str) -> Result<Address, ClusterError> {
    Address::parse(text.trim()).map_err(|what| bad_address(variable, text, &what, "host:port, or [IPv6]:port"))
}

/// A port. Errors: `bad_address`.
pub fn port(variable: &str, text: &str) -> Result<u16, ClusterError> {
    parse_port(text.trim()).map_err(|what| {
        let hint = if text.contains("://") {
            "a port alone; Kubernetes sets it like this for a service of that name: rename the service, \
             or set enableServiceLinks: false"
        } else {
            "a port from 1 to 65535"
        };
        bad_address(variable, text, &what, hint)
    })
}

/// Errors: `task_index_out_of_range` unless the rank is within the world.
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
