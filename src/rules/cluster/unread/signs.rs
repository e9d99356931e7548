//! Variables of a launcher that count nodes or processes, although no place can be derived from them. They cause a
//! warning for every launcher, so that a replica is never silently treated as the only one.
//!
//! A platform's signs stand in its own file, those of launchers that are not read in `unread.rs`. What is here of
//! names is how launchers form them. Deliberately absent: reading a place.

use std::collections::HashSet;

use serde_json::Value;

use crate::cluster::parse::hostlist;
use crate::cluster::parse::input::Input;
use crate::cluster::spec::Warning;
use crate::process::env::Env;

const NOT_READ: &str = "no place is read from these variables";

/// What one launcher sets.
#[derive(Debug, Clone, Copy)]
pub struct Signs {
    /// Its name, in words.
    pub launcher: &'static str,
    /// The number of nodes or processes: a number, `min:max`, or a list with an entry for each. A `*` in a name stands for any
    /// text, and the values of all such variables are added: a launcher has one list for each role.
    pub counts: &'static [&'static str],
    /// The path of a file with one line for each node or slot, which begins with the node's name.
    pub node_files: &'static [&'static str],
    /// The index of this one, from 0. If the first of these is not set, the warning names it; the last one is the
    /// node's.
    pub places: &'static [&'static str],
    /// The address of the first one, or of all.
    pub leaders: &'static [&'static str],
    /// Variables that must be set, too, because other programs use the same names.
    pub beside: &'static [&'static str],
    /// Whether the variables count processes, of which a node may have several.
    pub of_processes: bool,
}

impl Signs {
    /// For a launcher that starts one trainit on each node.
    pub(in crate::cluster) const NODES: Signs = Signs {
        launcher: "",
        counts: &[],
        node_files: &[],
        places: &[],
        leaders: &[],
        beside: &[],
        of_processes: false,
    };
    /// For a launcher that starts one trainit for each process.
    pub(in crate::cluster) const PROCESSES: Signs = Signs { of_processes: true, ..Signs::NODES };

    /// The warning, if these variables name more than one node or process. `needs` are the variables that a place is
    /// read from, in words; `None` if no place is read.
    pub(in crate::cluster) fn warning(&self, needs: Option<&str>, input: &Input<'_>) -> Option<Warning> {
        let env = input.env;
        if !self.is_complete(env) {
            return None;
        }
        let counts = self.counted(input);
        let places = || self.places.iter().filter_map(|name| Some((*name, place(env.given(name)?)?)));
        let is_several = counts.iter().any(|counted| counted.number > 1) || places().any(|(_, place)| place > 0);
        is_several.then(|| {
            let several = || counts.iter().filter(|counted| counted.number > 1);
            let said = several().map(|counted| format!("{} says {}", counted.names.join(" + "), counted.number));
            let placed = places().map(|(name, place)| format!("{name} is {place}"));
            let found: Vec<String> = said.chain(placed).collect();
            // Among several roles the place is that within its own role.
            let is_of_all = several().all(|counted| counted.names.len() == 1);
            let place = places().next_back().filter(|_| is_of_all).map(|(_, place)| place);
            let way_out = self.way_out(several().map(|counted| counted.number).next(), place, env);
            let names = counts.iter().flat_map(|counted| &counted.names).copied().chain(self.places.iter().copied());
            warning(&found.join(" and "), self.launcher, &self.missing(needs, env), &way_out, quotes(names, env))
        })
    }

