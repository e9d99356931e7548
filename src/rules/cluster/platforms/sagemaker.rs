//! SageMaker: `resourceconfig.json`, or else the toolkit's `SM_HOSTS` and `SM_CURRENT_HOST`.
//!
//! ```json
//! {"current_host":"algo-2","hosts":["algo-1","algo-2"],"network_interface_name":"eth0"}
//! ```
//!
//! The order of hosts in the file is the order of ranks, for example algo-10 before algo-2. If the job has several
//! instance groups (`current_group_name`, `instance_groups`), the world is the group of this host: hosts of another group
//! may prepare data and would never join. A container without the toolkit gets the toolkit's variables from trainit.
//! Deliberately absent: hyperparameters, which the toolkit reads.

use serde_json::Value;

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::parse::address::parse_host;
use crate::cluster::parse::input::Input;
use crate::cluster::parse::json;
use crate::cluster::parse::pools::workers;
use crate::cluster::spec::{ClusterError, Leader, Nproc, PlatformName, Reading, Role, Traits, Warning, quote};
use crate::cluster::unread::signs::Signs;
use crate::cluster::written::{Job, Limit, Notice, Permanent, Replica, Restarts, Simulated, Success};
use crate::process::env::Env;

const RESOURCES: &str = "/opt/ml/input/config/resourceconfig.json";
const CHANNELS: &str = "/opt/ml/input/config/inputdataconfig.json";
/// The port that SageMaker's own launchers use for rendezvous.
const RENDEZVOUS_PORT: u16 = 7777;

/// The variables with the same content as the file.
const PLACE: [&str; 3] = ["SM_HOSTS", "SM_CURRENT_HOST", "SM_NETWORK_INTERFACE_NAME"];

/// The port of SageMaker's TensorFlow container.
const TENSORFLOW_PORT: u16 = 8890;

struct Found {
    place: &'static str,
    current_place: &'static str,
    hosts: Value,
    current: Option<String>,
    interface: Option<String>,
    groups: Vec<Group>,
    current_group: Option<String>,
}

/// An instance group of a heterogeneous cluster.
struct Group {
    name: String,
    hosts: Vec<String>,
}

const NAME: PlatformName = PlatformName("sagemaker");

pub(in crate::cluster) const SAGEMAKER: Platform = Platform {
    collector: &["TRAINING_JOB_ARN", "SM_CURRENT_HOST", "SM_HOSTS"],
    first: First::Name(["SM_CURRENT_HOST", "SM_HOSTS"]),
    simulated: Some(Simulated {
        name: NAME.0,
        write,
        other_roles: &[],
        restarts: Restarts { whole_job: true, limit: Limit::None, permanent: Permanent::All },
        success: Success::OfAll,
        notice: Notice::Signal,
    }),
    signs: &[Signs { launcher: "SageMaker", counts: &["SM_HOSTS"], places: &["SM_CURRENT_HOST"], ..Signs::NODES }],
    ..Platform::of(
        &[NAME],
        &[
            "SM_HOSTS",
            "SM_CURRENT_HOST",
            "SM_NETWORK_INTERFACE_NAME",
            "SM_INSTANCE_GROUPS_DICT",
            "SM_CURRENT_INSTANCE_GROUP",
        ],
        "/opt/ml/input/config/resourceconfig.json, or SM_HOSTS and SM_CURRENT_HOST",
        read,
    )
};

/// The toolkit's variables. The hosts are addresses, because names such as algo-1 resolve on SageMaker only; the
/// rendezvous port is a variable, because all hosts are one machine.
fn write(job: &Job, replica: &Replica) -> Vec<(&'static str, String)> {
    let hosts = job.training_hosts();
    vec![
        (PLACE[0], Value::from(hosts).to_string()),
        (PLACE[1], replica.address.host.clone()),
        (PLACE[2], "lo".to_owned()),
        ("TRAINING_JOB_ARN", format!("arn:aws:sagemaker:local:0:training-job/{}", job.number)),
        ("MASTER_PORT", job.rendezvous_port.to_string()),
    ]
}

/// Whether this is a SageMaker container, according to its variables.
pub fn is_here(env: &Env) -> bool {
    env.given("TRAINING_JOB_ARN").is_some() || env.given("SM_CURRENT_HOST").is_some()
}

