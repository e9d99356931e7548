//! The parts of the settings and the node's rank that the checkpoint code of `run` needs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::command::checkpoint::directory::at_rest;
use crate::command::checkpoint::shown::part_object;
use crate::edge::clock;
use crate::edge::fault::Faults;
use crate::edge::fs::real_path::Found;
use crate::edge::store::Access;
use crate::edge::transfer::blocking;
use crate::rules::checkpoint::{Exclusions, Options, PartState, State};
use crate::rules::cluster;
use crate::rules::cluster::framework::Resolved;
use crate::rules::cluster::spec::{ClusterSpec, Fact};
use crate::rules::process::env::Env;
use crate::rules::status::sibling::Kept;
use crate::rules::store::address::{Address, Nearness};
use crate::rules::store::pace::Pace;
use crate::rules::text::quoted;
use crate::settings::Reader;
use crate::settings::checkpoint::{Checkpoints, Resuming};
use crate::settings::model::{self, Model};
use crate::supervisor::LeftModel;
use crate::supervisor::checkpoints::config::{Config, Restore, Restoring, Role};
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::{Mirror, check_not_nested};
use crate::supervisor::gang::SharedStore;
use crate::supervisor::keep::sibling::{self, Others, Sibling};
use crate::supervisor::keep::{self, Keep};

/// The limit for a launch's name, so that a run's file about itself stays small.
const LAUNCH_CHARS: usize = 200;

/// For messages: the process that commits and restores where several trainits run on a node.
const KEPT_BY: &str = "the trainit of local rank 0 on this node";
/// The same where another trainit has started this one as part of its command.
const KEPT_ABOVE: &str = "the trainit that this one runs below";

/// The settings for checkpoints and the model.
pub(in crate::command) struct Keeping {
    checkpoints: Checkpoints,
    model: Option<Model>,
    places: Found,
}

/// A place that does not respond in this time is checked again later, with waiting, by the thread for checkpoints.
const PLACES_LIMIT: Duration = Duration::from_secs(2);

impl Keeping {
    /// Reads both topics. Mistakes are collected in the reader.
    pub(in crate::command) fn read(reader: &mut Reader<'_>) -> Keeping {
        let mut checkpoints = Checkpoints::read(reader);
        checkpoints.needs_directory(reader);
        let model = model::read(reader);
        checkpoints.model_dir = model.as_ref().map(|model| model.dir.clone());
        Keeping { checkpoints, model, places: Found::default() }
    }

    /// Where the trainer writes its checkpoints.
    pub(in crate::command) fn directory(&self) -> Option<PathBuf> {
        self.checkpoints.dir.clone()
    }

    /// The store that all replicas of the job share, and the options to open it.
    pub(in crate::command) fn shared_store(&self, env: &Env) -> Option<SharedStore> {
        Some(SharedStore { address: self.checkpoints.store.clone()?, access: self.access(env) })
    }

    /// The options to open a store.
    pub(in crate::command) fn access(&self, env: &Env) -> Access {
        Access::new(env.clone(), self.checkpoints.allow_http, self.checkpoints.store_timeout)
    }

