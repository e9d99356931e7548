//! Reads clusters that are written as JSON, `{"worker": ["a:2222", "b:2222"]}` with a task, and derives the ranks: the
//! chief is 0, worker i is i plus the number of chiefs, and all other replicas have no rank.
//!
//! Used for TF_CONFIG and CLUSTER_SPEC, which have different names for the pools.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use crate::cluster::parse::address::{Address, canonical};
use crate::cluster::parse::json;
use crate::cluster::spec::{
    ClusterError, ClusterOptions, Leader, PlatformName, Reading, Role, TfCluster, Warning, quote,
};

/// The port that Vertex AI and AI Platform open for rendezvous; 2222 is used by TensorFlow's server.
pub(in crate::cluster) const RENDEZVOUS_PORT: u16 = 3333;

/// The addresses of a pool by index. Dense pools have every index from 0.
pub type Tasks = BTreeMap<u32, Address>;

/// One job of a cluster, with its original name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The name in the document.
    pub name: String,
    /// Its replicas.
    pub tasks: Tasks,
}

impl Pool {
    /// Whether every index from 0 exists.
    pub fn is_dense(&self) -> bool {
        self.tasks.keys().copied().eq(0..self.tasks.len() as u32)
    }
}

/// The task of this replica, in the words of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The pool's name.
    pub kind: String,
    /// From 0; a larger number than `u32` is cut to its maximum, which is out of every range.
    pub index: u32,
    /// The hyperparameter trial, unless empty.
    pub trial: Option<String>,
}

/// Reads the `cluster` member. Empty pools are dropped. Errors: `bad_cluster`, `bad_address`, `unknown_task_type`.
pub fn read_cluster(variable: &str, raw: &str, known: &[&str]) -> Result<Vec<Pool>, ClusterError> {
    let bad = |message: String| ClusterError::new("bad_cluster", variable, message);
    let members = match json::kind(raw) {
        "an object" => json::members(raw).unwrap_or_default(),
        other => return Err(bad(format!("cluster: expected an object of pools, found {other}"))),
    };
    let mut pools = Vec::new();
    for (name, raw) in members.iter() {
        let list = match json::value(raw) {
            Some(Value::Array(list)) => list.into_iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
            Some(Value::Object(map)) => map.into_iter().collect::<Vec<(String, Value)>>(),
            _ => {
                let found = json::kind(raw);
                let message = format!("cluster.{name}: expected a list of host:port, found {found}", name = show(name));
                return Err(bad(message));
            }
        };
        if list.is_empty() {
            continue;
        }
        if !known.contains(&name) {
            return Err(unknown_type(variable, "cluster has a pool", name, known));
        }
        let mut tasks = Tasks::new();
        for (key, value) in list {
            let Ok(index) = key.trim().parse::<u32>() else {
                return Err(bad(format!("cluster.{name}: the key {} is not a task index", quote(&key))));
            };
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let address = match value {
                Value::String(text) => Address::parse(&text),
                _ => Err("is not a string".to_owned()),
            };
            let address = address.map_err(|what| {
                let message =
                    format!("cluster.{name}[{index}]: {} {what}; expected host:port, or [IPv6]:port", quote(&text));
                ClusterError::new("bad_address", variable, message)
            })?;
            if tasks.insert(index, address).is_some() {
                return Err(bad(format!("cluster.{name}: the task index {index} is listed twice")));
            }
        }
        pools.push(Pool { name: name.to_owned(), tasks });
    }
    Ok(pools)
}

/// Errors: `duplicate_address` if two replicas would listen at one address.
pub fn refuse_duplicates(variable: &str, pools: &[Pool]) -> Result<(), ClusterError> {
    let mut seen = HashSet::new();
    for pool in pools {
        for (index, address) in &pool.tasks {
            if !seen.insert((canonical(&address.host), address.port)) {
                let message = format!(
                    "cluster.{}[{index}]: {} is listed twice; every replica needs its own address",
                    pool.name,
                    quote(&address.to_string())
                );
                return Err(ClusterError::new("duplicate_address", variable, message));
            }
        }
    }
    Ok(())
}

