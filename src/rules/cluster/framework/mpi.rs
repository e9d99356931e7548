//! Open MPI's host file, for an mpirun or horovodrun in the command: one line for each training host, in rank order.
//!
//! Deliberately absent: `OMPI_MCA_*`, which would affect every MPI program in the command, and `HOROVOD_*`, which need
//! horovodrun's own rendezvous server.

use crate::cluster::spec::ClusterSpec;

/// The path of the file.
pub const HOSTFILE_VARIABLE: &str = "TRAINIT_HOSTFILE";

/// The content of the file, if several training hosts are known. `slots` are processes on each host.
pub fn hostfile(spec: &ClusterSpec, slots: u32) -> Option<String> {
    let hosts = spec
        .reading
        .hosts
        .as_ref()
        .filter(|hosts| hosts.len() > 1 && spec.reading.node_rank.is_some() && !spec.reading.hands_off)?;
    Some(hosts.iter().map(|host| format!("{host} slots={slots}\n")).collect())
}

#[cfg(test)]
mod tests {
    use crate::cluster::framework::resolve;
    use crate::cluster::parse::input::Input;
    use crate::cluster::spec::ClusterOptions;
    use crate::process::env::Env;

    fn hostfile(hosts: &str, nodes: &str, nproc: Option<u32>) -> Option<String> {
        let step = [("SLURM_JOB_ID", "42"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NODELIST", hosts)];
        let env = Env::from_pairs(step.into_iter().chain([("SLURM_NTASKS", nodes), ("SLURM_NNODES", nodes)]));
        let nproc = nproc.map(crate::cluster::spec::Nproc::Count);
        let options = ClusterOptions { nproc, ..ClusterOptions::default() };
        resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job").hostfile
    }

    #[test]
    fn each_host_is_a_line_in_rank_order_with_its_slots_and_a_single_host_needs_no_file() {
        assert_eq!(hostfile("gpu[08-09]", "2", None).as_deref(), Some("gpu08 slots=1\ngpu09 slots=1\n"));
        assert_eq!(hostfile("gpu[08-09]", "2", Some(4)).as_deref(), Some("gpu08 slots=4\ngpu09 slots=4\n"));
        assert_eq!(hostfile("gpu08", "1", Some(4)), None);
    }
}
