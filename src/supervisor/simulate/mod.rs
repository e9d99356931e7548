//! Runs a simulated job: one thread with one poll, which feeds events to `rules/simulate` and performs its actions.
//!
//! Each replica runs below a [`keeper`], a separate process that can signal, stop and kill all its processes, and kills
//! them when the simulator has ended. Metadata servers answer on a thread of their own.

pub mod keeper;
mod metadata;
mod output;
mod replica;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::edge::clock::{self, Clock};
use crate::edge::io::eventfd;
use crate::edge::process::descendants;
use crate::edge::process::reaper::{self, Wait};
use crate::edge::process::signals::{self, Mask, SignalFd};
use crate::edge::process::spawn;
use crate::rules::cluster::parse::address::Address;
use crate::rules::cluster::written::{Job, Notice, Replica};
use crate::rules::process::env::Env;
use crate::rules::process::exit::{End, NOT_STARTED};
use crate::rules::process::signal::Signal;
use crate::rules::simulate::environment::{self, Machine};
use crate::rules::simulate::report::Report;
use crate::rules::simulate::seats::name;
use crate::rules::simulate::{Action, Event, Plan, Simulation};
use metadata::Servers;
use output::Screen;
use replica::Process;

/// The limit of lines of one replica in one turn, before the next replica.
const LINES_A_TURN: usize = 200;
/// The limit of children to reap in one turn.
const ENDS_A_TURN: usize = 64;
/// The pause while the reader of our output does not read.
const CROWDED: Duration = Duration::from_millis(50);
/// The first port of the range for the rendezvous, and the first of the gang's range. These are the rules for Slurm.
const RENDEZVOUS: u16 = 15_000;
const GANG: u16 = 5_000;
/// The first job number, of five digits.
const FIRST_JOB: u32 = 10_000;

/// The command and its directories.
#[derive(Debug)]
pub struct Stage {
    /// The command of each replica.
    pub argv: Vec<OsString>,
    /// Our own environment.
    pub env: Env,
    /// The signal mask that we were started with.
    pub mask: Mask,
    /// The directory of this job.
    pub dir: PathBuf,
    /// A temporary directory, removed at the end. If the simulator is killed, the keepers remove it.
    pub temporary: Option<PathBuf>,
    /// Each replica gets a checkpoint directory.
    pub has_checkpoint_dir: bool,
}

/// Runs a job to its end and reports. `signals` has every signal blocked. Errors: a resource of the simulator itself is
/// missing.
pub fn run(plan: Plan, stage: &Stage, signals: &SignalFd) -> io::Result<Report> {
    let mut driver = Driver::new(plan, stage)?;
    driver.step(Event::Begin);
    while !driver.is_over {
        driver.wait(signals);
        driver.turn(signals);
    }
    driver.screen.clear();
    Ok(Report::of(&driver.simulation, driver.clock.now()))
}

struct Driver<'a> {
    stage: &'a Stage,
    simulation: Simulation,
    job: Job,
    processes: Vec<Process>,
    servers: Option<Servers>,
    screen: Screen,
    clock: Clock,
    is_over: bool,
}