/// Reads the file, or else the variables.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let (found, is_bare) = match input.file(RESOURCES)? {
        Some(text) => (from_file(&text)?, true),
        None => match from_variables(input)? {
            Some(found) => (found, false),
            None => return Ok(None),
        },
    };
    let hosts = hosts(&found)?;
    let current = found.current.ok_or_else(|| {
        let message = "does not name the current host (current_host)";
        ClusterError::new("missing_task", found.current_place, message)
    })?;
    if !hosts.contains(&current) {
        let message = format!("the current host {} is not in the list of {} hosts", quote(&current), hosts.len());
        return Err(ClusterError::new("host_not_in_list", found.current_place, message));
    }
    let training = match input.options.rank_all_pools {
        true => hosts.clone(),
        false => own_group(&hosts, &current, &found.groups, found.current_group.as_deref()),
    };
    let rank = training.iter().position(|host| *host == current).unwrap_or(0) as u32;
    if training.len() < hosts.len() {
        let names: Vec<&str> = found.groups.iter().map(|group| group.name.as_str()).collect();
        let message = format!(
            "the job has the instance groups {}, and only the {} of {} hosts in the group of this host train together; \
             give --rank-pools all on every host if all train, or start trainit only on the hosts that train",
            quote(&names.join(", ")),
            training.len(),
            hosts.len()
        );
        warnings.push(Warning::new("instance_groups", message));
    }
    let trains = |group: &&Group| group.hosts.iter().any(|host| training.contains(host));
    if input.options.nproc == Some(Nproc::Gpu) && found.groups.iter().filter(trains).count() > 1 {
        let message = "hosts of several instance groups train, and --nproc gpu counts the GPUs of each host alone: where they \
                       have unequal numbers, ranks would not fit together; give --nproc the smallest number on every host";
        warnings.push(Warning::new("unequal_nodes", message));
    }
    let companions =
        if is_bare { companions(input, &hosts, &current, found.interface.as_deref())? } else { Vec::new() };
    warnings.extend(conflict(input, &companions));
    Ok(Some(Reading {
        leader: Leader { host: training.first().cloned(), platform_port: Some(RENDEZVOUS_PORT), port: None },
        interface: found.interface,
        companions,
        tf: Some(workers(&training, TENSORFLOW_PORT, rank)),
        hosts: Some(training.clone()),
        traits: Traits { restarts_all: true, ..Traits::default() },
        ..Reading::of(NAME, Role::Worker, rank, training.len() as u32)
    }))
}

fn from_file(text: &str) -> Result<Found, ClusterError> {
    let document = json::object(RESOURCES, text)?;
    let text_of = |name| match document.get(name).and_then(json::value) {
        Some(Value::String(text)) if !text.is_empty() => Some(text),
        _ => None,
    };
    Ok(Found {
        place: RESOURCES,
        current_place: RESOURCES,
        hosts: document.get("hosts").and_then(json::value).unwrap_or(Value::Null),
        current: text_of("current_host"),
        interface: text_of("network_interface_name"),
        groups: groups(document.get("instance_groups")),
        current_group: text_of("current_group_name"),
    })
}

fn from_variables(input: &Input<'_>) -> Result<Option<Found>, ClusterError> {
    let (Some(hosts), Some(current)) = (input.env.given("SM_HOSTS"), input.env.given("SM_CURRENT_HOST")) else {
        return Ok(None);
    };
    json::check("SM_HOSTS", hosts)?;
    Ok(Some(Found {
        place: "SM_HOSTS",
        current_place: "SM_CURRENT_HOST",
        hosts: json::value(hosts).unwrap_or(Value::Null),
        current: Some(current.trim().to_owned()),
        interface: input.env.given("SM_NETWORK_INTERFACE_NAME").map(|name| name.trim().to_owned()),
        groups: groups(input.env.given("SM_INSTANCE_GROUPS_DICT")),
        current_group: input.env.given("SM_CURRENT_INSTANCE_GROUP").map(|name| name.trim().to_owned()),
    }))
}

