//! What the processes of a tree are to each other when a stop begins: which serve others, and which read from others.

use std::collections::{BTreeMap, BTreeSet};

use crate::process::signal::Disposition;

/// A pipe, by the text of its link in /proc.
pub type Pipe = String;

/// The standard input of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Input {
    /// It has no end that the process waits for.
    #[default]
    Other,
    /// A pipe that other processes write to.
    Pipe {
        /// It carries the output of a process that handles the signal.
        from_handler: bool,
        /// A process of a higher rank writes to it.
        from_service: bool,
    },
}

/// What a process was to others when the stop began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Role {
    /// A process waits for those of a lower rank.
    pub rank: u32,
    /// Its standard input.
    pub input: Input,
}

/// The facts about one process.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Its process id.
    pub pid: i32,
    /// Its parent's process id. A process whose parent is not in the list is an orphan or a main child.
    pub parent: i32,
    /// One of the command's main children.
    pub is_main: bool,
    /// Its process group.
    pub group: i32,
    /// Its controlling terminal; 0 for none.
    pub terminal: i32,
    /// The foreground group of that terminal.
    pub foreground: i32,
    /// What it does with the stop's signal.
    pub disposition: Disposition,
    /// It ignores SIGINT.
    pub ignores_int: bool,
    /// It ignores SIGQUIT.
    pub ignores_quit: bool,
    /// Its standard input is not the open file of its parent's.
    pub has_own_input: bool,
    /// It has /dev/fuse open: a file system of a process.
    pub holds_fuse: bool,
    /// Its standard input, if that is a pipe other than trainit's own standard input.
    pub input: Option<Pipe>,
    /// Its standard output and standard error, if they are pipes.
    pub outputs: BTreeSet<Pipe>,
    /// The pipes that it has open at any other descriptor than its standard input.
    pub pipes: BTreeSet<Pipe>,
    /// Its descriptors cannot be read.
    pub is_opaque: bool,
}

/// More programs than this do not stand in one pipeline.
const LONGEST_PIPELINE: u32 = 8;

/// All processes of one look.
struct Look<'a> {
    by_pid: BTreeMap<i32, &'a Facts>,
    /// The processes that have a pipe open other than as their standard input.
    writers: BTreeMap<&'a str, Vec<&'a Facts>>,
    /// The parents, with a terminal, that have a child in the foreground.
    have_foreground: BTreeSet<(i32, i32)>,
    main_is_alive: bool,
    some_are_opaque: bool,
}

/// The role of each process. Call this before the first signal of a stop: later an orphan may be the child of a process
/// that got the signal.
pub fn roles(tree: &[Facts]) -> BTreeMap<i32, Role> {
    let look = Look::at(tree);
    tree.iter().map(|facts| (facts.pid, Role { rank: look.rank(facts), input: look.input(facts) })).collect()
}