    /// The counts that are set.
    fn counted<'a>(&self, input: &Input<'a>) -> Vec<Counted<'a>> {
        let variables = self.counts.iter().filter_map(|pattern| {
            let (mut names, mut number) = (Vec::new(), 0u32);
            for (name, text) in matching(pattern, input.env) {
                names.push(name);
                number = number.saturating_add(count(text).unwrap_or(0));
            }
            names.sort_unstable();
            (!names.is_empty()).then_some(Counted { names, number })
        });
        let files =
            self.node_files.iter().flat_map(|pattern| matching(pattern, input.env)).filter_map(|(name, path)| {
                let text = (input.files)(path.trim()).ok().flatten()?;
                Some(Counted { names: vec![name], number: count_nodes(&text) })
            });
        variables.chain(files).collect()
    }

    fn is_complete(&self, env: &Env) -> bool {
        self.beside.iter().all(|pattern| matching(pattern, env).next().is_some())
    }

    /// Why the place cannot be read.
    fn missing(&self, needs: Option<&str>, env: &Env) -> String {
        let unset = self.places.first().filter(|name| env.given(name).is_none());
        match (unset, needs) {
            (Some(name), _) => format!("{name} is not set"),
            (None, Some(needs)) => format!("a place needs {needs}"),
            (None, None) => NOT_READ.to_owned(),
        }
    }

    fn way_out(&self, count: Option<u32>, place: Option<u32>, env: &Env) -> String {
        let leader = self.leaders.iter().find_map(|pattern| matching(pattern, env).map(|(name, _)| name).min());
        let leader = leader.map_or(String::new(), |name| format!(" (the first host is in {name})"));
        if self.of_processes {
            return format!(
                "set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_ADDR from these variables for each process, or start one \
                 trainit on each node, with --nnodes, --node-rank and --leader HOST:PORT{leader}"
            );
        }
        let number = |number: Option<u32>, name: &str| number.map_or(name.to_owned(), |number| number.to_string());
        let (nodes, rank) = (number(count, "N"), number(place, "R"));
        format!(
            "give --nnodes {nodes} --node-rank {rank} --leader HOST:PORT{leader}, with a different rank on every node"
        )
    }

    /// Whether the variables give a place other than the first.
    pub(in crate::cluster) fn is_another(&self, env: &Env) -> bool {
        self.is_complete(env) && self.places.iter().filter_map(|name| place(env.given(name)?)).any(|place| place > 0)
    }
}

/// What one count says.
struct Counted<'a> {
    /// Its variables.
    names: Vec<&'a str>,
    number: u32,
}

/// The variables that are given and have this name, in which a `*` stands for any text.
fn matching<'a>(pattern: &str, env: &'a Env) -> impl Iterator<Item = (&'a str, &'a str)> {
    let (start, end) = pattern.split_once('*').unwrap_or((pattern, ""));
    let is_exact = start.len() == pattern.len();
    let is_it =
        move |name: &str| name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end);
    let exact = if is_exact { env.named(start) } else { None };
    let all = (!is_exact).then(|| env.iter().filter(move |(name, _)| is_it(name)));
    exact.into_iter().chain(all.into_iter().flatten()).filter(|(_, text)| !text.trim().is_empty())
}

fn warning(found: &str, launcher: &str, missing: &str, way_out: &str, quotes: Option<String>) -> Warning {
    let message = format!(
        "{found} ({launcher}), but {missing}: this is taken for the only replica, and those that share a checkpoint directory \
         or store overtake each other (205); {way_out}{}",
        quotes.unwrap_or_default()
    );
    Warning::new("node_rank_unknown", message)
}

/// What launchers call the number of their nodes or processes, after a prefix of their own.
const COUNT_NAMES: [&str; 17] = [
    "_NNODES",
    "_NUM_NODES",
    "_NODES_NUM",
    "_NODE_NUM",
    "_NODE_COUNT",
    "_NODES_COUNT",
    "_NUM_HOSTS",
    "_HOST_NUM",
    "_HOST_COUNT",
    "_NUM_MACHINES",
    "_MACHINE_COUNT",
    "_NUM_REPLICAS",
    "_REPLICA_COUNT",
    "_WORKER_NUM",
    "_WORKER_COUNT",
    "_WORLD_SIZE",
    "_SIZE",
];

