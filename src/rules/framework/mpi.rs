//! Open MPI's host file, for an mpirun or horovodrun below us: one line a training host, in rank order.
//!
//! Deliberately absent: `OMPI_MCA_*`, which would change every MPI program below, and `HOROVOD_*`, which need
//! horovodrun's own rendezvous server.

use crate::rules::cluster::spec::ClusterSpec;

/// Where the file is.
pub const HOSTFILE_VARIABLE: &str = "TRAINIT_HOSTFILE";

/// The file's content, where several training hosts are known. `slots` are processes a host.
pub fn hostfile(spec: &ClusterSpec, slots: u32) -> Option<String> {
    let hosts = spec
        .said
        .hosts
        .as_ref()
        .filter(|hosts| hosts.len() > 1 && spec.said.node_rank.is_some() && !spec.said.hands_off)?;
    Some(hosts.iter().map(|host| format!("{host} slots={slots}\n")).collect())
}
