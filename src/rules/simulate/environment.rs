//! The environment of a simulated replica: the platform's variables and the replica's own paths. Variables of a platform in
//! the simulator's own environment are removed.

use std::time::Duration;

use crate::cluster::complete::SIMULATED;
use crate::cluster::written::{Job, Replica, Simulated};
use crate::cluster::{self, PLATFORMS};
use crate::preempt::SOURCES;
use crate::process::env::{Changes, Env};

/// The machine of a replica.
#[derive(Debug, Clone)]
pub struct Machine<'a> {
    /// Its disk, which is lost with the machine.
    pub disk: &'a str,
    /// The file for its verdict.
    pub verdict: &'a str,
    /// The cloud of its metadata server, and the server's port.
    pub metadata: Option<(&'static str, u16)>,
    /// The port of the gang's leader.
    pub gang_port: u16,
    /// The time from a notice to the end.
    pub notice: Duration,
    /// It gets a checkpoint directory on its disk, and a store that outlives it.
    pub has_checkpoint_dir: bool,
}

/// The changes to the simulator's own environment.
pub fn changes(platform: &Simulated, job: &Job, replica: &Replica, machine: &Machine<'_>, env: &Env) -> Changes {
    let mut changes = Changes::default();
    env.iter().map(|(name, _)| name).filter(|name| is_of_a_platform(name)).for_each(|name| changes.remove(name));
    let written = (platform.write)(job, replica);
    for (name, place) in [("HOME", "home"), ("TMPDIR", "tmp")] {
        changes.set(name, format!("{}/{place}", machine.disk));
    }
    changes.set("CLOUD_ML_HP_METRIC_FILE", format!("{}/metrics/output.metrics", machine.disk));
    changes.set("TRAINIT_VERDICT_FILE", machine.verdict);
    changes.set(SIMULATED, "1");
    if machine.has_checkpoint_dir {
        changes.set("TRAINIT_CHECKPOINT_DIR", format!("{}/checkpoints", machine.disk));
    }
    let written_env = Env::from_pairs(written.iter().map(|(name, value)| (*name, value)));
    let has_store = cluster::fact_variable(cluster::spec::Fact::CheckpointStore, &written_env).is_some();
    let or_else = [
        ("TRAINIT_LOG_FORMAT", "text".to_owned(), true),
        (
            "TRAINIT_CHECKPOINT_STORE",
            format!("file://{}/checkpoints", job.shared),
            machine.has_checkpoint_dir && !has_store,
        ),
        ("TRAINIT_GANG_PORT", machine.gang_port.to_string(), true),
        ("TRAINIT_PREEMPTION_LEAD", format!("{}ms", machine.notice.as_millis()), machine.metadata.is_some()),
    ];
    for (name, value, is_wanted) in or_else {
        if is_wanted && env.given(name).is_none() {
            changes.set(name, value);
        }
    }
    for (name, value) in written {
        changes.set(name, value);
    }
    if let Some((cloud, port)) = machine.metadata
        && let Some(source) = SOURCES.iter().find(|source| source.name == cloud)
    {
        // Google's libraries expect a host, the libraries of other clouds expect a URL.
        let scheme = if cloud == "gce" { "" } else { "http://" };
        changes.set(source.named_by[0], format!("{scheme}127.0.0.1:{port}"));
    }
    changes
}

