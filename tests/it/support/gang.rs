//! Several trainits on loopback, each as a replica of one job.

use std::net::TcpListener;
use std::path::PathBuf;

use super::{Finished, Running, Trainit};

/// Prints its generation and process id, and runs for ever.
pub const TRAINS: &str = "echo generation=$TRAINIT_GENERATION pid=$$ .; exec sleep 1000";

/// A job: its TensorFlow cluster, and the port of its gang.
pub struct Cluster {
    pub json: String,
    pub port: u16,
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

impl Cluster {
    /// This many workers. The first is the leader.
    pub fn of_workers(count: usize) -> Cluster {
        let [port, first] = free_ports();
        let address = |index: usize| format!("\"127.0.0.{}:{first}\"", index + 1);
        let workers: Vec<String> = (0..count).map(address).collect();
        Cluster { json: format!("{{\"worker\":[{}]}}", workers.join(",")), port }
    }

    /// A chief, a worker and a parameter server. As with Kubeflow, the evaluator is not in the list.
    pub fn with_servers() -> Cluster {
        let [port, first] = free_ports();
        let json = format!(
            "{{\"chief\":[\"127.0.0.1:{first}\"],\"worker\":[\"127.0.0.2:{first}\"],\"ps\":[\"127.0.0.3:{first}\"]}}"
        );
        Cluster { json, port }
    }

    /// A replica that is not started yet.
    pub fn replica(&self, role: &str, index: usize, script: &str) -> Trainit {
        let config = format!("{{\"cluster\":{},\"task\":{{\"type\":\"{role}\",\"index\":{index}}}}}", self.json);
        Trainit::new(["run", "--gang", "on", "--gang-port", &self.port.to_string(), "--restart-backoff", "1ms"])
            .env("TF_CONFIG", config)
            .env("TRAINIT_MAX_RESTARTS", "3")
            .env("TRAINIT_LOG_FORMAT", "json")
            .args(["--", "sh", "-c", script])
    }

    /// Workers with this script, started.
    pub fn workers(&self, count: usize, script: &str) -> Vec<Running> {
        (0..count).map(|index| self.replica("worker", index, script).start()).collect()
    }
}

/// The status of a replica whose trainer may not run yet.
/// A killed run with the same process id may have left a directory, so the first socket that answers counts.
pub fn status(replica: &Running) -> serde_json::Value {
    let pid_in_name = format!("-{}-", replica.pid());
    let answer_of = |run_dir: PathBuf| {
        let asked = Trainit::new(["status", "--json"]).env("TRAINIT_SOCKET", run_dir.join("socket")).output();
        serde_json::from_str(&asked.out()).ok()
    };
    let entries = ["/dev/shm", "/tmp"].into_iter().flat_map(std::fs::read_dir).flatten().flatten();
    let run_dirs = entries.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("trainit-") && name.contains(&pid_in_name)
    });
    run_dirs.map(|entry| entry.path()).find_map(answer_of).unwrap_or_default()
}

/// Waits until the replica trains in this generation. Returns the process id of its trainer.
pub fn trains(replica: &Running, generation: u64) -> i32 {
    let line = replica.after_line(&format!("generation={generation} "));
    line.split("pid=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap()
}

pub fn all_train<'a>(replicas: impl IntoIterator<Item = &'a Running>, generation: u64) {
    for replica in replicas {
        trains(replica, generation);
    }
}

pub fn finish(replicas: Vec<Running>) -> Vec<Finished> {
    replicas.into_iter().map(Running::finish).collect()
}
