//! Whether this replica is part of a gang, and the supervisor's configuration of it, from settings, cluster and store.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::edge::fs::small_file;
use crate::rules::cluster::framework::Resolved;
use crate::rules::cluster::spec::{ClusterError, Fact};
use crate::rules::cluster::{self};
use crate::rules::gang::agreement::Mode;
use crate::rules::gang::budget::Limits;
use crate::rules::gang::handshake::GangKey;
use crate::rules::gang::leader::OnNotice;
use crate::rules::gang::place::{Place, place};
use crate::rules::job::Policy;
use crate::rules::process::env::Env;
use crate::rules::text::quoted::shown;
use crate::settings::gang::{GangMode, GangSettings};
use crate::supervisor::gang::{Gang, KeySource, SharedStore};

/// The variable with the secret. There is no flag, because every process of the machine can read a command line.
pub(in crate::command) const TOKEN: &str = "TRAINIT_GANG_TOKEN";
/// The longest secret, in bytes.
const TOKEN_BYTES: usize = 4096;

/// The place in the gang; `None`: no gang forms. Errors: why a required gang cannot form.
pub(in crate::command) fn placed(settings: &GangSettings, resolved: &Resolved) -> Result<Option<Place>, ClusterError> {
    if settings.gang == GangMode::Off {
        return Ok(None);
    }
    match place(&resolved.spec, settings.port) {
        Ok(place) => Ok(Some(place)),
        Err(why) if settings.gang == GangMode::On => {
            let message = format!("no gang can form: {why}; leave it out, or give auto");
            Err(ClusterError::new("gang", "--gang on", message))
        }
        Err(_) => Ok(None),
    }
}

/// Logs why no gang forms, where the user asked for one or may expect one.
pub(in crate::command) fn report_none(settings: &GangSettings, resolved: &Resolved, restarts: u32) {
    match place(&resolved.spec, settings.port) {
        Err(why) if settings.gang == GangMode::Auto => tracing::info!("no gang forms: {why}"),
        Ok(place) if settings.gang == GangMode::Off && restarts > 0 => tracing::info!(
            "--gang is off, so each of the {} replicas restarts alone; with TRAINIT_GANG=auto on all of them they stop and start \
             together",
            place.roster.len()
        ),
        _ => {}
    }
}

/// For `trainit inspect`: whether a gang forms, its address, and the kind of its key.
pub(in crate::command) fn seen(
    settings: &GangSettings,
    placed: Option<&Place>,
    resolved: &Resolved,
    has_store: bool,
    env: &Env,
) -> Value {
    let Some(place) = placed else {
        let why = match place(&resolved.spec, settings.port) {
            _ if settings.gang == GangMode::Off => "--gang is off",
            Err(why) => why,
            Ok(_) => "",
        };
        return json!({ "forms": false, "why": why });
    };
    let key = match () {
        () if env.given(TOKEN).is_some() || settings.token_file.is_some() => "token",
        () if has_store => "store",
        () => "cluster",
    };
    json!({ "forms": true, "seat": place.own, "leader": place.leader, "host": place.host, "port": place.port,
        "port_is_borrowed": place.is_borrowed, "key": key })
}

/// The supervisor's configuration. Errors: the token cannot be read.
pub(in crate::command) fn gang(
    settings: &GangSettings,
    place: Place,
    policy: &Policy,
    (checkpoint_dir, store): (Option<PathBuf>, Option<SharedStore>),
    env: &Env,
    host: String,
    on_notice: OnNotice,
) -> Result<Gang, ClusterError> {
    Ok(Gang {
        key: key(settings, &place, store.is_some(), env)?,
        place,
        store,
        timing: settings.timing,
        checkpoint_dir: checkpoint_dir.filter(|_| settings.mode == Mode::Auto),
        mode: settings.mode,
        from_scratch: settings.from_scratch,
        on_notice: settings.on_notice.unwrap_or(on_notice),
        limits: Limits {
            max_restarts: policy.max_restarts,
            shortest: policy.backoff_first,
            longest: policy.backoff_max,
        },
        hang: policy.hang_timeout,
        job_id: job_id(env),
        host,
    })
}

/// The key that all replicas of the job derive: from a token, else from the store, else from the cluster's description.
fn key(settings: &GangSettings, place: &Place, has_store: bool, env: &Env) -> Result<KeySource, ClusterError> {
    if let Some(token) = env.given(TOKEN) {
        return Ok(KeySource::Known(GangKey::derive("token", token.trim().as_bytes())));
    }
    if let Some(path) = &settings.token_file {
        let token = read_token(path)?;
        return Ok(KeySource::Known(GangKey::derive("token", token.as_bytes())));
    }
    if has_store {
        return Ok(KeySource::InStore);
    }
    tracing::info!(
        "the gang's key is derived from the cluster's description, so any process with this description that reaches the port \
         can join: give all replicas the same {TOKEN} if others share the network"
    );
    let description = format!("{} {}", place.fingerprint(), job_id(env));
    Ok(KeySource::Known(GangKey::derive("cluster", description.as_bytes())))
}

/// The platform's id of the job; empty if the platform gives none.
pub(super) fn job_id(env: &Env) -> String {
    cluster::fact_variable(Fact::Job, env).map(|(_, id)| id.to_owned()).unwrap_or_default()
}

fn read_token(path: &Path) -> Result<String, ClusterError> {
    let wrong = |what: String| {
        let message =
            format!("{}: {what}; write the secret that all replicas share into it", shown(&path.to_string_lossy()));
        ClusterError::new("gang", "--gang-token-file", message)
    };
    let text =
        small_file::read_small(&path.to_string_lossy(), TOKEN_BYTES).map_err(|error| wrong(error.to_string()))?;
    match text.as_deref().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(token.to_owned()),
        Some(_) => Err(wrong("it is empty".to_owned())),
        None => Err(wrong("there is no such file".to_owned())),
    }
}
