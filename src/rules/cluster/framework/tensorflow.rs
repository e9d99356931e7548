//! TensorFlow reads `TF_CONFIG` and nothing else.
//!
//! A value that TensorFlow 2 accepts is passed on unchanged. `master` is renamed, a listed evaluator is removed if
//! other replicas would wait for it, and a missing value is derived. Deliberately absent: `job`, which is never
//! derived.

use super::Framework;
use serde_json::{Value, json};

use super::vars::{AlternativeAddress, Context, Derived, Precedence};
use crate::cluster::parse::json::{self, Members};
use crate::cluster::spec::{ClusterSpec, PlatformName, TfCluster, Warning};

const VARIABLE: &str = "TF_CONFIG";
/// In JSON.
const CHIEF: &str = "\"chief\"";

pub(super) const TENSORFLOW: Framework =
    Framework { alternative_leader: first_replica, ..Framework::of("tensorflow", &["TF_CONFIG"], derive) };

/// The variable in the form of TensorFlow 2.
fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let spec = context.spec;
    if let Some(text) = context.env.given(VARIABLE) {
        // With a world of unknown size the value is left unchanged, because its author knows more.
        if let Some(place) = overruled_place(context) {
            let message = format!("TF_CONFIG is unchanged: TensorFlow uses it, and ignores {place}");
            derived.warnings.push(Warning::new("env_conflict", message));
        }
        let is_ours = spec.reading.num_nodes.is_some() && context.options.platform != Some(PlatformName::NONE);
        // The other members can be preserved only in valid text.
        let is_text = context.env.bytes(VARIABLE).is_some_and(|bytes| std::str::from_utf8(bytes).is_ok());
        if is_ours
            && is_text
            && !context.options.keep_tf_config
            && let Some(rewritten) = rewrite(text, &mut derived.warnings)
        {
            derived.put(VARIABLE, rewritten, Precedence::Derived);
        }
        return derived;
    }
    if let Some(tf) = spec.reading.tf.as_ref().filter(|tf| tf.replicas > 1 && context.has_one_process_per_node())
        && let Some(text) = write(tf, spec.reading.trial.as_deref())
    {
        derived.put(VARIABLE, text, Precedence::Derived);
    }
    derived
}

/// The explicit value that disagrees with the source. It has no addresses from which another TF_CONFIG could be
/// written.
fn overruled_place<'a>(context: &Context<'a>) -> Option<&'a str> {
    let explicit = context.options.node_rank.as_ref().or(context.options.nnodes.as_ref())?;
    (context.spec.reading.traits.tells_tensorflow && context.spec.reading.tf.is_none())
        .then_some(explicit.place.as_str())
}

/// The leader's entry, if the platform itself gives TensorFlow's addresses: TensorFlow listens only there.
fn first_replica(spec: &ClusterSpec) -> Option<AlternativeAddress> {
    let jobs = &spec.reading.tf.as_ref().filter(|_| spec.reading.traits.tells_tensorflow)?.jobs;
    let of = |job: &str| jobs.iter().find(|(name, _)| *name == job).and_then(|(_, addresses)| addresses.first());
    let address = of("chief").or_else(|| of("worker")).cloned()?;
    Some(AlternativeAddress { address, server: "TensorFlow's", variable: VARIABLE })
}

fn write(tf: &TfCluster, trial: Option<&str>) -> Option<String> {
    let (kind, index) = tf.task?;
    let cluster: serde_json::Map<String, Value> = tf
        .jobs
        .iter()
        .map(|(job, addresses)| {
            let list = addresses.iter().map(|a| Value::from(a.to_string())).collect();
            ((*job).to_owned(), Value::Array(list))
        })
        .collect();
    let mut task = json!({ "type": kind, "index": index });
    if let Some(trial) = trial {
        task["trial"] = Value::from(trial);
    }
    Some(json!({ "cluster": cluster, "environment": "cloud", "task": task }).to_string())
}

