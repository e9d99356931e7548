//! `trainit inspect`: what trainit detects here, and the origin of each value, as text for people or as one JSON
//! object.
//!
//! The text is made from the object, so that both agree. Deliberately absent: starting anything.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{refuse_all, values};
use crate::cli::Parsed;
use crate::command::run::gang;
use crate::command::run::options::{Placed, RunOptions};
use crate::edge::gpu;
use crate::edge::host::{dmi, limits};
use crate::edge::io::stdio;
use crate::rules::cluster::framework::{Launch, Resolved};
use crate::rules::cluster::spec::{ClusterError, ClusterSpec, quote};
use crate::rules::gpu::{Discovery, table};
use crate::rules::job::Policy;
use crate::rules::preempt;
use crate::rules::process::env::{Changes, Env};
use crate::rules::process::exit;
use crate::rules::text::quoted::shown;
use crate::rules::text::safe_text::{counted, printable};
use crate::settings::defs::{Takes, find};
use crate::settings::{Origin, Reader, Values};

/// The members of two parts that are settings.
const CHECKPOINTS: [(&str, &str); 2] = [("directory", "checkpoint-dir"), ("store", "checkpoint-store")];
const MODEL: [(&str, &str); 2] = [("directory", "model-dir"), ("store", "model-store")];

/// The limit for values in the text for people.
const SHOWN_CHARS: usize = 200;

/// Prints the result; 125 if `run` would not start because of a mistake in a setting or a variable, or an unmet demand.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    let (values, complaints) = values(parsed, env);
    let mut reader = Reader::new(&values, complaints);
    let as_json = reader.switch("json");
    let mut options = RunOptions::read(&mut reader, parsed.on, env);
    options.keeping.resolve_places(&mut reader, &|| true);
    let mut discovery = None;
    let mut discover = || discovery.get_or_insert_with(|| gpu::discover(options.gpus.timeout, env)).clone();
    let Placed { resolved, gang, .. } = match options.place(&reader, env, &mut discover) {
        Ok(placed) => placed,
        Err(mistakes) if as_json => return fail(&mistakes),
        Err(mistakes) => return refuse_all(&mistakes, env),
    };
    let discovery = discover();
    let unmet = options.gpus.demands.unmet(&discovery, env.get("CUDA_VISIBLE_DEVICES"));
    let mut sources = preempt::sources_to_watch(options.run.preemption, env, &dmi::local_facts)
        .into_iter()
        .map(|(source, endpoint)| json!({ "source": source.name, "endpoint": endpoint }));
    let shared = options.keeping.shared_store(env);
    let gang = gang::seen(&options.gang, gang.as_ref(), &resolved, shared.is_some(), env);
    let (checkpoints, code) = options.keeping.describe(&resolved, env);
    let mut object = object(&resolved, &values, &discovery, &unmet);
    object["gang"] = gang;
    object["checkpoints"] = with_sources(checkpoints, &object["settings"], CHECKPOINTS);
    object["model"] = model_object(&object["settings"]);
    add_derived(&mut object["settings"], &options.run.policy);
    object["preemption"] = sources.next().unwrap_or(Value::Null);
    let others: Vec<Value> = sources.collect();
    if !others.is_empty() {
        object["preemption"]["others"] = others.into();
    }
    let text = if as_json { format!("{object:#}\n") } else { text(&object, &discovery) };
    match stdio::print(&text) {
        Ok(()) if unmet.is_empty() => code,
        Ok(()) => exit::NOT_STARTED,
        Err(_) => 1,
    }
}

/// The first mistake, whose message includes the others for readers of only that one, and each mistake separately.
fn fail(mistakes: &[ClusterError]) -> u8 {
    let each = |m: &ClusterError| json!({ "code": m.code, "variable": m.variable, "message": m.message });
    let mut object = json!({ "errors": mistakes.iter().map(each).collect::<Vec<Value>>() });
    if let Some((first, others)) = mistakes.split_first() {
        let others = others.iter().map(ToString::to_string);
        let message: Vec<String> = std::iter::once(first.message.clone()).chain(others).collect();
        object["error"] = json!({ "code": first.code, "variable": first.variable, "message": message.join("; ") });
    }
    // If standard output is closed, the exit code still reports it.
    let _ = stdio::print(&format!("{object:#}\n"));
    exit::NOT_STARTED
}

