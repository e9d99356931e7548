//! What `run` keeps of its checkpoints and its model: settings and the node's rank cut into what the keeper is told.
//!
//! A build without stores has `keeping_without_store.rs` in this file's place.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::checkpoint::shown::local_object;
use crate::edge::blocking;
use crate::edge::clock;
use crate::edge::fault::Faults;
use crate::edge::places::Found;
use crate::edge::store::Access;
use crate::rules::checkpoint::Options;
use crate::rules::checkpoint::address::{Address, Nearness, shown};
use crate::rules::checkpoint::pace::Pace;
use crate::rules::checkpoint::plan::TICK;
use crate::rules::cluster::{
    self,
    spec::{ClusterSpec, Fact},
};
use crate::rules::env::Env;
use crate::rules::framework::Resolved;
use crate::rules::status::sibling::Kept;
use crate::settings::Reader;
use crate::settings::checkpoint::{Checkpoints, Resuming};
use crate::settings::model::{self, Model};
use crate::supervisor::Keep;
use crate::supervisor::keeper::mirror::{Mirror, MirrorConfig, MirrorError, Restore, apart};
use crate::supervisor::keeper::sibling::{self, Others, Sibling};
use crate::supervisor::keeper::survey::Surveyed;
use crate::supervisor::keeper::{self, LeftModel};

/// More of a launch's name is not looked at: a run's file about itself stays small.
const LAUNCH_CHARS: usize = 200;

/// Who keeps the checkpoints where there are several trainits on a node.
const KEPT_BY: &str = "the trainit of local rank 0 on this node";
/// And where one has started another.
const KEPT_ABOVE: &str = "the trainit that this one runs below";

/// What was said about checkpoints and the model.
pub(super) struct Keeping {
    checkpoints: Checkpoints,
    model: Option<Model>,
    places: Found,
}

/// What does not answer by then is looked at again, and waited for, when the keeper begins.
const PATIENCE: Duration = Duration::from_secs(2);

impl Keeping {
    /// Reads both topics; mistakes go to the reader.
    pub(super) fn read(reader: &mut Reader<'_>) -> Keeping {
        let mut checkpoints = Checkpoints::read(reader);
        checkpoints.needs_directory(reader);
        let model = model::read(reader);
        checkpoints.model_dir = model.as_ref().map(|model| model.dir.clone());
        Keeping { checkpoints, model, places: Found::default() }
    }

    /// Finds out where all lies; what lies in each other is a mistake. False: it was not to go on, as `goes_on` says.
    pub(super) fn look(&mut self, reader: &mut Reader<'_>, goes_on: &dyn Fn() -> bool) -> bool {
        let Keeping { checkpoints, model, .. } = self;
        let stores = [&checkpoints.store, &model.as_ref().and_then(|model| model.store.clone())];
        let stores = stores.into_iter().flatten().filter_map(|store| match store {
            Address::Directory(path) => Some(path),
            Address::Bucket(_) => None,
        });
        let places = [&checkpoints.dir, &checkpoints.model_dir].into_iter().flatten().chain(stores);
        self.places = Found::of(places.cloned().collect(), PATIENCE, goes_on);
        let real = |path: &Path| self.places.real(path);
        if let (Some(dir), Some(store)) = (&checkpoints.dir, &checkpoints.store)
            && let Err(error) = apart(dir, store, &real)
        {
            reader.complain("checkpoint-store", error.message);
        }
        if let Some(Model { dir, store: Some(store) }) = &model
            && store.nearness(dir, &real) == Nearness::Nested
        {
            let why = store.nested("the model's place", dir, "a copy of the model would be part of the model");
            reader.complain("model-store", why);
        }
        !self.places.was_stopped
    }

