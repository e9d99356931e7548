//! Whether the replicas of a job form a gang, and the seat of this replica in it, from the cluster specification.

use std::collections::BTreeSet;

use super::agreement::chief_of;
use super::leader::OnNotice;
use crate::cluster::seat::Seat;
use crate::cluster::spec::{ClusterSpec, Role, TfCluster};

/// Slurm jobs that share a node have rendezvous ports from 15000 on; their gangs use ports from 5000 on.
const SHARED_NODES: u16 = 10_000;

/// A replica's place in its gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// This replica's seat.
    pub own: Seat,
    /// The seat of the leader, which is node rank 0.
    pub leader: Seat,
    /// Every seat.
    pub roster: BTreeSet<Seat>,
    /// The leader's host, as the platform names it.
    pub host: String,
    /// The leader's port.
    pub port: u16,
    /// The port of the trainers' rendezvous, at the leader's host.
    pub rendezvous: u16,
    /// The port is the rendezvous port, the only one that the platform forwards. The leader listens at it while no trainer
    /// runs, and sends the members the address of its second port.
    pub is_borrowed: bool,
}

impl Place {
    /// Whether this replica's agent is the leader.
    pub fn leads(&self) -> bool {
        self.own == self.leader
    }

    /// A description of the gang that is the same for all of its members. The key is derived from it if there is no secret.
    pub fn fingerprint(&self) -> String {
        let required: Vec<&Seat> = self.roster.iter().filter(|seat| seat.is_required()).collect();
        format!("{required:?} {} {}", self.host, self.port)
    }
}

/// The place in the gang; `port` is the user's. Errors: why no gang forms, as a clause.
pub fn place(spec: &ClusterSpec, port: Option<u16>) -> Result<Place, &'static str> {
    let reading = &spec.reading;
    if reading.hands_off {
        return Err("a launcher starts the replicas together already");
    }
    if reading.process.as_ref().is_some_and(|process| process.local_size != Some(1)) {
        return Err("a launcher starts several trainits on a node");
    }
    if reading.num_nodes.is_none_or(|nodes| nodes < 2) {
        return Err("there are no two training replicas");
    }
    let Some(leader) = &spec.leader else { return Err("the address of node rank 0 is not known") };
    let own = own_seat(spec).ok_or("this replica has no rank")?;
    let mut roster = roster(spec);
    roster.insert(own);
    let Some(first) = chief_of(roster.iter().copied()) else { return Err("no replica trains") };
    if (first == own) != (reading.node_rank == Some(0)) {
        return Err("the platform's roles and ranks do not agree");
    }
    let is_borrowed = reading.traits.behind_services && port.is_none();
    let of_rendezvous = match leader.port {
        borrowed if is_borrowed => borrowed,
        shared if reading.traits.shares_nodes && shared > SHARED_NODES => shared - SHARED_NODES,
        rendezvous => rendezvous.checked_add(1).unwrap_or(rendezvous - 1),
    };
    let (host, rendezvous, port) = (leader.host.clone(), leader.port, port.unwrap_or(of_rendezvous));
    Ok(Place { own, leader: first, roster, host, port, rendezvous, is_borrowed })
}

/// The default reaction of the other replicas to a notice to one.
pub fn on_notice(spec: &ClusterSpec) -> OnNotice {
    if spec.reading.traits.restarts_all { OnNotice::Leave } else { OnNotice::Hold }
}

fn role_of(job: &str) -> Role {
    match job {
        "chief" | "master" => Role::Chief,
        "ps" => Role::Ps,
        "evaluator" => Role::Evaluator,
        _ => Role::Worker,
    }
}

fn own_seat(spec: &ClusterSpec) -> Option<Seat> {
    let reading = &spec.reading;
    match roles(spec).and_then(|tf| tf.task) {
        Some((job, index)) => Some(Seat::new(role_of(job), index)),
        None => reading.node_rank.map(Seat::node),
    }
}