/// Whether a platform or a cloud sets this variable.
fn is_of_a_platform(name: &str) -> bool {
    let is_it = |variable: &&str| match variable.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => *variable == name,
    };
    let mut of_platforms = PLATFORMS.iter().flat_map(|platform| platform.variables);
    let mut facts = PLATFORMS.iter().flat_map(|platform| platform.facts);
    let mut of_clouds = SOURCES.iter().flat_map(|source| source.named_by);
    let is_place = cluster::EXPLICIT.contains(&name);
    is_place || of_platforms.any(is_it) || facts.any(|(_, variable)| *variable == name) || of_clouds.any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::detect;
    use crate::cluster::parse::address::Address;
    use crate::cluster::parse::input::Input;
    use crate::cluster::seat::Seat;
    use crate::cluster::spec::{ClusterOptions, ClusterSpec, Explicit, Role};
    use crate::preempt::{Choice, LocalFacts, sources_to_watch};
    use crate::simulate::{platforms, seats};

    fn job(platform: &Simulated, workers: u32) -> Job {
        let others = u32::from(!platform.other_roles.is_empty());
        let replicas = (0..).zip(seats::seats(workers, others, others)).map(|(at, seat)| Replica {
            seat,
            address: Address { host: format!("127.0.0.{}", at + 1), port: 20_000 + at },
        });
        Job { number: 14_321, replicas: replicas.collect(), rendezvous_port: 19_321, shared: "/s".into(), restarts: 0 }
    }

    fn block(platform: &Simulated, job: &Job, replica: &Replica, own: &[(&str, &str)]) -> Env {
        let machine = Machine {
            disk: "/d",
            verdict: "/v",
            metadata: Some(("gce", 4000)),
            gang_port: 19_322,
            notice: Duration::from_secs(30),
            has_checkpoint_dir: true,
        };
        let env = Env::from_pairs(own.iter().copied());
        Env::from_raw(env.with(&changes(platform, job, replica, &machine, &env)))
    }

    fn read(env: &Env) -> ClusterSpec {
        let explicit =
            |name: &str| env.given(name).map(|text| Explicit { place: name.to_owned(), text: text.to_owned() });
        let options = ClusterOptions {
            nnodes: explicit("TRAINIT_NNODES"),
            leader: explicit("TRAINIT_LEADER"),
            ..ClusterOptions::default()
        };
        let found = detect(&Input { env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
        assert_eq!(found.warnings, [], "{env:?}");
        found.spec
    }

    #[test]
    fn the_reader_of_each_platform_finds_in_its_variables_the_place_that_was_written() {
        for platform in platforms() {
            for workers in [1, 4] {
                let job = job(platform, workers);
                for replica in &job.replicas {
                    let spec = read(&block(platform, &job, replica, &[]));
                    let (said, seat) = (&spec.reading, replica.seat);
                    assert_eq!(said.platform.word(), platform.name);
                    assert_eq!(said.node_rank, seat.trains().then(|| job.rank(replica) as u32), "{platform:?} {seat}");
                    assert_eq!(said.num_nodes, Some(workers + 1), "{platform:?} {seat}");
                    assert_eq!(said.is_chief, seat == Seat::new(Role::Chief, 0), "{platform:?} {seat}");
                    if !platform.other_roles.is_empty() {
                        assert_eq!(said.role, seat.role());
                    }
                    let leader = spec.leader.expect("several nodes have a leader");
                    let rendezvous = match platform.name {
                        "tf_config" => job.replicas[0].address.port,
                        _ => 19_321,
                    };
                    assert_eq!((leader.host.as_str(), leader.port), ("127.0.0.1", rendezvous), "{platform:?}");
                }
            }
        }
    }

    #[test]
    fn variables_of_the_simulators_own_platform_do_not_reach_the_replicas() {
        let own = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_PROCID", "1"),
            ("RANK", "3"),
            ("PET_NNODES", "9"),
            ("TRAINIT_NODE_RANK", "2"),
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1"),
            ("PATH", "/bin"),
        ];
        let platform = platforms().find(|platform| platform.name == "vertex").expect("vertex");
        let job = job(platform, 1);
        let env = block(platform, &job, &job.replicas[0], &own);
        assert_eq!((env.get("PATH"), env.get("HOME")), (Some("/bin"), Some("/d/home")));
        for (name, _) in &own[..own.len() - 1] {
            assert_eq!(env.get(name), None, "{name}");
        }
        let picked = sources_to_watch(Choice::Auto, &env, &LocalFacts::default);
        let picked: Vec<_> = picked.iter().map(|(source, at)| format!("{} {at}", source.name)).collect();
        assert_eq!(picked, ["gce 127.0.0.1:4000"]);
    }
}
