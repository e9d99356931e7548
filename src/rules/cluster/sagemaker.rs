//! SageMaker: `resourceconfig.json`, else the toolkit's `SM_HOSTS` and `SM_CURRENT_HOST`.
//!
//! ```json
//! {"current_host":"algo-2","hosts":["algo-1","algo-2"],"network_interface_name":"eth0"}
//! ```
//!
//! The given order of hosts is the order of ranks, algo-10 before algo-2. A container without the toolkit gets its
//! variables from us. Deliberately absent: hyperparameters, which are the toolkit's affair.

use serde_json::Value;

use super::Platform;
use super::address::parse_host;
use super::first::First;
use super::input::Input;
use super::json;
use super::pools::workers;
use super::spec::{ClusterError, Leader, PlatformName, Reading, Role, Warning, quote};
use crate::rules::env::Env;

const RESOURCES: &str = "/opt/ml/input/config/resourceconfig.json";
const CHANNELS: &str = "/opt/ml/input/config/inputdataconfig.json";
/// The port that SageMaker's own launchers use for rendezvous.
const RENDEZVOUS_PORT: u16 = 7777;

/// The variables that say the same as the file of resources.
const PLACE: [&str; 3] = ["SM_HOSTS", "SM_CURRENT_HOST", "SM_NETWORK_INTERFACE_NAME"];

/// The port of SageMaker's TensorFlow container.
const TENSORFLOW_PORT: u16 = 8890;

struct Found {
    place: &'static str,
    current_place: &'static str,
    hosts: Value,
    current: Option<String>,
    interface: Option<String>,
}

const NAME: PlatformName = PlatformName("sagemaker");

pub(super) const SAGEMAKER: Platform = Platform {
    first: First::Name(["SM_CURRENT_HOST", "SM_HOSTS"]),
    ..Platform::of(
        &[NAME],
        &["SM_HOSTS", "SM_CURRENT_HOST", "SM_NETWORK_INTERFACE_NAME"],
        "/opt/ml/input/config/resourceconfig.json, or SM_HOSTS and SM_CURRENT_HOST",
        read,
    )
};

/// Whether this is a container of SageMaker's, as its variables tell.
pub(in crate::rules) fn is_here(env: &Env) -> bool {
    env.given("TRAINING_JOB_ARN").is_some() || env.given("SM_CURRENT_HOST").is_some()
}

/// Reads the file, else the variables.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let (found, is_bare) = match input.file(RESOURCES)? {
        Some(text) => (from_file(&text)?, true),
        None => match from_variables(input)? {
            Some(found) => (found, false),
            None => {
                warnings.extend(nameless(input));
                return Ok(None);
            }
        },
    };
    let hosts = hosts(&found)?;
    let current = found.current.ok_or_else(|| {
        let message = "does not say which host this is (current_host)";
        ClusterError::new("missing_task", found.current_place, message)
    })?;
    let Some(rank) = hosts.iter().position(|host| *host == current) else {
        let message = format!("the current host {} is not in the list of {} hosts", quote(&current), hosts.len());
        return Err(ClusterError::new("host_not_in_list", found.current_place, message));
    };
    let companions =
        if is_bare { companions(input, &hosts, &current, found.interface.as_deref())? } else { Vec::new() };
    warnings.extend(conflict(input, &companions));
    Ok(Some(Reading {
        leader: Leader { host: hosts.first().cloned(), platform_port: Some(RENDEZVOUS_PORT), port: None },
        interface: found.interface,
        companions,
        tf: Some(workers(&hosts, TENSORFLOW_PORT, rank as u32)),
        hosts: Some(hosts.clone()),
        ..Reading::of(NAME, Role::Worker, rank as u32, hosts.len() as u32)
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
    }))
}

/// A list of hosts, and nobody says which of them this is.
fn nameless(input: &Input<'_>) -> Option<Warning> {
    let hosts = input.env.given("SM_HOSTS").filter(|_| input.env.given("SM_CURRENT_HOST").is_none())?;
    let names_several = matches!(json::value(hosts), Some(Value::Array(list)) if list.len() > 1);
    let message = "SM_HOSTS is set, but no SM_CURRENT_HOST says which of them this is: it is taken for the only one, and those \
                   that share a checkpoint store overtake each other (205); set it on every host";
    names_several.then(|| Warning::new("node_rank_unknown", message.to_owned()))
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
            _ => Err("is no string".to_owned()),
        };
        let host = host.map_err(|what| error("bad_address", format!("hosts: {} {what}", quote(&text))))?;
        if !seen.insert(host.clone()) {
            return Err(error("duplicate_address", format!("hosts: {} is there twice", quote(&host))));
        }
        hosts.push(host);
    }
    Ok(hosts)
}

/// Variables that say otherwise than the file: the program may read them.
fn conflict(input: &Input<'_>, companions: &[(String, String)]) -> Option<Warning> {
    let differs = |(name, value): &(String, String)| {
        let preset = input.env.given(name).filter(|_| PLACE.contains(&name.as_str()))?;
        // A list may have blanks.
        (preset.split_whitespace().collect::<String>() != *value)
            .then(|| format!("{name} is {} where it says {}", quote(preset), quote(value)))
    };
    let pieces: Vec<String> = companions.iter().filter_map(differs).collect();
    let message = || {
        let pieces = pieces.join("; ");
        format!("the cluster was read from {RESOURCES}, but {pieces}; the command gets them as they are: unset them")
    };
    (!pieces.is_empty()).then(|| Warning::new("env_conflict", message()))
}

/// What the toolkit would have set.
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