    /// Finds the real paths of the directories and stores. Overlapping ones are reported as a mistake. Returns false if
    /// `may_continue` returned false first.
    pub(in crate::command) fn resolve_places(
        &mut self,
        reader: &mut Reader<'_>,
        may_continue: &dyn Fn() -> bool,
    ) -> bool {
        let Keeping { checkpoints, model, .. } = self;
        let stores = [&checkpoints.store, &model.as_ref().and_then(|model| model.store.clone())];
        let stores = stores.into_iter().flatten().filter_map(|store| match store {
            Address::Directory(path) => Some(path),
            Address::Bucket(_) => None,
        });
        let places = [&checkpoints.dir, &checkpoints.model_dir].into_iter().flatten().chain(stores);
        self.places = Found::of(places.cloned().collect(), PLACES_LIMIT, may_continue);
        let real = |path: &Path| self.places.real(path);
        if let (Some(dir), Some(store)) = (&checkpoints.dir, &checkpoints.store)
            && let Err(error) = check_not_nested(dir, store, &real)
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

    /// The checkpoints on this machine, as the JSON object that `inspect` shows; null without a checkpoint directory.
    /// No store is read, and nothing is changed. The number is the exit code: not 0 for a directory that `run` could
    /// not use.
    pub(in crate::command) fn describe(self, resolved: &Resolved, env: &Env) -> (Value, u8) {
        let Some(dir) = self.checkpoints.dir.clone() else { return (Value::Null, 0) };
        let Keeping { checkpoints: mut settings, places, .. } = self;
        settings.options = with_world_size(settings.options, resolved);
        let node_rank = resolved.spec.reading.node_rank;
        let by = match resolved.spec.later_local_rank() {
            Some(_) => Some(KEPT_BY),
            None => is_below_the_keeper(&settings, &places, &resolved.spec, env).then_some(KEPT_ABOVE),
        };
        let by = by.filter(|_| settings.store.take().is_some());
        let store = node_rank.and_then(|node| Some(settings.store.take()?.of_node(node).to_string()));
        let config = Checkpoints { store: None, ..settings.clone() };
        let config = mirror_config(config, &places, node_rank.unwrap_or(0), Role::Looks, env);
        let (local, problem) = match surveyed(config) {
            Ok(local) => (local, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let step = settings.restore_step;
        let is_wanted = |part: &&PartState| is_complete(part) && step.is_none_or(|step| part.step == Some(step));
        let newest = local.iter().find(is_wanted);
        let name = newest.map(|part| part.unit.as_deref().unwrap_or("the directory as it is"));
        let foreseen = || settings.resume_forecast(store.is_some(), name);
        let restore = by.map_or_else(foreseen, |by| format!("from what {by} restores"));
        let mut seen = json!({
            "directory": dir,
            "store": store,
            "parts": local.iter().map(part_object).collect::<Vec<Value>>(),
            "newest_complete": newest.map(part_object),
            "restore": if problem.is_some() { Value::Null } else { restore.into() },
            "problem": problem.as_ref().map(|error| error.message.clone()),
        });
        if let Some(by) = by {
            seen["kept_by"] = by.into();
        }
        (seen, problem.map_or(0, |error| error.code))
    }

    /// The checkpoints of this node; `None` if it keeps none. Only the first of several trainits on a node commits, and
    /// copies the model.
    pub(in crate::command) fn of_node(mut self, resolved: &Resolved, env: &Env) -> Option<Keep> {
        let (node_rank, local_rank) = (resolved.spec.reading.node_rank, resolved.spec.later_local_rank());
        self.checkpoints.options = with_world_size(self.checkpoints.options, resolved);
        let is_below = is_below_the_keeper(&self.checkpoints, &self.places, &resolved.spec, env);
        let is_first = local_rank.is_none() && !is_below;
        let model = model_to_copy(self.model.filter(|_| is_first), node_rank, &self.checkpoints, env);
        let stores = [self.checkpoints.store.as_ref().filter(|_| is_first), model.as_ref().map(|model| &model.store)];
        warn_of_lost_store(stores.into_iter().flatten(), &self.places);
        let by = match local_rank {
            Some(local_rank) => Some(format!("{KEPT_BY}; this one, of local rank {local_rank},")),
            None => is_below.then(|| format!("{KEPT_ABOVE}; this one")),
        };
        let checkpoints = match by {
            Some(by) => kept_beside(self.checkpoints, &self.places, &resolved.spec, &by, env),
            None => kept(self.checkpoints, &self.places, &resolved.spec, env)
                .map(|checkpoints| with_others(checkpoints, &resolved.spec, env)),
        };
        (checkpoints.is_some() || model.is_some()).then_some(Keep {
            checkpoints,
            model,
            identity: None,
            cache_dir: None,
        })
    }
}

/// Warns about a store that is a directory of the container's own file system, although a volume was probably meant.
fn warn_of_lost_store<'a>(stores: impl Iterator<Item = &'a Address>, places: &Found) {
    for store in stores {
        if matches!(store, Address::Directory(path) if places.is_ephemeral(path)) {
            tracing::warn!(
                code = "store",
                "{store} is in the container's own file system: its content is lost with the container; mount a volume \
                 there (docker run -v, a claim in Kubernetes), or name a bucket"
            );
        }
    }
}

/// Adds the number of processes that write into the checkpoint directory, if it is known: all of them must be on this
/// node, because other nodes may share the directory. A single process may be a launcher of many, so its number is
/// unknown.
fn with_world_size(options: Options, resolved: &Resolved) -> Options {
    let (launches, nodes) = (resolved.launches.len(), resolved.spec.reading.num_nodes);
    let launched = resolved.spec.reading.process.as_ref().map(|process| process.world);
    let world_size = launched.or(u32::try_from(launches).ok()).filter(|count| nodes == Some(1) && *count > 1);
    Options { world_size, ..options }
}

/// Whether other nodes train as well. Each may have its own directory.
fn has_other_nodes(spec: &ClusterSpec) -> bool {
    spec.reading.num_nodes.is_some_and(|nodes| nodes > 1)
}

/// Whether a part could be resumed from.
fn is_complete(part: &PartState) -> bool {
    matches!(part.state, State::Committed | State::Ready)
}

/// The checkpoints to keep, if there is a directory. A replica without a rank (ps, evaluator) commits nothing, because
/// the checkpoints are those of the training replicas.
fn kept(mut settings: Checkpoints, places: &Found, spec: &ClusterSpec, env: &Env) -> Option<keep::Checkpoints> {
    let node_rank = spec.reading.node_rank;
    let dir = settings.dir.as_ref()?;
    if node_rank.is_none() {
        settings.store = None;
    }
    let kept = settings.store.as_ref().map(|store| identity(places.real(dir), store, node_rank, spec));
    let interval = settings.interval;
    let config = mirror_config(settings, places, node_rank.unwrap_or(0), Role::Keeps, env);
    let config = Config { has_other_nodes: has_other_nodes(spec), ..config };
    Some(keep::Checkpoints { config, interval, kept, sibling: None, others: None })
}

/// Whether this trainit is part of the command of another one that keeps the same checkpoints, for example if the
/// image's entrypoint is trainit and variables configure both: it would take over the store from that one.
fn is_below_the_keeper(settings: &Checkpoints, places: &Found, spec: &ClusterSpec, env: &Env) -> bool {
    let (Some(dir), Some(store)) = (&settings.dir, &settings.store) else { return false };
    let ours = identity(places.real(dir), store, spec.reading.node_rank, spec);
    env.given("TRAINIT_SOCKET").is_some_and(|socket| sibling::is_of_its_keeper(Path::new(socket), &ours))
}

/// The checkpoints that the first trainit of the node keeps, if it runs: this one waits for its restore.
fn kept_beside(
    mut settings: Checkpoints,
    places: &Found,
    spec: &ClusterSpec,
    by: &str,
    env: &Env,
) -> Option<keep::Checkpoints> {
    let (dir, store) = (settings.dir.clone()?, settings.store.clone());
    let (Some(store), Some(node_rank)) = (store, spec.reading.node_rank) else {
        settings.store = None;
        return kept(settings, places, spec, env);
    };
    tracing::info!(
        "checkpoints are kept by {by} neither restores nor commits, and starts the command after the restore there"
    );
    // If the node is only an estimate, it may differ from the first one's.
    let is_guess = spec.reading.process.as_ref().is_some_and(|process| process.node_guessed);
    let known = identity(places.real(&dir), &store, Some(node_rank).filter(|_| !is_guess), spec);
    // Prevents other runs from treating this one as the first.
    let beside = Some(Kept { beside: true, ..known.clone() });
    let sibling = Sibling { kept: known, dir, tmp: env.given("TMPDIR").map(str::to_owned) };
    Some(keep::Checkpoints { sibling: Some(sibling), kept: beside, ..kept(settings, places, spec, env)? })
}

/// The other processes of the node, if a launcher has started any.
fn with_others(checkpoints: keep::Checkpoints, spec: &ClusterSpec, env: &Env) -> keep::Checkpoints {
    let is_first = spec.reading.process.as_ref().is_some_and(|process| process.local_size != Some(1));
    let tmp = env.given("TMPDIR").map(str::to_owned);
    let others = checkpoints.kept.clone().filter(|_| is_first).map(|kept| Others {
        kept: Kept { beside: true, ..kept },
        tmp,
        since: clock::wall(),
    });
    keep::Checkpoints { others, ..checkpoints }
}

/// The identity by which the trainits of a node recognise that they use the same checkpoints.
fn identity(dir: PathBuf, store: &Address, node_rank: Option<u32>, spec: &ClusterSpec) -> Kept {
    let directory = dir.to_string_lossy().into_owned();
    let launch = spec.reading.launch.as_ref().map(|launch| launch.chars().take(LAUNCH_CHARS).collect());
    Kept { directory, store: store.to_string(), node_rank, launch, beside: false }
}

/// The model to copy at the end. Only the chief copies it, because otherwise each replica would overwrite it.
fn model_to_copy(model: Option<Model>, node_rank: Option<u32>, settings: &Checkpoints, env: &Env) -> Option<LeftModel> {
    let Model { dir, store } = model?;
    let Some(store) = store else {
        tracing::warn!(
            "the model in {} is not copied: neither --model-store nor AIP_MODEL_DIR is set",
            quoted::shown(&dir.to_string_lossy())
        );
        return None;
    };
    let access = Access::new(env.clone(), settings.allow_http, settings.store_timeout);
    let follow = settings.options.follow;
    (node_rank == Some(0)).then_some(LeftModel { dir, store, follow, access })
}

/// The parts of the directory.
fn surveyed(config: Config) -> Result<Vec<PartState>, Failure> {
    let runtime = blocking::runtime(true);
    let runtime = runtime.map_err(|error| Failure { message: format!("cannot start: {error}"), code: 1 })?;
    runtime.block_on(async { at_rest(&Mirror::open_to_look(config).await?).await })
}

/// The path of the finished model in the checkpoint directory, if it is there.
fn model_within(settings: &Checkpoints, places: &Found) -> Option<String> {
    let (dir, model) = (places.real(settings.dir.as_ref()?), places.real(settings.model_dir.as_ref()?));
    let within = model.strip_prefix(dir).ok()?.to_str()?;
    (!within.is_empty()).then(|| within.to_owned())
}

/// The mirror's configuration, from the settings and the node's rank. `claim`: it will commit, not only read.
pub(in crate::command) fn mirror_config(
    settings: Checkpoints,
    places: &Found,
    node: u32,
    role: Role,
    env: &Env,
) -> Config {
    let model = model_within(&settings, places);
    // Each glob was parsed before.
    let exclusions = Exclusions::new(&settings.exclude, &settings.include, model.as_deref()).unwrap_or_default();
    let exclusions = exclusions.with_marker(settings.options.marker.clone());
    let restoring = Restoring {
        what: match settings.restore {
            Resuming::Latest => Restore::Latest,
            Resuming::Required => Restore::Required,
            Resuming::None => Restore::Never,
        },
        step: settings.restore_step,
    };
    Config {
        role,
        access: Access::new(env.clone(), settings.allow_http, settings.store_timeout),
        options: Arc::new(Options { exclusions, ..settings.options }),
        settle: settings.settle,
        retention: settings.retention,
        restoring,
        pace: Arc::new(Mutex::new(Pace::new(settings.bandwidth))),
        job: cluster::fact_variable(Fact::Job, env).map(|(_, id)| id.to_owned()).unwrap_or_default(),
        node,
        faults: Faults::parse(env.given("TRAINIT_TEST_FAULT")),
        chiefs_store: settings.store.clone(),
        ..Config::new(settings.dir.unwrap_or_default(), settings.store.map(|store| store.of_node(node)))
    }
}
