//! XIDs: the driver's error numbers, and the reaction of a job in a container that can neither reset a GPU nor reboot a
//! node: note it, restart the trainer here, or leave for another machine.
//!
//! Source: NVIDIA's XID catalogue for Ampere and newer (October 2025). Deliberately absent: time and history
//! ([`super::ledger`]).

/// The reaction to an incident on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Report it, and do nothing.
    Note,
    /// The process is damaged, but the GPU is not: restart the trainer here if it dies of it.
    Restart,
    /// The GPU or node is unfit for training.
    Leave,
}

/// How a row of the table decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Always this class.
    Always(Class),
    /// Usually a bug of the program: restart, but leave if it recurs on one GPU and on no other.
    Program,
    /// Double-bit ECC: contained (94 follows) is restart; uncontained (64, 95) or alone is leave.
    DoubleBit,
    /// NVLink: leave if the job uses several GPUs, else note.
    Link,
    /// According to the recovery action; without one, like [`Rule::Link`].
    LinkByAction,
    /// According to the recovery action, else note.
    Action,
    /// No known action: note. If the trainer dies of it, restart once, then leave.
    Unclear,
}

const NOTE: Rule = Rule::Always(Class::Note);
const RESTART: Rule = Rule::Always(Class::Restart);
const LEAVE: Rule = Rule::Always(Class::Leave);

/// The first and last XID of a range, its meaning, and its rule. No two ranges overlap.
const TABLE: &[(u32, u32, &str, Rule)] = &[
    (8, 8, "GPU stopped processing", RESTART),
    (11, 11, "invalid or corrupted push buffer", RESTART),
    (13, 13, "graphics engine exception", Rule::Program),
    (25, 25, "invalid or illegal push buffer", RESTART),
    (31, 31, "MMU fault", Rule::Program),
    (32, 32, "corrupted push buffer stream", RESTART),
    (37, 38, "driver firmware error", NOTE),
    (39, 41, "copy engine exception", RESTART),
    (
        43,
        43,
        "GPU stopped processing, fault of the program, which may now hang instead of ending: see --hang-timeout",
        NOTE,
    ),
    (44, 44, "context switch fault", NOTE),
    (45, 45, "preemptive cleanup after another error or a killed process", NOTE),
    (46, 46, "GPU stopped processing, timeout", LEAVE),
    (48, 48, "double-bit ECC error", Rule::DoubleBit),
    (54, 54, "auxiliary power not connected", LEAVE),
    (60, 60, "video processor exception", RESTART),
    (62, 62, "internal micro-controller halt", LEAVE),
    (63, 63, "memory row remapped, pending a reset", NOTE),
    (64, 64, "row remapping failed", LEAVE),
    (66, 67, "illegal access by the driver", NOTE),
    (68, 68, "video engine exception", RESTART),
    (69, 69, "graphics engine class error", RESTART),
    (70, 72, "copy engine exception", RESTART),
    (74, 74, "NVLink error", Rule::Link),
    (75, 77, "copy engine exception", RESTART),
    (78, 78, "vGPU start error", LEAVE),
    (79, 79, "GPU has fallen off the bus", LEAVE),
    (80, 80, "corrupted data sent to the GPU", RESTART),
    (82, 84, "video engine exception", RESTART),
    (85, 85, "copy engine exception", RESTART),
    (86, 86, "optical-flow engine exception", RESTART),
    (88, 89, "video engine exception", RESTART),
    (92, 92, "high single-bit ECC error rate", NOTE),
    (93, 93, "InfoROM wear", NOTE),
    (94, 94, "contained memory error", RESTART),
    (95, 95, "uncontained memory error", LEAVE),
    (96, 105, "video, JPEG or optical-flow engine exception", RESTART),
    (106, 107, "SMBPBI test message", NOTE),
    (109, 109, "context switch timeout", LEAVE),
    (110, 110, "security fault", LEAVE),
    (119, 119, "GSP RPC timeout", LEAVE),
    (120, 120, "GSP error", LEAVE),
    (121, 121, "C2C link error, corrected", NOTE),
    (126, 135, "copy engine exception", RESTART),
    (136, 136, "link training failed", LEAVE),
    (137, 137, "NVLink privilege error", NOTE),
    (139, 139, "optical-flow engine exception", RESTART),
    (140, 140, "unrecovered ECC error", LEAVE),
    (141, 141, "CUDA fast path error", NOTE),
    (143, 143, "GPU initialisation failed", LEAVE),
    (144, 150, "NVLink 5 error", Rule::LinkByAction),
    (151, 151, "key rotation failed", LEAVE),
    (152, 152, "DLA error", NOTE),
    (153, 153, "retirement record", NOTE),
    (154, 154, "GPU recovery action changed", Rule::Action),
    (155, 155, "NVLink software error", LEAVE),
    (156, 156, "resource retired", LEAVE),
    (157, 157, "retirement record", NOTE),
    (158, 158, "fatal timeout", LEAVE),
    (159, 159, "CHI non-data error", NOTE),
    (160, 161, "channel retirement", NOTE),
    (162, 165, "power smoothing hardware", NOTE),
];

/// The meaning of an XID, and its rule.
pub fn row(xid: u64) -> (&'static str, Rule) {
    TABLE
        .iter()
        .find(|(first, last, ..)| (u64::from(*first)..=u64::from(*last)).contains(&xid))
        .map_or(("error without a known action", Rule::Unclear), |(.., what, rule)| (what, *rule))
}

/// `--xid CODE=note|restart|leave`. Errors: the expected form.
pub fn parse_override(text: &str) -> Result<(u64, Class), String> {
    let expected = || format!("expected CODE=note, CODE=restart or CODE=leave, found {text:?}");
    let (code, class) = text.split_once('=').ok_or_else(expected)?;
    let class = match class.trim() {
        "note" => Class::Note,
        "restart" => Class::Restart,
        "leave" => Class::Leave,
        _ => return Err(expected()),
    };
    Ok((code.trim().parse().map_err(|_| expected())?, class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_contract_has_its_class() {
        let classed = |wanted: Rule| (0..=200).filter(|xid| row(*xid).1 == wanted).collect::<Vec<u64>>();
        let restart = [
            8, 11, 25, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94, 96, 97,
            98, 99, 100, 101, 102, 103, 104, 105, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 139,
        ];
        let leave = [46, 54, 62, 64, 78, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158];
        let note = [
            37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 159, 160, 161, 162, 163,
            164, 165,
        ];
        assert_eq!(classed(RESTART), restart);
        assert_eq!(classed(LEAVE), leave);
        assert_eq!(classed(NOTE), note);
        assert_eq!(classed(Rule::Program), [13, 31]);
        assert_eq!(classed(Rule::DoubleBit), [48]);
        assert_eq!(classed(Rule::Link), [74]);
        assert_eq!(classed(Rule::LinkByAction), [144, 145, 146, 147, 148, 149, 150]);
        assert_eq!(classed(Rule::Action), [154]);
        for unclear in [0, 1, 142, 166, 172, 999, u64::MAX] {
            assert_eq!(row(unclear).1, Rule::Unclear, "{unclear}");
        }
    }

    #[test]
    fn an_override_names_a_code_and_a_class() {
        assert_eq!(parse_override("13=leave"), Ok((13, Class::Leave)));
        assert_eq!(parse_override(" 79 = note"), Ok((79, Class::Note)));
        for wrong in ["", "13", "=leave", "x=leave", "13=stop", "-1=note"] {
            assert!(parse_override(wrong).unwrap_err().contains("CODE=leave"), "{wrong}");
        }
    }
}