/// The replicas and their roles, if the platform has roles.
fn roles(spec: &ClusterSpec) -> Option<&TfCluster> {
    spec.reading.tf.as_ref().filter(|tf| spec.reading.traits.tells_tensorflow && tf.task.is_some())
}

/// Every seat that the platform lists; without a list, one for each rank.
fn roster(spec: &ClusterSpec) -> BTreeSet<Seat> {
    let Some(tf) = roles(spec) else {
        return (0..spec.reading.num_nodes.unwrap_or(1)).map(Seat::node).collect();
    };
    let listed = tf
        .jobs
        .iter()
        .flat_map(|(job, addresses)| (0u32..).zip(addresses).map(|(index, _)| Seat::new(role_of(job), index)));
    let mut roster: BTreeSet<Seat> = listed.collect();
    let evaluators = u32::try_from(tf.replicas.saturating_sub(roster.len())).unwrap_or(0);
    roster.extend((0..evaluators).map(|index| Seat::new(Role::Evaluator, index)));
    roster
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::detect;
    use crate::cluster::parse::input::Input;
    use crate::cluster::spec::ClusterOptions;
    use crate::process::env::Env;

    fn placed(pairs: &[(&str, &str)], port: Option<u16>) -> Result<Place, &'static str> {
        let env = Env::from_pairs(pairs.iter().copied());
        let options = ClusterOptions::default();
        let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a cluster");
        place(&found.spec, port)
    }

    fn seats(place: &Place) -> Vec<String> {
        place.roster.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tensorflow_tasks_are_the_seats_and_the_first_training_one_is_the_leader() {
        let cluster = r#""cluster":{"chief":["c:2222"],"worker":["w:2222","x:2222"],"ps":["p:2222"]}"#;
        let task = |task: &str| format!("{{{cluster},\"task\":{task}}}");
        let of = |text: &str| placed(&[("TF_CONFIG", &task(text))], None).expect("a gang");
        let ps = of(r#"{"type":"ps","index":0}"#);
        assert_eq!((ps.own.to_string(), ps.leads()), ("ps/0".to_owned(), false));
        assert_eq!(seats(&ps), ["chief/0", "worker/0", "worker/1", "ps/0"]);
        assert_eq!((ps.host.as_str(), ps.port), ("c", 2223));
        let chief = of(r#"{"type":"chief","index":0}"#);
        assert!(chief.leads());
        assert_eq!((&chief.roster, chief.fingerprint()), (&ps.roster, ps.fingerprint()));
        let evaluator = of(r#"{"type":"evaluator","index":0}"#);
        assert!(seats(&evaluator).contains(&"evaluator/0".to_owned()));
    }

    #[test]
    fn ranks_without_roles_are_nodes() {
        let slurm = |own| {
            let own = [("SLURM_PROCID", own), ("SLURM_NODEID", own)];
            let job = [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "3"), ("SLURM_NNODES", "3")];
            let nodes = [("SLURM_JOB_NODELIST", "n[0-2]"), ("SLURM_NTASKS_PER_NODE", "1")];
            placed(&[&own[..], &job, &nodes].concat(), None)
        };
        let third = slurm("2").expect("a gang");
        assert_eq!((third.own.to_string(), third.port), ("node/2".to_owned(), 5007));
        assert_eq!(seats(&third), ["node/0", "node/1", "node/2"]);
        assert!(slurm("0").expect("a gang").leads());
    }

    #[test]
    fn one_replica_forms_no_gang() {
        assert!(placed(&[], None).is_err());
    }

    #[test]
    fn if_only_the_rendezvous_port_is_forwarded_the_leader_borrows_it_unless_a_port_is_given() {
        let cluster = r#"{"cluster":{"workerpool0":["a:2222"],"workerpool1":["b:2222"]},"task":{"type":"workerpool1","index":0}}"#;
        let vertex = |port| placed(&[("CLUSTER_SPEC", cluster)], port).map(|place| (place.port, place.is_borrowed));
        assert_eq!(vertex(None), Ok((3333, true)));
        assert_eq!(vertex(Some(6000)), Ok((6000, false)));
    }
}