impl<'a> Driver<'a> {
    fn new(plan: Plan, stage: &'a Stage) -> io::Result<Driver<'a>> {
        let count = plan.seats.len();
        let (number, port) = job_number()?;
        let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<Vec<_>>>()?;
        let replicas = listeners.iter().zip(&plan.seats).enumerate().map(|(at, (listener, seat))| {
            let address = Address { host: format!("127.0.0.{}", at + 1), port: listener.local_addr()?.port() };
            Ok(Replica { seat: *seat, address })
        });
        let shared = stage.dir.join("shared");
        let job = Job {
            number,
            replicas: replicas.collect::<io::Result<_>>()?,
            rendezvous_port: port,
            shared: shared.to_string_lossy().into_owned(),
            restarts: 0,
        };
        drop(listeners);
        fs::create_dir_all(shared.join("checkpoints"))?;
        let names: Vec<String> = plan.seats.iter().map(|seat| name(*seat)).collect();
        let dirs = names.iter().map(|name| stage.dir.join(name));
        let processes = dirs.map(Process::new).collect::<io::Result<Vec<_>>>()?;
        let servers = match plan.notice_by {
            Notice::Cloud(cloud) => Some(Servers::start(cloud, count)?),
            Notice::Signal => None,
        };
        Ok(Driver {
            stage,
            simulation: Simulation::new(plan),
            job,
            processes,
            servers,
            screen: Screen::new(&names),
            clock: Clock::start(),
            is_over: false,
        })
    }

    /// Sleeps until there is work.
    fn wait(&mut self, signals: &SignalFd) {
        let due = self.simulation.next_due().map(|due| due.saturating_sub(self.clock.now()));
        let mut timeout = due.into_iter().chain(self.screen.redraws_in()).min();
        let mut fds: Vec<RawFd> = vec![signals.as_raw_fd()];
        if Screen::has_room() {
            fds.extend(self.processes.iter().flat_map(Process::fds));
        } else {
            timeout = Some(timeout.unwrap_or(CROWDED).min(CROWDED));
        }
        eventfd::wait_readable(&fds, timeout);
    }

    fn turn(&mut self, arrivals: &SignalFd) {
        for arrival in arrivals.next_batch() {
            // Under nohup, SIGHUP is ignored.
            if arrival.signal.asks_to_leave() && !signals::is_ignored(arrival.signal) {
                self.step(Event::Stop(arrival.signal));
            }
        }
        if Screen::has_room() {
            for at in 0..self.processes.len() {
                self.pass_on(at, LINES_A_TURN);
            }
        }
        for _ in 0..ENDS_A_TURN {
            match reaper::wait() {
                Wait::Ended { pid, end } => self.reaped(pid, end),
                Wait::Stopped { .. } => {}
                Wait::Nothing | Wait::Empty => break,
            }
        }
        if self.simulation.next_due().is_some_and(|due| due <= self.clock.now()) {
            self.step(Event::Due);
        }
        self.screen.progress(self.simulation.progress(self.clock.now()));
    }

    /// Passes on a replica's output, and evaluates it.
    fn pass_on(&mut self, at: usize, most: usize) {
        for (stream, line) in self.processes[at].lines(most) {
            self.screen.show(at, stream, &line);
            self.step(Event::Line(at, &String::from_utf8_lossy(&line)));
        }
    }

    fn reaped(&mut self, pid: i32, end: End) {
        let Some(at) = self.processes.iter().position(|process| process.pid() == Some(pid)) else { return };
        if matches!(end, End::Signal(_)) {
            self.kill_orphans();
        }
        // Every writer has ended, so this ends.
        self.pass_on(at, usize::MAX);
        let verdict = self.processes[at].ended();
        self.step(Event::Ended(at, end.code(), verdict));
    }

    /// Kills the processes of a killed keeper, which have become our children.
    fn kill_orphans(&self) {
        let keepers: Vec<i32> = self.processes.iter().filter_map(Process::pid).collect();
        let is_kept = |process: &descendants::Descendant| keepers.contains(&process.pid);
        for orphan in descendants::all(is_kept).unwrap_or_default() {
            let _ = descendants::send(&orphan, Signal::KILL);
        }
    }

    fn step(&mut self, event: Event<'_>) {
        let now = self.clock.now();
        for action in self.simulation.step(now, event) {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Start(at, restarts) => self.start(at, restarts),
            Action::Signal(at, signal) => self.processes[at].tell(keeper::Order::Signal(signal)),
            Action::Kill(at) => self.processes[at].tell(keeper::Order::Kill),
            Action::Freeze(at) => self.processes[at].tell(keeper::Order::Freeze),
            Action::Hang(at) => self.processes[at].tell(keeper::Order::Hang),
            Action::Thaw(at) => self.processes[at].tell(keeper::Order::Thaw),
            Action::Announce(at, notice) => {
                if let Some(servers) = &self.servers {
                    let wall = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
                    servers.announce(at, Some((wall + notice).as_secs()));
                }
            }
            Action::EmptyDisk(at) => {
                if let Err(error) = self.processes[at].empty_disk() {
                    self.screen.say(&format!("the disk cannot be emptied: {error}"));
                }
            }
            Action::Say(text) => self.screen.say(&text),
            Action::Over => self.is_over = true,
        }
    }

    fn start(&mut self, at: usize, restarts: u32) {
        self.job.restarts = restarts;
        let plan = self.simulation.plan();
        let metadata = match (&self.servers, plan.notice_by) {
            (Some(servers), Notice::Cloud(cloud)) => {
                servers.announce(at, None);
                Some((cloud, servers.port(at)))
            }
            _ => None,
        };
        let (disk, verdict) = (self.processes[at].disk(), self.processes[at].verdict());
        let machine = Machine {
            disk: &disk.to_string_lossy(),
            verdict: &verdict.to_string_lossy(),
            metadata,
            gang_port: gang_port(self.job.rendezvous_port),
            notice: plan.notice,
            has_checkpoint_dir: self.stage.has_checkpoint_dir,
        };
        let replica = &self.job.replicas[at];
        let changes = environment::changes(plan.platform, &self.job, replica, &machine, &self.stage.env);
        let argv = command(&self.stage.argv, &disk, &self.stage.dir.join("shared"));
        if let Err(error) = self.processes[at].start(&argv, self.stage.env.with(&changes), self.stage) {
            self.screen.say(&format!("{} cannot be started: {error}", name(replica.seat)));
            self.step(Event::Ended(at, NOT_STARTED, None));
        }
    }
}

/// The placeholders for the replica's own disk and for the shared directory.
const OWN: &str = "{own}";
const SHARED: &str = "{shared}";

/// The command of a replica: this program replaces `trainit`, and directories replace their placeholders.
fn command(argv: &[OsString], disk: &Path, shared: &Path) -> Vec<OsString> {
    let placed = |word: &OsString| match word.to_str() {
        Some(text) => text.replace(OWN, &disk.to_string_lossy()).replace(SHARED, &shared.to_string_lossy()).into(),
        None => word.clone(),
    };
    let mut argv: Vec<OsString> = argv.iter().map(placed).collect();
    if let Some(program) = argv.first_mut().filter(|program| *program == "trainit") {
        *program = replica::OWN_PROGRAM.into();
    }
    argv
}

/// A number for the job whose ports are free: Slurm's readers derive them from its last four digits.
fn job_number() -> io::Result<(u32, u16)> {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let first = spawn::own_pid().unsigned_abs() as u16 % 5_000;
    let mut numbers = (first..10_000).chain(0..first);
    let found = numbers.find(|number| is_free(RENDEZVOUS + number) && is_free(gang_port(RENDEZVOUS + number)));
    let number = found.ok_or_else(|| io::Error::other("no two ports between 10000 and 25000 are free"))?;
    Ok((FIRST_JOB + u32::from(number), RENDEZVOUS + number))
}

/// The gang's port by Slurm's rule, used here for every platform.
fn gang_port(rendezvous: u16) -> u16 {
    rendezvous - RENDEZVOUS + GANG
}
