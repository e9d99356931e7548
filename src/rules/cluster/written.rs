//! A platform as `trainit simulate` imitates it: the variables that it gives to the replicas of a job (the inverse of its
//! reader), and its rules for restarts and preemptions.
//!
//! The data of each platform are in the platform's file ([`super::Platform::simulated`]). Deliberately absent:
//! processes, times, faults (`rules/simulate`).

use super::spec::Role;
use crate::cluster::parse::address::Address;
use crate::cluster::seat::Seat;

/// The job whose variables are written.
#[derive(Debug, Clone)]
pub struct Job {
    /// The number in the job's id.
    pub number: u32,
    /// Its replicas: chief, workers, parameter servers, evaluators.
    pub replicas: Vec<Replica>,
    /// The port where the training replicas meet, if the platform does not fix one.
    pub rendezvous_port: u16,
    /// A directory that all replicas see.
    pub shared: String,
    /// How often the platform has started the whole job again.
    pub restarts: u32,
}

/// One replica of the job.
#[derive(Debug, Clone)]
pub struct Replica {
    /// Its place in the job.
    pub seat: Seat,
    /// The address where it listens.
    pub address: Address,
}

impl Job {
    /// The replicas of a role, in the order of their indices.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(move |replica| replica.seat.role() == role)
    }

    /// The replicas that train, in rank order.
    pub fn training(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| replica.seat.trains())
    }

    /// Their hosts.
    pub fn training_hosts(&self) -> Vec<&str> {
        self.training().map(|replica| replica.address.host.as_str()).collect()
    }

    /// The rank of a replica among those that train.
    pub fn rank(&self, replica: &Replica) -> usize {
        self.training().position(|other| other.seat == replica.seat).unwrap_or(0)
    }

    /// The first training replica's host.
    pub fn leader_host(&self) -> &str {
        self.training().next().map_or("127.0.0.1", |replica| &replica.address.host)
    }

    /// The addresses of the roles as JSON: `{"worker":["127.0.0.1:2222"]}`. Roles without replicas are omitted.
    pub fn cluster(&self, names: &[(Role, &str)]) -> serde_json::Value {
        let mut pools = serde_json::Map::new();
        for (role, name) in names {
            let addresses: Vec<String> = self.of(*role).map(|replica| replica.address.to_string()).collect();
            if !addresses.is_empty() {
                pools.insert((*name).to_owned(), addresses.into());
            }
        }
        pools.into()
    }
}

/// A platform as the simulator imitates it.
#[derive(Debug)]
pub struct Simulated {
    /// The name in `--platform`.
    pub name: &'static str,
    /// The variables of a replica.
    pub write: fn(&Job, &Replica) -> Vec<(&'static str, String)>,
    /// The roles that a job may have in addition to chief and workers.
    pub other_roles: &'static [Role],
    /// Its reaction to the end of a replica.
    pub restarts: Restarts,
    /// When the job has succeeded.
    pub success: Success,
    /// How it announces a preemption.
    pub notice: Notice,
}

/// The reaction of a platform to a replica that ended with another code than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restarts {
    /// All replicas are stopped and started again together.
    pub whole_job: bool,
    /// The most restarts.
    pub limit: Limit,
    /// The exit codes of a replica that end the job at once, unless the platform itself ended the replica.
    pub permanent: Permanent,
}

/// A limit for restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// For each replica.
    Each(u32),
    /// For all replicas together.
    Together(u32),
    /// Only the time limit of the job.
    None,
}

/// Exit codes without a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permanent {
    /// None.
    None,
    /// 1 to 127.
    Below128,
    /// Every code: only the loss of a machine is followed by a restart.
    All,
}

impl Permanent {
    /// Whether the code is one of them.
    pub fn has(self, code: u8) -> bool {
        match self {
            Permanent::None => false,
            Permanent::Below128 => code < 128,
            Permanent::All => true,
        }
    }
}

/// When a job has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Success {
    /// When the chief has ended with 0; the other replicas are then stopped.
    OfChief,
    /// When all replicas have ended with 0.
    OfAll,
}

/// How a preemption is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// By the metadata server of this cloud, in the words of `--preemption`.
    Cloud(&'static str),
    /// By SIGTERM.
    Signal,
}
