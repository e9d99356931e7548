//! The settings of the gang.

use std::path::PathBuf;
use std::time::Duration;

use super::values::reader::Reader;
use crate::rules::gang::Timing;
use crate::rules::gang::agreement::Mode;
use crate::rules::gang::leader::OnNotice;
use crate::rules::text::duration;

/// Whether the replicas form a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GangMode {
    /// If the cluster allows it.
    Auto,
    /// Always; a cluster that does not allow it is a mistake.
    On,
    /// Never: each replica is supervised alone.
    Off,
}

/// The values as given.
#[derive(Debug, Clone)]
pub struct GangSettings {
    /// Whether to form a gang.
    pub gang: GangMode,
    /// The leader's port, instead of the one derived from the cluster.
    pub port: Option<u16>,
    /// The file with the shared secret.
    pub token_file: Option<PathBuf>,
    /// What the other replicas do after a notice to one; `None`: the platform's default.
    pub on_notice: Option<OnNotice>,
    /// Where the nodes keep their checkpoints.
    pub mode: Mode,
    /// Whether the job starts from the beginning although checkpoints exist.
    pub from_scratch: bool,
    /// The times of the protocol.
    pub timing: Timing,
}

/// The minimum number of heartbeats within the time-out.
const BEATS: u32 = 6;

/// Reads the settings. Mistakes are collected in the reader.
pub fn read(reader: &mut Reader<'_>) -> GangSettings {
    let default = Timing::default();
    let lease = reader.parse("gang-timeout", at_least_a_second).unwrap_or(default.lease);
    let mut time = |name: &str, default: Duration| reader.parse(name, duration::parse).unwrap_or(default);
    let timing = Timing {
        lease,
        beat: default.beat.min(lease / BEATS),
        stop_grace: time("gang-stop-grace", default.stop_grace),
        wait: time("gang-wait", default.wait),
        finish_grace: time("finish-grace", default.finish_grace),
        evaluator_grace: time("evaluator-grace", default.evaluator_grace),
        ..default
    };
    GangSettings {
        gang: reader
            .choice("gang", &[("auto", GangMode::Auto), ("on", GangMode::On), ("off", GangMode::Off)])
            .unwrap_or(GangMode::Off),
        port: reader.parse("gang-port", port),
        token_file: reader.path("gang-token-file"),
        on_notice: reader
            .choice(
                "gang-on-notice",
                &[("auto", None), ("hold", Some(OnNotice::Hold)), ("leave", Some(OnNotice::Leave))],
            )
            .flatten(),
        mode: reader
            .choice(
                "gang-checkpoints",
                &[("auto", Mode::Auto), ("each", Mode::Each), ("chief", Mode::Chief), ("shared", Mode::Shared)],
            )
            .unwrap_or_default(),
        from_scratch: reader.switch("gang-from-scratch"),
        timing,
    }
}

fn at_least_a_second(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        short if short < Duration::from_secs(1) => Err(format!("expected at least 1s, found {text:?}")),
        long => Ok(long),
    }
}

fn port(text: &str) -> Result<u16, String> {
    match text.trim().parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("expected a port from 1 to 65535, found {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::defs::on;
    use super::super::values::layers::Values;
    use super::*;
    use crate::rules::process::env::Env;

    fn read_from(pairs: &[(&str, &str)]) -> (GangSettings, usize) {
        let mut complaints = Vec::new();
        let env = Env::from_pairs(pairs.iter().copied());
        let values = Values::gather(on::RUN, Default::default(), &env, None, &mut complaints);
        let mut reader = Reader::new(&values, complaints);
        let settings = read(&mut reader);
        (settings, reader.complaints.len())
    }

    #[test]
    fn the_defaults_of_the_list_are_those_of_the_protocol() {
        let (settings, complaints) = read_from(&[]);
        assert_eq!((settings.timing, complaints), (Timing::default(), 0));
    }

    #[test]
    fn a_short_time_out_has_as_many_beats_as_a_long_one() {
        let (settings, _) = read_from(&[("TRAINIT_GANG_TIMEOUT", "3s")]);
        assert_eq!(settings.timing.beat, Duration::from_millis(500));
        assert_eq!(read_from(&[("TRAINIT_GANG_TIMEOUT", "10ms"), ("TRAINIT_GANG_PORT", "0")]).1, 2);
    }
}