/// The groups that have hosts, in the file's form (a list) or the toolkit's (an object by name). Unreadable groups are
/// ignored, because most jobs have one group and nothing depends on it.
fn groups(raw: Option<&str>) -> Vec<Group> {
    let entries = match raw.and_then(json::value) {
        Some(Value::Array(list)) => list,
        Some(Value::Object(map)) => map.into_iter().map(|(_, entry)| entry).collect(),
        _ => return Vec::new(),
    };
    let group = |entry: &Value| {
        let hosts = entry.get("hosts")?.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned);
        Some(Group { name: entry.get("instance_group_name")?.as_str()?.to_owned(), hosts: hosts.collect() })
    };
    entries.iter().filter_map(group).filter(|group| !group.hosts.is_empty()).collect()
}

/// The hosts of this host's group, in the original order; all hosts if no group has this host.
fn own_group(hosts: &[String], current: &String, groups: &[Group], current_group: Option<&str>) -> Vec<String> {
    let own = groups.iter().find(|group| group.hosts.contains(current));
    let own = own.or_else(|| groups.iter().find(|group| Some(group.name.as_str()) == current_group));
    let of_group = |group: &Group| hosts.iter().filter(|host| group.hosts.contains(host)).cloned().collect::<Vec<_>>();
    own.map(of_group).filter(|own| own.contains(current)).unwrap_or_else(|| hosts.to_vec())
}

fn hosts(found: &Found) -> Result<Vec<String>, ClusterError> {
    let error = |code, message: String| ClusterError::new(code, found.place, message);
    let list = match &found.hosts {
        Value::Array(list) => list,
        Value::Null => return Err(error("missing_cluster", "has no list of hosts".to_owned())),
        other => {
            let found = json::kind(&other.to_string());
            return Err(error("bad_cluster", format!("hosts: expected a list of host names, found {found}")));
        }
    };
    if list.is_empty() {
        return Err(error("missing_cluster", "the list of hosts is empty".to_owned()));
    }
    let mut hosts = Vec::with_capacity(list.len());
    let mut seen = std::collections::HashSet::new();
    for item in list {
        let text = item.as_str().map_or_else(|| item.to_string(), str::to_owned);
        let host = match item {
            Value::String(text) => parse_host(text),
            _ => Err("is not a string".to_owned()),
        };
        let host = host.map_err(|what| error("bad_address", format!("hosts: {} {what}", quote(&text))))?;
        if !seen.insert(host.clone()) {
            return Err(error("duplicate_address", format!("hosts: {} is listed twice", quote(&host))));
        }
        hosts.push(host);
    }
    Ok(hosts)
}

/// Variables that disagree with the file, because the program may read them.
fn conflict(input: &Input<'_>, companions: &[(String, String)]) -> Option<Warning> {
    let differs = |(name, value): &(String, String)| {
        let preset = input.env.given(name).filter(|_| PLACE.contains(&name.as_str()))?;
        // A list may contain blanks.
        (preset.split_whitespace().collect::<String>() != *value)
            .then(|| format!("{name} is {} instead of {}", quote(preset), quote(value)))
    };
    let pieces: Vec<String> = companions.iter().filter_map(differs).collect();
    let message = || {
        let pieces = pieces.join("; ");
        format!(
            "the cluster was read from {RESOURCES}, but {pieces}; the command gets these variables unchanged: unset them"
        )
    };
    (!pieces.is_empty()).then(|| Warning::new("env_conflict", message()))
}

/// The variables that the toolkit would have set.
fn companions(
    input: &Input<'_>,
    hosts: &[String],
    current: &str,
    interface: Option<&str>,
) -> Result<Vec<(String, String)>, ClusterError> {
    let mut set = vec![
        ("SM_HOSTS".to_owned(), Value::from(hosts.to_vec()).to_string()),
        ("SM_CURRENT_HOST".to_owned(), current.to_owned()),
        ("SM_MODEL_DIR".to_owned(), "/opt/ml/model".to_owned()),
    ];
    set.extend(interface.map(|name| ("SM_NETWORK_INTERFACE_NAME".to_owned(), name.to_owned())));
    if let Some(text) = input.file(CHANNELS)? {
        for (channel, _) in json::object(CHANNELS, &text)?.iter() {
            let plain = channel.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
            if plain && !channel.is_empty() && !channel.starts_with('.') {
                let name = format!("SM_CHANNEL_{}", channel.to_ascii_uppercase());
                set.push((name, format!("/opt/ml/input/data/{channel}")));
            }
        }
    }
    Ok(set)
}
