//! Generates `docs/reference/settings.md` from the list of settings; the test fails if the file differs.

use std::fmt::Write as _;
use std::path::Path;

use super::SUBS;
use crate::settings::defs::{Setting, Takes, all, on};

const HEAD: &str = "\
# Settings

Written from the one list in `src/settings/defs/` by `TRAINIT_WRITE_DOCS=1 cargo test --lib settings_page`; a test
compares it. Do not edit it.

The first of these that is given counts: the flag, its `TRAINIT_` variable, the key of the same name in the configuration file,
the value that the platform implies, the default. `trainit inspect` shows each value with its origin. The file is
`/etc/trainit/config.toml` where it exists, or what `--config FILE` or `TRAINIT_CONFIG` names:

```toml
stop-grace = \"20s\"
metric = ['loss=loss: ([0-9.e+-]+)', 'accuracy=acc: ([0-9.]+)']
```

A flag that *repeats* takes a list in the file, and one value on each line of the variable. A *switch* is `true` or `false`
there. An empty variable counts as unset. An unknown `TRAINIT_` variable causes a warning with the nearest name. An unknown flag
or key, an invalid value, or two values that contradict each other (`--xid 79=note --xid 79=leave`) end `trainit` with 125 before
anything starts, and all mistakes are reported at once. A setting that *needs* another one has no effect on `run` without it, and
causes a warning.

- A DURATION (TIME, FIRST, MAX) is a number with a unit, `ms`, `s`, `m`, `h`, `d` or `w`, or several in a row (`1m30s`); `M`
  is months. A bare number is seconds.
- A SIZE is a number with `KiB`, `MiB`, `GiB`, `TiB` (powers of 1024; so are `Ki`, `Mi`, `Gi`, `Ti`, `M` and `G`), `KB`, `MB`,
  `GB`, `TB` (powers of 1000) or `B`, in capital or small letters. A bare number is bytes;
  a warning reports one that is unlikely to be meant as bytes.
- A RATE is a SIZE for each second (`100MiB`); `/s` may follow.

Numbers in them may have decimals (`1.5h`, `0.5`).
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut topic = "";
    for setting in all() {
        if setting.topic != topic {
            topic = setting.topic;
            let _ = write!(page, "\n## {topic}\n\n");
        }
        page.push_str(&entry(setting));
    }
    page
}

fn entry(setting: &Setting) -> String {
    // `inspect` accepts the settings of `run`, so it is listed only for its own settings.
    let shown = |on: u8| setting.on & on != 0 && (on & on::INSPECT == 0 || setting.on & on::RUN == 0);
    let subs: Vec<&str> = SUBS.iter().filter(|sub| shown(sub.on)).map(|sub| sub.name).collect();
    let (value, kind) = match setting.takes {
        Takes::Switch => (String::new(), ", switch"),
        Takes::One(value) => (format!(" {value}"), ""),
        Takes::Many(value) => (format!(" {value}"), ", repeats"),
    };
    let default = match setting.default {
        "" => String::new(),
        default => format!(", default `{default}`"),
    };
    let needs: Vec<String> = setting.needs.iter().map(|name| format!("`--{name}`")).collect();
    let needs = if needs.is_empty() { String::new() } else { format!("; needs {}", needs.join(" or ")) };
    format!(
        "- **`--{}{value}`** ({}; {}{kind}{default}{needs}):\n  {}\n",
        setting.name,
        setting.variable().map_or("no variable".to_owned(), |variable| format!("`{variable}`")),
        subs.join(", "),
        setting.help,
    )
}

#[test]
fn the_settings_page_agrees_with_the_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/settings.md");
    #[allow(clippy::disallowed_methods, reason = "a test's own switch")]
    if std::env::var_os("TRAINIT_WRITE_DOCS").is_some() {
        std::fs::write(&path, page()).expect("docs/reference/settings.md can be written");
    }
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        current == page(),
        "docs/reference/settings.md differs from src/settings/defs; generate it: TRAINIT_WRITE_DOCS=1 cargo test --lib settings_page"
    );
}
