//! `trainit goodput`: the whole life of a job, from what each of its runs has left beside the checkpoints.

use super::{refuse, values};
use crate::cli::Parsed;
use crate::edge::io::stdio;
use crate::edge::process::signals;
use crate::edge::store::{Access, StoreError, Trouble};
use crate::edge::transfer::blocking;
use crate::rules::life::report::Life;
use crate::rules::life::run::unread_lines;
use crate::rules::process::env::Env;
use crate::rules::store::address::Address;
use crate::settings::checkpoint::Checkpoints;
use crate::settings::{Complaint, Reader};
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::store::runs::runs;

/// Exit codes: see the help.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    // A request to a server that closes the connection is retried, so SIGPIPE must not end the process.
    signals::ignore_write_signals();
    let (layered, complaints) = values(parsed, env);
    let mut reader = Reader::new(&layered, complaints);
    let (settings, as_json) = (Checkpoints::read(&mut reader), reader.switch("json"));
    let local = settings.dir.as_ref().map(|dir| Address::Directory(std::path::absolute(dir).unwrap_or(dir.clone())));
    let place = settings.store.or(local);
    if place.is_none() && reader.is_complete() {
        let message = "goodput needs it, or --checkpoint-dir; give what the runs of the job were given".to_owned();
        reader.complaints.push(Complaint { place: "--checkpoint-store".to_owned(), message });
    }
    let Some(place) = place.filter(|_| reader.complaints.is_empty()) else { return refuse(&reader.complaints) };
    let access = Access::new(env.clone(), settings.allow_http, settings.store_timeout);
    let read = blocking::runtime(true).map(|runtime| runtime.block_on(runs(&place, &access)));
    let (runs, unread) = match read {
        Ok(Ok(read)) => read,
        Ok(Err(StoreError { trouble: Trouble::NoDirectory | Trouble::Absent, .. })) => Default::default(),
        Ok(Err(error)) => return complain(&Failure::asking(&error).message, Failure::asking(&error).code),
        Err(error) => return complain(&format!("cannot start: {error}"), 1),
    };
    for line in unread_lines(&unread) {
        stdio::complain(&format!("trainit: warning: {line}"));
    }
    let Some(life) = Life::of(runs) else {
        let line = format!(
            "there is no run of trainit in {place}; give the --checkpoint-store of the job, or without a store its --checkpoint-dir"
        );
        return complain(&line, 1);
    };
    for note in &life.notes {
        stdio::complain(&format!("trainit: warning: {note}"));
    }
    let object = || serde_json::to_string(&life).unwrap_or_default() + "\n";
    u8::from(stdio::print(&if as_json { object() } else { life.text() }).is_err())
}

fn complain(line: &str, code: u8) -> u8 {
    stdio::complain(&format!("trainit: error: {line}"));
    code
}