/// The text with the parts changed that TensorFlow 2 does not accept; `None` if no change is necessary.
fn rewrite(text: &str, warnings: &mut Vec<Warning>) -> Option<String> {
    let document = json::object(VARIABLE, text).ok()?;
    let cluster = json::members(document.get("cluster")?)?;
    let task = json::members(document.get("task")?)?;
    let kind = task.get("type").and_then(json::value)?;
    let listed = |name: &str| cluster.get(name).is_some_and(|raw| !is_empty(raw));
    let is_master = kind == "master" || listed("master");
    let has_evaluator = listed("evaluator") && kind != "evaluator";
    if !is_master && !has_evaluator {
        return None;
    }
    if is_master {
        let message = "TF_CONFIG: master is renamed to chief for the command, because TensorFlow 2 has no master; \
                       --tf-config keep leaves it";
        warnings.push(Warning::new("master_renamed", message));
    }
    if has_evaluator {
        let message = "TF_CONFIG: the evaluator is removed for the command, because parameter server training would wait \
                       for it for ever; --tf-config keep leaves it";
        warnings.push(Warning::new("evaluator_removed", message));
    }
    let replaces_chief = listed("master");
    let cluster = object(&cluster, |name, written, raw| {
        let goes = (has_evaluator && name == "evaluator") || (replaces_chief && name == "chief");
        let written = if is_master && name == "master" { CHIEF } else { written };
        (!goes).then_some((written, raw))
    });
    let task = object(&task, |name, written, raw| {
        let is_renamed = name == "type" && kind == "master";
        Some((written, if is_renamed { CHIEF } else { raw }))
    });
    Some(object(&document, |name, written, raw| match name {
        "cluster" => Some((written, cluster.as_str())),
        "task" => Some((written, task.as_str())),
        _ => Some((written, raw)),
    }))
}

fn is_empty(raw: &str) -> bool {
    matches!(json::value(raw), Some(Value::Array(list)) if list.is_empty())
        || matches!(json::value(raw), Some(Value::Object(map)) if map.is_empty())
}

/// The object with changed members: `each` maps a name, its original text and the raw value to the new member.
fn object<'a>(members: &'a Members, each: impl Fn(&str, &'a str, &'a str) -> Option<(&'a str, &'a str)>) -> String {
    let pairs = members.iter().zip(members.written());
    let members: Vec<String> = pairs
        .filter_map(|((name, _), (written, raw))| each(name, written, raw))
        .map(|(written, raw)| format!("{written}:{raw}"))
        .collect();
    format!("{{{}}}", members.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str) -> (Option<String>, Vec<&'static str>) {
        let mut warnings = Vec::new();
        let text = rewrite(text, &mut warnings);
        (text, warnings.into_iter().map(|w| w.code).collect())
    }

    #[test]
    fn a_value_that_tensorflow_accepts_is_unchanged() {
        for text in [
            "{}",
            r#"{ "cluster": {"worker":["a:1"]}, "task":{"type":"worker","index":0}}"#,
            r#"{"cluster":{"worker":["a:1"],"evaluator":[]},"task":{"type":"worker","index":0}}"#,
            r#"{"cluster":{"worker":["a:1"],"evaluator":["e:1"]},"task":{"type":"evaluator","index":0}}"#,
        ] {
            assert_eq!(rewritten(text), (None, vec![]), "{text}");
        }
    }

    #[test]
    fn only_necessary_parts_change_and_large_numbers_keep_their_text() {
        let given = r#"{"cluster":{"master":["m:1"],"worker":["a:1"]},"job":{"big":123456789012345678901234567890,"x":1.10,"y":NaN},"\ud800":Infinity,"task":{"index":"0","type":"master","cloud":"w"}}"#;
        let expected = r#"{"cluster":{"chief":["m:1"],"worker":["a:1"]},"job":{"big":123456789012345678901234567890,"x":1.10,"y":NaN},"\ud800":Infinity,"task":{"index":"0","type":"chief","cloud":"w"}}"#;
        assert_eq!(rewritten(given), (Some(expected.to_owned()), vec!["master_renamed"]));
    }

    #[test]
    fn a_worker_beside_a_master_sees_a_chief_too() {
        let (text, _) = rewritten(
            r#"{"cluster":{"chief":[],"master":["m:1"],"worker":["a:1"]},"task":{"type":"worker","index":0}}"#,
        );
        let expected = r#"{"cluster":{"chief":["m:1"],"worker":["a:1"]},"task":{"type":"worker","index":0}}"#;
        assert_eq!(text.as_deref(), Some(expected));
    }
}