/// What launchers call the place, after the same prefix.
const PLACE_NAMES: [&str; 12] = [
    "_NODE_RANK",
    "_NODE_INDEX",
    "_HOST_RANK",
    "_HOST_INDEX",
    "_MACHINE_RANK",
    "_REPLICA_RANK",
    "_REPLICA_INDEX",
    "_WORKER_RANK",
    "_WORKER_INDEX",
    "_WORKER_ID",
    "_GLOBAL_RANK",
    "_RANK",
];

/// The warning for a launcher that has no line here: a count of several and a place among them whose names have one prefix,
/// as `X_NUM_NODES` and `X_NODE_RANK`.
pub(in crate::cluster) fn unnamed(env: &Env) -> Option<Warning> {
    let mut counts = Vec::new();
    for (name, text) in env.iter() {
        if let Some(count) = bare(text).parse::<u32>().ok().filter(|count| *count > 1) {
            let prefixes = COUNT_NAMES.iter().filter_map(|end| name.strip_suffix(end));
            counts.extend(prefixes.map(|prefix| (name, prefix, count)));
        }
    }
    counts.sort_unstable();
    counts.into_iter().find_map(|(counted, prefix, number)| {
        let mut places = PLACE_NAMES.iter().map(|end| format!("{prefix}{end}"));
        let (placed, rank) = places.find_map(|name| {
            let rank = place(env.given(&name)?).filter(|rank| *rank < number)?;
            Some((name, rank))
        })?;
        let found = format!("{counted} says {number} and {placed} is {rank}");
        let way_out =
            format!("give --nnodes {number} --node-rank {rank} --leader HOST:PORT, on every node its own rank");
        let quoted = quotes([counted, &placed].into_iter(), env);
        Some(warning(&found, "a launcher that is not known", NOT_READ, &way_out, quoted))
    })
}

/// How many a value counts: itself, the upper bound of `min:max`, or the entries of a list in JSON, in Slurm's form, or with
/// commas, semicolons or blanks between them. Of a list with names each name counts once, and numbers beside them do not: LSF
/// has a host for each slot, or the number of slots behind each host.
pub fn count(text: &str) -> Option<u32> {
    let text = bare(text);
    let number = |text: &str| text.trim().parse::<u64>().ok().map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    if let Some(count) = number(text) {
        return Some(count);
    }
    if let Some((min, max)) = text.split_once(':')
        && let (Some(_), Some(max)) = (number(min), number(max))
    {
        return Some(max);
    }
    let entries = match text {
        json if json.starts_with('{') => return None,
        json if json.starts_with('[') => match serde_json::from_str(json).ok()? {
            Value::Array(list) => list.len(),
            _ => return None,
        },
        hosts if hosts.contains('[') => hostlist::expand(hosts).ok()?.len(),
        list => {
            let entries = || list.split([',', ';', ' ', '\t', '\n', '\r']).filter(|entry| !entry.is_empty());
            let names: HashSet<&str> = entries().filter(|entry| number(entry).is_none()).collect();
            if names.is_empty() { entries().count() } else { names.len() }
        }
    };
    u32::try_from(entries).ok()
}

/// The number of different nodes in a file of nodes.
fn count_nodes(text: &str) -> u32 {
    let nodes: HashSet<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    u32::try_from(nodes.len()).unwrap_or(u32::MAX)
}

/// A rank. A number larger than `u32` is cut to its maximum.
fn place(text: &str) -> Option<u32> {
    bare(text).parse::<u64>().ok().map(|place| u32::try_from(place).unwrap_or(u32::MAX))
}

/// The value without surrounding quotes.
pub(in crate::cluster) fn bare(text: &str) -> &str {
    let text = text.trim();
    let within = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(text).trim()
}