    /// What there is of checkpoints here, for people: no store is asked and nothing is touched. Null without a directory;
    /// beside it the exit code of a directory that `run` could not use.
    pub(super) fn seen(self, resolved: &Resolved, env: &Env) -> (Value, u8) {
        let Some(dir) = self.checkpoints.dir.clone() else { return (Value::Null, 0) };
        let Keeping { checkpoints: mut settings, places, .. } = self;
        settings.options = beside(settings.options, resolved);
        let node_rank = resolved.spec.said.node_rank;
        let by = match resolved.spec.beside_the_first() {
            Some(_) => Some(KEPT_BY),
            None => is_below_the_keeper(&settings, &places, &resolved.spec, env).then_some(KEPT_ABOVE),
        };
        let by = by.filter(|_| settings.store.take().is_some());
        let store = node_rank.and_then(|node| Some(settings.store.take()?.of_node(node).to_string()));
        let config = Checkpoints { store: None, ..settings.clone() };
        let config = mirror_config(config, &places, node_rank.unwrap_or(0), false, env);
        let (local, problem) = match surveyed(config) {
            Ok(local) => (local, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let is_wanted = |unit: &&Surveyed| {
            unit.problem.is_none() && settings.restore_step.is_none_or(|step| unit.step == Some(step))
        };
        let newest = local.iter().find(is_wanted);
        let foreseen = || settings.foreseen(store.is_some(), newest.map(|unit| unit.unit.as_str()));
        let restore = by.map_or_else(foreseen, |by| format!("from what {by} restores"));
        let mut seen = json!({
            "directory": dir,
            "store": store,
            "format": local.first().map(|unit| unit.framework),
            "evidence": local.first().map(|unit| unit.evidence),
            "found": local.len(),
            "newest_complete": newest.map(local_object),
            "restore": if problem.is_some() { Value::Null } else { restore.into() },
            "problem": problem.as_ref().map(|error| error.message.clone()),
        });
        if let Some(by) = by {
            seen["kept_by"] = by.into();
        }
        (seen, problem.map_or(0, |error| error.code))
    }

    /// What this node keeps; `None`: nothing. Of several trainits on it only the first commits, and copies the model.
    pub(super) fn of_node(mut self, resolved: &Resolved, env: &Env) -> Option<Keep> {
        let (node_rank, local_rank) = (resolved.spec.said.node_rank, resolved.spec.beside_the_first());
        self.checkpoints.options = beside(self.checkpoints.options, resolved);
        let is_below = is_below_the_keeper(&self.checkpoints, &self.places, &resolved.spec, env);
        let is_ours = local_rank.is_none() && !is_below;
        let model = left_model(self.model.filter(|_| is_ours), node_rank, &self.checkpoints, env);
        let stores = [self.checkpoints.store.as_ref().filter(|_| is_ours), model.as_ref().map(|model| &model.store)];
        tell_of_passing(stores.into_iter().flatten(), &self.places);
        let by = match local_rank {
            Some(local_rank) => Some(format!("{KEPT_BY}; this one, of local rank {local_rank},")),
            None => is_below.then(|| format!("{KEPT_ABOVE}; this one")),
        };
        let checkpoints = match by {
            Some(by) => kept_beside(self.checkpoints, &self.places, &resolved.spec, &by, env),
            None => kept(self.checkpoints, &self.places, &resolved.spec, env)
                .map(|checkpoints| with_others(checkpoints, &resolved.spec, env)),
        };
        (checkpoints.is_some() || model.is_some()).then_some(Keep { checkpoints, model })
    }
}

/// Warns of a store that was meant to be a volume, and is a directory of the container that nobody mounted anything on.
fn tell_of_passing<'a>(stores: impl Iterator<Item = &'a Address>, places: &Found) {
    for store in stores {
        if matches!(store, Address::Directory(path) if places.is_passing(path)) {
            tracing::warn!(
                code = "store",
                "{store} lies in the container's own file system: what is put there is gone with the container; mount a volume \
                 there (docker run -v, a claim in Kubernetes), or name a bucket"
            );
        }
    }
}

/// With who else may write into the checkpoint directory. How many processes do is known where all are on this node, and we
/// or a launcher above start each. (A single one may be the launcher of many; other nodes may or may not share the directory.)
fn beside(options: Options, resolved: &Resolved) -> Options {
    let (launches, nodes) = (resolved.launches.len(), resolved.spec.said.num_nodes);
    let launched = resolved.spec.said.process.as_ref().map(|process| process.world);
    let world_size = launched.or(u32::try_from(launches).ok()).filter(|count| nodes == Some(1) && *count > 1);
    let since_1970 = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(TICK);
    let begun_ns = i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX);
    Options { world_size, begun_ns, has_other_nodes: nodes.is_some_and(|nodes| nodes > 1), ..options }
}

/// The checkpoints to keep, if there is a directory. A replica without a rank (ps, evaluator) commits nothing: the
/// training replicas' checkpoints are not its own.
fn kept(mut settings: Checkpoints, places: &Found, spec: &ClusterSpec, env: &Env) -> Option<keeper::Checkpoints> {
    let node_rank = spec.said.node_rank;
    let dir = settings.dir.as_ref()?;
    if node_rank.is_none() {
        settings.store = None;
    }
    let kept = settings.store.as_ref().map(|store| known_as(places.real(dir), store, node_rank, spec));
    let (interval, settle, claim) = (settings.interval, settings.settle, settings.store.is_some());
    let mirror = mirror_config(settings, places, node_rank.unwrap_or(0), claim, env);
    let alone = node_rank.is_some() && spec.said.process.is_none() && !mirror.options.has_other_nodes;
    Some(keeper::Checkpoints { mirror, interval, settle, kept, alone, sibling: None, others: None })
}

/// Whether this trainit is part of the command of one that keeps the same checkpoints, as where the entrypoint of an image
/// is trainit already and the variables set both: it would take the store from that one.
fn is_below_the_keeper(settings: &Checkpoints, places: &Found, spec: &ClusterSpec, env: &Env) -> bool {
    let (Some(dir), Some(store)) = (&settings.dir, &settings.store) else { return false };
    let ours = known_as(places.real(dir), store, spec.said.node_rank, spec);
    env.given("TRAINIT_SOCKET").is_some_and(|socket| sibling::is_of_its_keeper(Path::new(socket), &ours))
}