fn object(resolved: &Resolved, values: &Values, discovery: &Discovery, unmet: &[String]) -> Value {
    let changes = resolved.changes();
    let mut warnings: Vec<Value> =
        resolved.warnings.iter().map(|w| json!({ "code": w.code, "message": w.message })).collect();
    warnings.extend(discovery.problem.as_ref().map(|problem| json!({ "code": "gpu_problem", "message": problem })));
    warnings.extend(unmet.iter().map(|demand| json!({ "code": "gpu_demand", "message": demand })));
    let mut object = json!({
        "cluster": cluster_object(&resolved.spec),
        "child_env": changes.set,
        "removed_env": changes.removed,
        "warnings": warnings,
        "gpus": discovery.gpus,
        "limits": limits_object(),
        "settings": settings_object(values),
    });
    if resolved.launches.iter().any(|launch| launch.process.is_some()) {
        object["processes"] =
            resolved.launches.iter().map(|launch| launch_object(launch, &resolved.launches)).collect();
    }
    object
}

fn cluster_object(spec: &ClusterSpec) -> Value {
    let is_guess = spec.reading.process.as_ref().is_some_and(|process| process.node_guessed);
    let known = |place: Option<u32>| place.filter(|_| !is_guess);
    json!({
        "platform": spec.reading.platform.word(),
        "role": spec.reading.role.word(),
        "is_chief": spec.reading.is_chief,
        "node_rank": known(spec.reading.node_rank),
        "num_nodes": known(spec.reading.num_nodes),
        "leader": spec.leader.as_ref().map(|l| json!({ "host": l.host, "port": l.port })),
        "hosts": spec.reading.hosts,
        "trial": spec.reading.trial,
    })
}

/// The values of this process that differ from those of other processes on the node.
fn launch_object(launch: &Launch, all: &[Launch]) -> Value {
    let differs = |changes: &Changes, name: &str, value: &String| changes.set.get(name) != Some(value);
    let own: Map<String, Value> = launch
        .changes
        .set
        .iter()
        .filter(|(name, value)| all.len() == 1 || all.iter().any(|other| differs(&other.changes, name, value)))
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect();
    json!({
        "local_rank": launch.process.as_ref().and_then(|p| p.local_rank),
        "rank": launch.process.as_ref().map(|p| p.rank),
        "is_chief": launch.is_chief,
        "child_env": own,
    })
}

fn limits_object() -> Value {
    let limits = limits::read();
    json!({
        "cpus": limits.cpus,
        "memory_bytes": limits.memory_bytes,
        "cgroup_memory_bytes": limits.cgroup_memory_bytes,
        "open_files": limits.open_files,
    })
}

fn settings_object(values: &Values) -> Value {
    let settings = values.iter().map(|(name, given)| {
        let setting = find(name);
        let origin = match &given.origin {
            Origin::Flag => "flag".to_owned(),
            Origin::Variable => format!("variable {}", setting.and_then(|s| s.variable()).unwrap_or_default()),
            Origin::File(path, line) => format!("{}:{line}", path.display()),
            Origin::Platform(because) => format!("platform {because}"),
            Origin::Default => "default".to_owned(),
        };
        let value = match setting.map(|s| s.takes) {
            Some(Takes::Many(_)) => given.values.iter().map(|value| shown(value)).collect(),
            _ => json!(given.values.last().map(|value| shown(value))),
        };
        (name.to_owned(), json!({ "value": value, "source": origin }))
    });
    Value::Object(settings.collect())
}

/// Adds the origin to the members that are settings.
fn with_sources(mut part: Value, settings: &Value, names: [(&str, &str); 2]) -> Value {
    for (key, name) in names {
        if part[key].is_string() {
            part[key] = json!({ "value": part[key].as_str().map(shown), "source": settings[name]["source"] });
        }
    }
    part
}

fn model_object(settings: &Value) -> Value {
    let place = |name: &str| settings[name]["value"].clone();
    let part = json!({ "directory": place("model-dir"), "store": place("model-store") });
    if part["directory"].is_null() { Value::Null } else { with_sources(part, settings, MODEL) }
}