/// Reads the `task` member. Errors: `missing_task`, `unknown_task_type`, `bad_task_index`.
pub fn read_task(variable: &str, raw: Option<&str>, known: &[&str]) -> Result<Task, ClusterError> {
    let missing = |what: &str| {
        let message = format!("{what}; it must say which replica this is, as in {{\"type\":\"worker\",\"index\":0}}");
        ClusterError::new("missing_task", variable, message)
    };
    let raw = raw.ok_or_else(|| missing("has no task"))?;
    let members = match json::kind(raw) {
        "an object" => json::members(raw).unwrap_or_default(),
        other => return Err(missing(&format!("task is {other}, not an object"))),
    };
    let present = |name| members.get(name).filter(|raw| *raw != "null");
    let kind = present("type").ok_or_else(|| missing("task has no type"))?;
    let kind = match json::value(kind) {
        Some(Value::String(kind)) if known.contains(&kind.as_str()) => kind,
        Some(Value::String(kind)) => return Err(unknown_type(variable, "task has the type", &kind, known)),
        _ => return Err(unknown_type(variable, "task has the type", kind, known)),
    };
    let index = present("index").ok_or_else(|| missing("task has no index"))?;
    let index = whole(index).ok_or_else(|| {
        let message = format!("task.index: expected a whole number from 0, found {}", quote(index));
        ClusterError::new("bad_task_index", variable, message)
    })?;
    let trial = members.get("trial").and_then(json::value).and_then(|trial| match trial {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    });
    if let Some(text) = trial.as_ref().filter(|text| text.contains('\0')) {
        let message = format!("task.trial: {} contains a NUL, which a variable cannot contain", quote(text));
        return Err(ClusterError::new("bad_cluster", variable, message));
    }
    Ok(Task { kind, index, trial: trial.filter(|t| !t.trim().is_empty()) })
}

/// Errors: `task_type_not_in_cluster` (no such pool), `task_index_out_of_range` (no such replica in it).
pub fn check_task(variable: &str, task: &Task, pool: Option<&Pool>) -> Result<(), ClusterError> {
    let Some(pool) = pool else {
        let message = format!("task has the type {}, which is not in cluster; list it there", quote(&task.kind));
        return Err(ClusterError::new("task_type_not_in_cluster", variable, message));
    };
    if pool.tasks.contains_key(&task.index) {
        return Ok(());
    }
    let known = pool.tasks.len();
    let index = match task.index {
        u32::MAX => "so large a number".to_owned(),
        index => index.to_string(),
    };
    let message = format!("task.index: {index} is not among the {known} of cluster.{}; indices begin at 0", pool.name);
    Err(ClusterError::new("task_index_out_of_range", variable, message))
}

/// A whole number from 0 in the forms that Python's `int()` reads without loss: `1`, `"1"`, `1.0`.
fn whole(raw: &str) -> Option<u32> {
    match json::value(raw)? {
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) => Some(u32::try_from(whole).unwrap_or(u32::MAX)),
            (None, Some(float)) if float >= 0.0 && float.fract() == 0.0 => Some(float as u32),
            _ => None,
        },
        Value::String(text) => text.trim().parse::<u64>().ok().map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
        _ => None,
    }
}

fn unknown_type(variable: &str, what: &str, name: &str, known: &[&str]) -> ClusterError {
    let message = format!("{what} {}; known are {}", quote(name), known.join(", "));
    ClusterError::new("unknown_task_type", variable, message)
}

/// A pool's name that has not been validated, for a message.
fn show(name: &str) -> String {
    if name.bytes().all(|b| b.is_ascii_alphanumeric()) && name.len() <= 32 { name.to_owned() } else { quote(name) }
}

/// The replicas of a whole cluster by role, in the order of the pools, with the place of this replica.
#[derive(Debug)]
pub struct Replicas {
    /// Roles in the order chief, worker, ps or reducer, evaluator; addresses by index.
    pub pools: Vec<(Role, Vec<Address>)>,
    /// This replica's role.
    pub role: Role,
    /// Its index in its role.
    pub index: u32,
    /// Its trial.
    pub trial: Option<String>,
}

impl Replicas {
    /// The number of replicas with this role.
    pub fn count(&self, role: Role) -> usize {
        self.pools.iter().filter(|(r, _)| *r == role).map(|(_, a)| a.len()).sum()
    }

