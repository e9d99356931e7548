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

#[cfg(test)]
mod tests {
    use crate::rules::cluster::input::Input;
    use crate::rules::cluster::spec::ClusterOptions;
    use crate::rules::env::Env;
    use crate::rules::framework::resolve;

    fn hostfile(hosts: &str, nodes: &str, nproc: Option<u32>) -> Option<String> {
        let step = [("SLURM_JOB_ID", "42"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NODELIST", hosts)];
        let env = Env::from_pairs(step.into_iter().chain([("SLURM_NTASKS", nodes), ("SLURM_NNODES", nodes)]));
        let nproc = nproc.map(crate::rules::cluster::spec::Nproc::Count);
        let options = ClusterOptions { nproc, ..ClusterOptions::default() };
        resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job").hostfile
    }

    #[test]
    fn each_host_is_a_line_in_rank_order_with_its_processes_and_one_alone_needs_no_file() {
        assert_eq!(hostfile("gpu[08-09]", "2", None).as_deref(), Some("gpu08 slots=1\ngpu09 slots=1\n"));
        assert_eq!(hostfile("gpu[08-09]", "2", Some(4)).as_deref(), Some("gpu08 slots=4\ngpu09 slots=4\n"));
        assert_eq!(hostfile("gpu08", "1", Some(4)), None);
    }
}