/// A clause to end a message with, if the value of one of the variables begins with a quote.
pub(in crate::cluster) fn quotes<'a>(names: impl Iterator<Item = &'a str>, env: &Env) -> Option<String> {
    let is_quoted = |name: &&str| env.given(name).is_some_and(|text| text.trim().starts_with(['"', '\'']));
    let quoted: Vec<&str> = names.filter(is_quoted).collect();
    (!quoted.is_empty()).then(|| {
        format!(
            "; the value of {} includes its quotes: docker --env-file keeps them, so omit them",
            quoted.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::spec::{ClusterOptions, Explicit, PlatformName};
    use crate::cluster::unread::unsupported::UNSUPPORTED;
    use crate::cluster::{Input, PLATFORMS, detect};

    fn warned_with(pairs: &[(&str, &str)], options: &ClusterOptions) -> Vec<String> {
        let env = Env::from_pairs(pairs.iter().copied());
        let found = detect(&Input { env: &env, files: &|_| Ok(None), options }, &[]).expect("no error");
        let unplaced = found.warnings.into_iter().filter(|warning| warning.code == "node_rank_unknown");
        unplaced.map(|warning| warning.message).collect()
    }

    fn warned(pairs: &[(&str, &str)]) -> Vec<String> {
        warned_with(pairs, &ClusterOptions::default())
    }

    #[test]
    fn every_unread_count_and_place_causes_one_warning_with_its_name() {
        for signs in UNSUPPORTED {
            let beside: Vec<(&str, &str)> = signs.beside.iter().map(|name| (*name, "h")).collect();
            let counted = signs.counts.iter().map(|name| (*name, "2"));
            let placed = signs.places.iter().map(|name| (*name, "1"));
            for (name, value) in counted.chain(placed) {
                let messages = warned(&[&[(name, value)], &beside[..]].concat());
                assert!(messages.len() == 1 && messages[0].contains(name), "{name}: {messages:?}");
                assert!(messages[0].contains(signs.launcher) && messages[0].contains("--node-rank"), "{messages:?}");
            }
            for name in signs.counts {
                assert!(warned(&[&[(*name, "1")], &beside[..]].concat()).is_empty(), "a single one is alone: {name}");
            }
            for name in signs.places {
                assert!(warned(&[&[(*name, "0")], &beside[..]].concat()).is_empty(), "the first may be alone: {name}");
            }
        }
    }

    #[test]
    fn an_incomplete_set_of_a_platforms_variables_causes_a_warning() {
        let half = [
            [("SLURM_NNODES", "2"), ("SLURM_NODEID", "1")],
            [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[3-4]")],
            [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")],
            [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")],
            [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS_PER_NODE", "8")],
            [("SLURM_JOB_ID", "7"), ("SLURM_LOCALID", "1")],
            [("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")],
            [("DMLC_NUM_WORKER", "4"), ("DMLC_TASK_ID", "1")],
            [("PET_NNODES", "1:2"), ("PET_NPROC_PER_NODE", "8")],
            [("JAX_NUM_PROCESSES", "2"), ("JAX_COORDINATOR_ADDRESS", "h:1")],
            [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")],
            [("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1")],
            [("TPU_WORKER_HOSTNAMES", "a,b"), ("TPU_NAME", "x")],
            [("LOCAL_WORLD_SIZE", "2"), ("LOCAL_RANK", "1")],
            [("NNODES", "2"), ("MASTER_ADDR", "a")],
            [("AWS_BATCH_JOB_NUM_NODES", "2"), ("AWS_BATCH_JOB_MAIN_NODE_INDEX", "0")],
            [("SM_HOSTS", r#"["a", "b"]"#), ("SM_NUM_GPUS", "8")],
        ];
        for pairs in half {
            let messages = warned(&pairs);
            let names = |message: &String| pairs.iter().any(|(name, _)| message.contains(name));
            assert!(messages.len() == 1 && names(&messages[0]), "{pairs:?}: {messages:?}");
        }
    }

    #[test]
    fn the_message_names_the_missing_variable_and_the_flags_that_replace_it() {
        let of = |pairs: &[(&str, &str)]| warned(pairs).remove(0);
        let whole = of(&[("SKYPILOT_NUM_NODES", "2"), ("SKYPILOT_NODE_RANK", "1"), ("SKYPILOT_NODE_IPS", "a\nb")]);
        for piece in ["SKYPILOT_NUM_NODES says 2", "SKYPILOT_NODE_RANK is 1", "--nnodes 2 --node-rank 1 --leader"] {
            assert!(whole.contains(piece), "{piece}: {whole}");
        }
        assert!(whole.contains("SKYPILOT_NODE_IPS") && !whole.contains('\n'), "{whole}");
        let half = of(&[("SLURM_NNODES", "3")]);
        assert!(half.contains("SLURM_PROCID is not set") && half.contains("--nnodes 3 --node-rank R"), "{half}");
        let tasks = of(&[("SLURM_NNODES", "1"), ("SLURM_NTASKS", "8")]);
        assert!(tasks.contains("SLURM_NTASKS says 8") && !tasks.contains("--nnodes 8"), "tasks are not nodes: {tasks}");
        let two = of(&[("SLURM_NNODES", "2"), ("SLURM_PROCID", "9"), ("SLURM_NODEID", "1")]);
        assert!(two.contains("--nnodes 2 --node-rank 1"), "{two}");
        let quoted = of(&[("SKYPILOT_NUM_NODES", "\"2\"")]);
        assert!(quoted.contains("--env-file"), "{quoted}");
    }

    #[test]
    fn a_known_or_explicit_place_causes_no_warning() {
        let sky = [("SKYPILOT_NUM_NODES", "2"), ("SKYPILOT_NODE_RANK", "1")];
        let torch = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
        assert!(warned(&[&sky[..], &torch[..]].concat()).is_empty());
        let explicit = |text: &str| Some(Explicit { place: "a flag".to_owned(), text: text.to_owned() });
        let (nnodes, node_rank, leader) = (explicit("2"), explicit("1"), explicit("a:1"));
        let said = ClusterOptions { nnodes, node_rank, leader, ..ClusterOptions::default() };
        assert!(warned_with(&sky, &said).is_empty());
        let none = ClusterOptions { platform: Some(PlatformName::NONE), ..ClusterOptions::default() };
        assert!(warned_with(&sky, &none).is_empty());
        let alone = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "a")];
        assert_eq!(warned(&[&sky[..], &alone[..]].concat()).len(), 1, "an image's defaults");
    }

    #[test]
    fn every_form_of_a_count_is_read() {
        let many =
            ["2", " 2 ", "1:2", "\"2\"", "'2'", "a,b", "a b", "10.0.0.5\n10.0.0.6", "a;b", r#"["a","b"]"#, "n[3-4]"];
        for text in many {
            assert_eq!(count(text), Some(2), "{text:?}");
        }
        for text in ["1", "a", "localhost", "\"\"", "x", "[1]", "n[7]"] {
            assert!(count(text).is_none_or(|count| count < 2), "{text:?}");
        }
        for text in [r#"{"a": 1, "b": 2}"#, "n[3-", "[", "[1,"] {
            assert_eq!(count(text), None, "{text:?}");
        }
        assert_eq!(count("99999999999999"), Some(u32::MAX));
    }

    #[test]
    fn a_launcher_without_a_line_is_recognised_by_a_count_and_a_place_of_one_prefix() {
        for (count, place) in [
            ("ACME_NUM_NODES", "ACME_NODE_RANK"),
            ("X_WORLD_SIZE", "X_WORLD_RANK"),
            ("A_B_NUM_MACHINES", "A_B_MACHINE_RANK"),
        ] {
            let messages = warned(&[(count, "4"), (place, "1")]);
            assert!(messages.len() == 1, "{messages:?}");
            for piece in [count, place, "--nnodes 4 --node-rank 1", "(205)"] {
                assert!(messages[0].contains(piece), "{piece}: {messages:?}");
            }
            assert_eq!(warned(&[(count, "4"), (place, "0")]).len(), 1, "the first of four");
            for alone in [&[(count, "1"), (place, "0")][..], &[(count, "4")], &[(count, "4"), (place, "4")]] {
                assert!(warned(alone).is_empty(), "{alone:?}");
            }
        }
        let unlike = [("GRAPH_NUM_NODES", "9000"), ("LORA_RANK", "16"), ("A_NUM_NODES", "many"), ("A_NODE_RANK", "1")];
        assert!(warned(&unlike).is_empty());
        let torch = [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a")];
        assert!(warned(&[&torch[..], &[("ACME_NUM_NODES", "4"), ("ACME_NODE_RANK", "1")]].concat()).is_empty());
    }

    #[test]
    fn a_list_counts_each_of_its_hosts_once() {
        for (hosts, count_of) in [("h1 8 h2 8", 2), ("h1 h1 h2 h2", 2), ("h1 16", 1), ("h1 h1", 1), ("4,3", 2)] {
            assert_eq!(count(hosts), Some(count_of), "{hosts}");
        }
        assert_eq!(warned(&[("LSB_MCPU_HOSTS", "h1 8 h2 8"), ("LSB_HOSTS", "h1 h2")]).len(), 1);
        assert!(warned(&[("LSB_MCPU_HOSTS", "h1 16"), ("LSB_HOSTS", "h1 h1")]).is_empty());
    }

    #[test]
    fn the_lists_of_several_roles_are_added_and_a_place_within_one_of_them_is_not_offered() {
        let roles = [("VC_PS_HOSTS", "p0"), ("VC_TRAINER_HOSTS", "t0,t1"), ("VC_TASK_INDEX", "1"), ("VC_X_HOSTS", "")];
        let message = warned(&roles).remove(0);
        assert!(message.contains("VC_PS_HOSTS + VC_TRAINER_HOSTS says 3 and VC_TASK_INDEX is 1"), "{message}");
        assert!(message.contains("--nnodes 3 --node-rank R --leader"), "{message}");
        let one = warned(&[("VC_TRAINER_HOSTS", "t0,t1"), ("VC_TASK_INDEX", "1")]).remove(0);
        assert!(
            one.contains("--nnodes 2 --node-rank 1 --leader HOST:PORT (the first host is in VC_TRAINER_HOSTS)"),
            "{one}"
        );
        assert!(warned(&[("VC_TRAINER_HOSTS", "t0"), ("VC_TASK_INDEX", "0")]).is_empty());
    }

    #[test]
    fn a_file_of_several_nodes_causes_a_warning_and_one_of_a_single_node_does_not() {
        for (name, launcher) in [("PBS_NODEFILE", "PBS"), ("OAR_NODEFILE", "OAR"), ("COBALT_NODEFILE", "Cobalt")] {
            let warned = |content: Option<&str>| {
                let (env, options) = (Env::from_pairs([(name, "/nodes")]), ClusterOptions::default());
                let files = |path: &str| Ok(content.filter(|_| path == "/nodes").map(str::to_owned));
                let found = detect(&Input { env: &env, files: &files, options: &options }, &[]).expect("no error");
                found.warnings.into_iter().map(|warning| warning.message).collect::<Vec<_>>()
            };
            let several = warned(Some("n1\nn1 2\n\nn2\n"));
            assert!(several.len() == 1 && several[0].contains(&format!("{name} says 2 ({launcher})")), "{several:?}");
            assert!(warned(Some("n1\nn1\n")).is_empty() && warned(None).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_launcher_that_is_not_read_sets_nothing_that_a_platform_reads() {
        let read = |name: &&str| PLATFORMS.iter().any(|platform| platform.variables.contains(name));
        for signs in UNSUPPORTED {
            assert!(!signs.counts.iter().chain(signs.places).any(read), "{}", signs.launcher);
        }
    }
}