impl<'a> Look<'a> {
    fn at(tree: &'a [Facts]) -> Look<'a> {
        let mut look = Look {
            by_pid: tree.iter().map(|facts| (facts.pid, facts)).collect(),
            writers: BTreeMap::new(),
            have_foreground: BTreeSet::new(),
            main_is_alive: tree.iter().any(|facts| facts.is_main),
            some_are_opaque: tree.iter().any(|facts| facts.is_opaque),
        };
        for facts in tree {
            facts.pipes.iter().for_each(|pipe| look.writers.entry(pipe).or_default().push(facts));
            if !look.is_in_background(facts) {
                look.have_foreground.insert((facts.parent, facts.terminal));
            }
        }
        look
    }

    /// The process itself and those above it, nearest first. Process ids that were read one after another may form a circle,
    /// so the length is limited.
    fn with_ancestors(&self, of: &'a Facts) -> impl Iterator<Item = &'a Facts> {
        std::iter::successors(Some(of), |facts| self.by_pid.get(&facts.parent).copied()).take(self.by_pid.len())
    }

    /// How many services the process is a part of. A service on another terminal does not count: a terminal multiplexer is
    /// there for what it shows.
    fn rank(&self, of: &'a Facts) -> u32 {
        let on_its_terminal = |facts: &&Facts| of.terminal == 0 || facts.terminal == of.terminal;
        self.with_ancestors(of).take_while(on_its_terminal).map(|facts| self.marks(facts)).sum()
    }

    /// The signs that this process was started to serve others.
    fn marks(&self, of: &Facts) -> u32 {
        if of.is_main {
            return 0;
        }
        let is_daemon = self.main_is_alive && !self.by_pid.contains_key(&of.parent);
        u32::from(is_daemon) + u32::from(of.holds_fuse) + u32::from(self.is_beside_a_foreground_job(of))
    }

    /// Whether its shell runs another process in the foreground.
    fn is_beside_a_foreground_job(&self, of: &Facts) -> bool {
        let has_shell = self.by_pid.contains_key(&of.parent);
        has_shell && self.is_in_background(of) && self.have_foreground.contains(&(of.parent, of.terminal))
    }

    /// On a terminal a shell gives a background job a group that is not the foreground one. Without job control the job
    /// ignores SIGINT and SIGQUIT and reads from /dev/null (POSIX, Shell Command Language, 2.11). If the shell was itself
    /// started to ignore SIGINT, only the input tells.
    fn is_in_background(&self, facts: &Facts) -> bool {
        let is_marked =
            || self.by_pid.get(&facts.parent).is_some_and(|shell| !shell.ignores_int || facts.has_own_input);
        facts.terminal != 0 && facts.foreground > 0 && facts.group != facts.foreground
            || facts.ignores_int && facts.ignores_quit && is_marked()
    }

    fn writers(&self, pipe: &Pipe, reader: &Facts) -> impl Iterator<Item = &'a Facts> {
        let writers = self.writers.get(pipe.as_str()).into_iter().flatten().copied();
        writers.filter(move |writer| writer.pid != reader.pid)
    }

    /// A pipe that nothing writes to has ended, like the text that a shell passes to a command (`<<EOF`). After the end of
    /// the main children that is unknown: the writer may have been one of them.
    fn input(&self, of: &'a Facts) -> Input {
        let Some(pipe) = &of.input else { return Input::Other };
        let may_have_been_written = !self.main_is_alive || self.some_are_opaque;
        if self.writers(pipe, of).next().is_none() && !may_have_been_written {
            return Input::Other;
        }
        Input::Pipe {
            from_handler: self.carries(pipe, of, LONGEST_PIPELINE),
            from_service: self.writers(pipe, of).any(|writer| self.rank(writer) > self.rank(of)),
        }
    }

    /// Whether the pipe carries the output of a process that handles the stop's signal, also through other readers.
    fn carries(&self, pipe: &Pipe, reader: &Facts, limit: u32) -> bool {
        let is_source = |writer: &'a Facts| {
            writer.disposition == Disposition::Handles
                || limit > 0 && writer.input.as_ref().is_some_and(|input| self.carries(input, writer, limit - 1))
        };
        self.writers(pipe, reader).filter(|writer| writer.outputs.contains(pipe)).any(is_source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Facts {
        Facts { pid, parent, group: 10, ..Facts::default() }
    }

    fn main(pid: i32) -> Facts {
        Facts { is_main: true, ..process(pid, 1) }
    }

    fn ranks(tree: &[Facts]) -> Vec<u32> {
        let roles = roles(tree);
        tree.iter().map(|facts| roles[&facts.pid].rank).collect()
    }

    fn pipes(names: &[&str]) -> BTreeSet<Pipe> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn writes(process: Facts, pipe: &str) -> Facts {
        Facts { outputs: pipes(&[pipe]), pipes: pipes(&[pipe]), ..process }
    }

    fn reads(process: Facts, pipe: &str) -> Facts {
        Facts { input: Some(pipe.to_owned()), ..process }
    }

    fn handles(process: Facts) -> Facts {
        Facts { disposition: Disposition::Handles, ..process }
    }

    fn inputs(tree: &[Facts]) -> Vec<Input> {
        let roles = roles(tree);
        tree.iter().map(|facts| roles[&facts.pid].input).collect()
    }

    #[test]
    fn a_daemon_with_what_it_started_serves_and_orphans_of_an_ended_command_are_no_daemons() {
        assert_eq!(ranks(&[main(10), process(11, 10), process(20, 1), process(21, 20)]), [0, 0, 1, 1]);
        assert_eq!(ranks(&[process(11, 1), process(20, 1)]), [0, 0]);
    }

    #[test]
    fn a_background_job_serves_the_foreground_one_and_jobs_that_are_all_in_the_background_are_equal() {
        let job = |pid| Facts { ignores_int: true, ignores_quit: true, ..process(pid, 10) };
        assert_eq!(ranks(&[main(10), job(11), process(12, 11), process(13, 10)]), [0, 1, 1, 0]);
        assert_eq!(ranks(&[main(10), job(11), job(12)]), [0, 0, 0]);
        // All of it was started in the background, so only the input differs.
        let shell = Facts { ignores_int: true, ignores_quit: true, ..main(10) };
        let own_input = |pid| Facts { has_own_input: true, ..job(pid) };
        assert_eq!(ranks(&[shell.clone(), own_input(11), job(12)]), [0, 1, 0]);
        assert_eq!(ranks(&[shell.clone(), own_input(11), own_input(12)]), [0, 0, 0]);
        assert_eq!(ranks(&[shell, job(11), job(12)]), [0, 0, 0]);
    }

    #[test]
    fn on_a_terminal_the_foreground_group_tells_and_two_terminals_are_not_compared() {
        let on = |pid, group, terminal| Facts { group, terminal, foreground: 13, ..process(pid, 11) };
        assert_eq!(ranks(&[main(10), process(11, 10), on(12, 12, 5), on(13, 13, 5)]), [0, 0, 1, 0]);
        assert_eq!(ranks(&[main(10), process(11, 10), on(12, 12, 5), on(13, 13, 6)]), [0, 0, 0, 0]);
    }

    #[test]
    fn a_program_in_a_terminal_multiplexer_is_no_service_although_the_multiplexer_is_a_daemon() {
        let shown = |pid, parent| Facts { terminal: 5, foreground: 12, group: 12, ..process(pid, parent) };
        assert_eq!(ranks(&[main(10), process(11, 1), shown(12, 11), shown(13, 12)]), [0, 1, 0, 0]);
    }

    #[test]
    fn a_file_system_is_stopped_after_other_daemons_and_a_trainer_with_one_is_no_service() {
        let fuse = |process| Facts { holds_fuse: true, ..process };
        assert_eq!(ranks(&[main(10), fuse(process(20, 1)), process(21, 1), fuse(process(11, 10))]), [0, 2, 1, 1]);
        assert_eq!(ranks(&[fuse(main(10)), process(11, 10)]), [0, 0]);
    }

    #[test]
    fn a_pipe_with_a_writer_is_an_input_that_ends_and_one_without_has_ended() {
        let pipe = |from_handler, from_service| Input::Pipe { from_handler, from_service };
        let tree = [main(10), writes(handles(process(11, 10)), "a"), reads(process(12, 10), "a")];
        assert_eq!(inputs(&tree)[2], pipe(true, false));
        assert_eq!(inputs(&[writes(main(10), "a"), reads(process(12, 10), "a")])[1], pipe(false, false));
        assert_eq!(inputs(&[main(10), reads(process(12, 10), "a")])[1], Input::Other);
        assert_eq!(inputs(&[reads(process(12, 1), "a")])[0], pipe(false, false), "its writer may have ended first");
        let opaque = Facts { is_opaque: true, ..process(11, 10) };
        assert_eq!(inputs(&[main(10), opaque, reads(process(12, 10), "a")])[2], pipe(false, false));
        let daemon = writes(process(20, 1), "a");
        assert_eq!(inputs(&[main(10), daemon, reads(process(12, 10), "a")])[2], pipe(false, true));
    }

    #[test]
    fn the_output_of_a_trainer_is_followed_through_a_chain_of_readers() {
        let middle = writes(reads(process(12, 10), "a"), "b");
        let tree = [main(10), writes(handles(process(11, 10)), "a"), middle.clone(), reads(process(13, 10), "b")];
        assert_eq!(inputs(&tree)[3], Input::Pipe { from_handler: true, from_service: false });
        // A launcher that holds the pipe to the trainer's input does not write its output there.
        let launcher = Facts { pipes: pipes(&["c"]), ..handles(process(11, 10)) };
        let trainer = reads(handles(process(12, 11)), "c");
        assert_eq!(inputs(&[main(10), launcher, trainer])[2], Input::Pipe { from_handler: false, from_service: false });
        let circle = [main(10), writes(reads(process(11, 10), "b"), "a"), writes(reads(process(12, 10), "a"), "b")];
        assert_eq!(inputs(&circle)[1], Input::Pipe { from_handler: false, from_service: false });
    }
}