/// Adds a default that depends on other settings.
fn add_derived(settings: &mut Value, policy: &Policy) {
    if settings["max-restarts"].is_null() {
        settings["max-restarts"] = json!({ "value": policy.max_restarts.to_string(), "source": "default" });
    }
}

/// The object as text for people. Long values are cut, because TF_CONFIG may contain secrets.
fn text(object: &Value, discovery: &Discovery) -> String {
    let mut text = String::new();
    let cluster = &object["cluster"];
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<14}{value}");
    };
    line("platform", value_text(&cluster["platform"]));
    line(
        "role",
        format!(
            "{}{}",
            value_text(&cluster["role"]),
            if cluster["is_chief"] == true { " (writes checkpoints)" } else { "" }
        ),
    );
    line("node rank", format!("{} of {}", value_text(&cluster["node_rank"]), value_text(&cluster["num_nodes"])));
    let leader = &cluster["leader"];
    line(
        "leader",
        if leader.is_null() { "-".into() } else { format!("{}:{}", value_text(&leader["host"]), leader["port"]) },
    );
    line("hosts", list(&cluster["hosts"]));
    line("trial", value_text(&cluster["trial"]));
    section(&mut text, "set for the command", &object["child_env"], value_text);
    section(&mut text, "removed for the command", &object["removed_env"], |_| String::new());
    // A single process is already described above.
    for process in object["processes"].as_array().filter(|all| all.len() > 1).into_iter().flatten() {
        section(
            &mut text,
            &format!("process {}", value_text(&process["local_rank"])),
            &process["child_env"],
            value_text,
        );
    }
    for warning in object["warnings"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "\nwarning: {} [code={}]",
            warning["message"].as_str().map_or_else(String::new, printable),
            value_text(&warning["code"])
        );
    }
    kept(&mut text, "checkpoints", &object["checkpoints"]);
    kept(&mut text, "model", &object["model"]);
    section(&mut text, "gang", &object["gang"], value_text);
    section(&mut text, "preemption source", &object["preemption"], value_text);
    let _ = write!(text, "\nGPUs\n{}", table::render(discovery));
    section(&mut text, "limits", &object["limits"], value_text);
    section(&mut text, "settings", &object["settings"], |setting| {
        format!("{}  ({})", list(&setting["value"]), value_text(&setting["source"]))
    });
    text
}

/// The checkpoints or the model, and the store; the newest checkpoint on one line.
fn kept(text: &mut String, heading: &str, part: &Value) {
    if part.is_null() {
        let _ = writeln!(text, "\n{heading}\n  none");
        return;
    }
    section(text, heading, part, |member| match (&member["source"], &member["unit"]) {
        (Value::String(source), _) => format!("{}  ({source})", value_text(&member["value"])),
        (_, Value::String(_)) => {
            let step = member["step"].as_u64().map_or("no step".to_owned(), |step| format!("step {step}"));
            let files = counted(member["files"].as_u64().unwrap_or_default() as usize, "file");
            format!("{} ({step}, {files}, {} bytes)", value_text(&member["unit"]), member["bytes"])
        }
        (_, _) => member.as_str().map_or_else(|| value_text(member), printable),
    });
}

/// A heading and its members, one on each line; the entries of a list have no names.
fn section(text: &mut String, heading: &str, members: &Value, shown: impl Fn(&Value) -> String) {
    let _ = writeln!(text, "\n{heading}");
    match members {
        Value::Object(map) if !map.is_empty() => {
            let width = map.keys().map(|name| name.chars().count()).max().unwrap_or(0).min(32);
            for (name, value) in map {
                let _ = writeln!(text, "  {name:<width$}  {}", shown(value));
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let _ = writeln!(text, "  {}{}", value_text(item), shown(item));
            }
        }
        _ => text.push_str("  -\n"),
    }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if !text.contains(char::is_control) && text.chars().count() <= SHOWN_CHARS => text.clone(),
        Value::String(text) => quote(text),
        other => other.to_string(),
    }
}

fn list(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(value_text).collect::<Vec<_>>().join(", "),
        other => value_text(other),
    }
}
