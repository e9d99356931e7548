//! `trainit gpus`: what the GPUs are and how they are, as a table or as one JSON object.

use std::io;

use crate::cli::Parsed;
use crate::command;
use crate::edge::{gpu, stdio, wake};
use crate::rules::env::Env;
use crate::rules::gpu::{Discovery, table};
use crate::settings::{Reader, gpus};

/// Leaves with 0 whenever it could say what it found, no GPU included.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    let (values, complaints) = command::values(parsed, env);
    let mut reader = Reader::new(&values, complaints);
    let settings = gpus::read(&mut reader, parsed.on, env);
    let (json, watch) = (reader.switch("json"), reader.switch("watch"));
    if !reader.complaints.is_empty() {
        return command::refuse(&reader.complaints);
    }
    loop {
        let discovery = gpu::discover(settings.timeout, env);
        if show(&discovery, json).is_err() {
            return 1;
        }
        if !watch {
            return 0;
        }
        wake::wait_readable(&[], Some(settings.interval));
    }
}

fn show(discovery: &Discovery, json: bool) -> io::Result<()> {
    match json {
        true => stdio::print(&format!("{}\n", serde_json::to_string(discovery).map_err(io::Error::other)?)),
        false => stdio::print(&table::render(discovery)),
    }
}