/// The checkpoints that the node's first trainit keeps, if it is there: this one waits for its restore.
fn kept_beside(
    mut settings: Checkpoints,
    places: &Found,
    spec: &ClusterSpec,
    by: &str,
    env: &Env,
) -> Option<keeper::Checkpoints> {
    let (dir, store) = (settings.dir.clone()?, settings.store.clone());
    let (Some(store), Some(node_rank)) = (store, spec.said.node_rank) else {
        settings.store = None;
        return kept(settings, places, spec, env);
    };
    tracing::info!(
        "checkpoints are kept by {by} neither restores nor commits, and starts the command when that one has restored"
    );
    // Where the node is only a guess it may be another than the first's.
    let is_guess = spec.said.process.as_ref().is_some_and(|process| process.node_guessed);
    let known = known_as(places.real(&dir), &store, Some(node_rank).filter(|_| !is_guess), spec);
    // Not to be taken for the first.
    let beside = Some(Kept { beside: true, ..known.clone() });
    let sibling = Sibling { kept: known, dir, store, tmp: env.given("TMPDIR").map(str::to_owned) };
    Some(keeper::Checkpoints {
        sibling: Some(sibling),
        kept: beside,
        alone: false,
        ..kept(settings, places, spec, env)?
    })
}

/// The others of the node, where a launcher has started some.
fn with_others(checkpoints: keeper::Checkpoints, spec: &ClusterSpec, env: &Env) -> keeper::Checkpoints {
    let is_first = spec.said.process.as_ref().is_some_and(|process| process.local_size != Some(1));
    let tmp = env.given("TMPDIR").map(str::to_owned);
    let others = checkpoints.kept.clone().filter(|_| is_first).map(|kept| Others {
        kept: Kept { beside: true, ..kept },
        tmp,
        since: clock::wall(),
    });
    keeper::Checkpoints { others, ..checkpoints }
}

/// How the trainits of a node know that they mean the same checkpoints.
fn known_as(dir: PathBuf, store: &Address, node_rank: Option<u32>, spec: &ClusterSpec) -> Kept {
    let directory = dir.to_string_lossy().into_owned();
    let launch = spec.said.launch.as_ref().map(|launch| launch.chars().take(LAUNCH_CHARS).collect());
    Kept { directory, store: shown(&store.to_string()), node_rank, launch, beside: false }
}

/// The model to copy at the end: the chief's alone, or each replica would write over the others'.
fn left_model(model: Option<Model>, node_rank: Option<u32>, settings: &Checkpoints, env: &Env) -> Option<LeftModel> {
    let Model { dir, store } = model?;
    let Some(store) = store else {
        tracing::warn!(
            "the model in {} goes nowhere: neither --model-store nor AIP_MODEL_DIR names a place",
            dir.display()
        );
        return None;
    };
    let access = Access::new(env.clone(), settings.allow_http);
    let follow = settings.options.follow;
    (node_rank == Some(0)).then_some(LeftModel { dir, store, follow, access })
}

/// Every checkpoint that lies in the directory.
fn surveyed(config: MirrorConfig) -> Result<Vec<Surveyed>, MirrorError> {
    let runtime = blocking::runtime(true);
    let runtime = runtime.map_err(|error| MirrorError { message: format!("cannot start: {error}"), code: 1 })?;
    runtime.block_on(async { Ok(Mirror::open_to_look(config).await?.survey().await?.units) })
}

/// Where the finished model lies in the checkpoint directory.
fn model_within(settings: &Checkpoints, places: &Found) -> Option<String> {
    let (dir, model) = (places.real(settings.dir.as_ref()?), places.real(settings.model_dir.as_ref()?));
    let within = model.strip_prefix(dir).ok()?.to_str()?;
    (!within.is_empty()).then(|| within.to_owned())
}

/// What the mirror is told, from the settings and the node's rank. `claim`: to commit, not only to look.
pub(super) fn mirror_config(settings: Checkpoints, places: &Found, node: u32, claim: bool, env: &Env) -> MirrorConfig {
    let left_out = model_within(&settings, places);
    MirrorConfig {
        dir: settings.dir.unwrap_or_default(),
        chief: settings.store.clone().filter(|_| node > 0),
        store: settings.store.map(|store| store.of_node(node)),
        access: Access::new(env.clone(), settings.allow_http),
        pace: Arc::new(Mutex::new(Pace::new(settings.bandwidth))),
        options: Options { left_out, ..settings.options },
        retention: settings.retention,
        restore: match settings.restore {
            Resuming::Latest => Restore::Latest,
            Resuming::Required => Restore::Required,
            Resuming::None => Restore::Never,
        },
        restore_step: settings.restore_step,
        strong: settings.strong,
        apart: settings.apart,
        push_step: settings.push_step,
        dry: false,
        job: cluster::told(Fact::Job, env).map(|(_, id)| id.to_owned()).unwrap_or_default(),
        node,
        claim,
        only_sends: false,
        faults: Faults::parse(env.given("TRAINIT_TEST_FAULT")),
    }
}
