//! Variables of a launcher that count nodes or processes, although no place can be derived from them. They cause a
//! warning for every launcher, so that a replica is never silently treated as the only one.
//!
//! The signs of a platform are in the platform's file, those of launchers that are not read are in `unread.rs`. This file
//! knows only how launchers form names. Deliberately absent: reading a place.

use std::collections::HashSet;

use serde_json::Value;

use crate::cluster::parse::hostlist;
use crate::cluster::parse::input::Input;
use crate::cluster::spec::Warning;
use crate::process::env::Env;

const NOT_READ: &str = "no place is read from these variables";

/// The variables of one launcher.
#[derive(Debug, Clone, Copy)]
pub struct Signs {
    /// Its name, in words.
    pub launcher: &'static str,
    /// The number of nodes or processes: a number, `min:max`, or a list with an entry for each. A `*` in a name stands
    /// for any text, and the values of all such variables are added: a launcher has one list for each role.
    pub counts: &'static [&'static str],
    /// The path of a file with one line for each node or slot, which begins with the node's name.
    pub node_files: &'static [&'static str],
    /// The index of this node or process, from 0. If the first variable is not set, the warning names it; the last
    /// variable is the node's index.
    pub places: &'static [&'static str],
    /// The address of the first node or process, or of all.
    pub leaders: &'static [&'static str],
    /// Variables that must be set, too, because other programs use the same names.
    pub also_set: &'static [&'static str],
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
        also_set: &[],
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
        self.also_set.iter().all(|pattern| matching(pattern, env).next().is_some())
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

/// One count.
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

/// Common names for the number of nodes or processes, after a launcher's own prefix.
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

/// Common names for the place, after the same prefix.
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

/// The warning for an unknown launcher. It sets a count above one and a place, whose names have the same prefix, such as
/// `X_NUM_NODES` and `X_NODE_RANK`.
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

/// The number in a value: the value itself, the upper bound of `min:max`, or the number of entries of a list. A list is
/// JSON, has Slurm's form, or is separated by commas, semicolons or blanks. In a list with names each name counts once, and
/// numbers do not count: LSF repeats a host for each slot, or writes the number of slots after each host.
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
mod tests;