    /// The reading with ranks. A replica that is not listed (an evaluator outside the cluster) has no rank.
    pub fn reading(self, platform: PlatformName, options: &ClusterOptions) -> Reading {
        let ranked = |role: Role| role.trains() || options.rank_all_pools;
        let world: Vec<&Address> =
            self.pools.iter().filter(|(role, _)| ranked(*role)).flat_map(|(_, addresses)| addresses).collect();
        let before: usize = self
            .pools
            .iter()
            .take_while(|(role, _)| *role != self.role)
            .filter(|(r, _)| ranked(*r))
            .map(|(_, a)| a.len())
            .sum();
        let listed = (self.index as usize) < self.count(self.role);
        let leader =
            world.first().map(|a| Leader { host: Some(a.host.clone()), port: Some(a.port), ..Leader::default() });
        let leads =
            self.role == Role::Chief || (self.role == Role::Worker && self.index == 0 && self.count(Role::Chief) == 0);
        Reading {
            is_chief: leads,
            node_rank: (ranked(self.role) && listed).then_some(before as u32 + self.index),
            hosts: Some(world.iter().map(|a| a.host.clone()).collect()),
            leader: leader.unwrap_or_default(),
            tf: Some(self.tf()),
            trial: self.trial.clone(),
            ..Reading::of(platform, self.role, 0, world.len() as u32)
        }
    }

    fn tf(&self) -> TfCluster {
        let replicas = self.pools.iter().filter(|(role, _)| *role != Role::Reducer).map(|(_, a)| a.len()).sum();
        let jobs = [Role::Chief, Role::Worker, Role::Ps]
            .into_iter()
            .filter(|role| self.count(*role) > 0)
            .map(|role| {
                let addresses = self.pools.iter().filter(|(r, _)| *r == role).flat_map(|(_, a)| a.clone()).collect();
                (role.word(), addresses)
            })
            .collect();
        let task = (self.role != Role::Reducer).then(|| (self.role.word(), self.index));
        TfCluster { jobs, task, replicas }
    }
}

/// TensorFlow's view of a list of hosts: every host is a worker on the same port, and there is no chief.
pub fn workers(hosts: &[String], port: u16, rank: u32) -> TfCluster {
    let addresses = hosts.iter().map(|host| Address { host: host.clone(), port }).collect();
    let worker = Role::Worker.word();
    TfCluster { jobs: vec![(worker, addresses)], task: Some((worker, rank)), replicas: hosts.len() }
}

/// The warning for one of several evaluators.
pub(in crate::cluster) fn many_evaluators(variable: &str) -> Warning {
    let message = format!("{variable}: there is more than one evaluator; TensorFlow expects at most one");
    Warning::new("multiple_evaluators", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_index_is_read_like_pythons_int_but_never_rounded() {
        for (raw, index) in [("0", 0), ("\"1\"", 1), ("1.0", 1), ("1e0", 1), ("\" 2 \"", 2), ("99999999999", u32::MAX)]
        {
            assert_eq!(whole(raw), Some(index), "{raw}");
        }
        for raw in ["true", "-1", "\"-1\"", "1.5", "\"1.0\"", "\"\"", "[]", "{}", "\"one\"", "1e999"] {
            assert_eq!(whole(raw), None, "{raw}");
        }
    }

    #[test]
    fn a_map_of_indices_is_a_list_and_gaps_make_it_sparse() {
        let read = |raw| read_cluster("X", raw, &["worker"]).expect(raw).remove(0);
        let list = read(r#"{"worker":["a:1","b:1"]}"#);
        assert_eq!(read(r#"{"worker":{"1":"b:1","0":"a:1"}}"#), list);
        assert!(list.is_dense() && !read(r#"{"worker":{"3":"d:1"}}"#).is_dense());
    }

    #[test]
    fn a_map_of_more_than_ten_is_in_numeric_order() {
        let map: Vec<String> = (0..12).map(|i| format!("\"{i}\":\"h{i}:1\"")).collect();
        let pool = read_cluster("X", &format!("{{\"worker\":{{{}}}}}", map.join(",")), &["worker"]).expect("a map");
        assert_eq!(pool[0].tasks[&10].host, "h10");
    }
}
