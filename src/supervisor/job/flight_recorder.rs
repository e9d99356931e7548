//! Asks the ranks of PyTorch on this node for the dumps of their flight recorders, on a thread of its own: the
//! directory's file system may be the cause of the hang.

use std::io;
use std::path::{Path, PathBuf};

use crate::edge::fs::named_pipe;
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::process::signals::thread_without_signals;
use crate::rules::cluster::framework::torch::flight_recorder::is_pipe;
use crate::rules::text::safe_text::counted;

/// The limit of pipes: the ranks of one node, and leftovers of other runs.
const MOST_PIPES: usize = 4096;

/// Writes into the pipe of each rank that reads one, and logs how many there are.
pub(in crate::supervisor) fn ask(directory: PathBuf) {
    let asked = thread_without_signals("forensics", move || {
        let shown = directory.display();
        match ask_all(&directory) {
            Ok(0) => tracing::warn!(
                code = "hung",
                "no process reads a pipe of PyTorch's flight recorder in {shown}, so there is no dump of it: that needs a \
                 process group of NCCL, and its monitoring thread"
            ),
            Ok(count) => tracing::warn!(
                code = "hung",
                "{} of PyTorch asked for the flight recorder's dump in {shown}",
                counted(count, "rank")
            ),
            Err(error) => tracing::warn!(
                code = "hung",
                "PyTorch cannot be asked for its flight recorder's dumps: {shown}: {error}; give --hang-forensics a \
                 directory that exists"
            ),
        }
    });
    if let Err(error) = asked {
        tracing::warn!(code = "hung", "PyTorch cannot be asked for its flight recorder's dumps: {error}");
    }
}

fn ask_all(directory: &Path) -> io::Result<usize> {
    let names = RootedDir::open(directory)?.names("")?;
    let pipes = names.into_iter().filter(|name| is_pipe(name)).take(MOST_PIPES);
    // A pipe without a reader belongs to an earlier run or to another node.
    Ok(pipes.filter(|name| named_pipe::write_line(&directory.join(name), "dump").is_ok()).count())
}
