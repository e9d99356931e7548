//! The configuration file: TOML, with one key for each setting. A key is a flag's name, with `-` or `_`. A list is used
//! if the flag can be repeated.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::layers::{Complaint, Given, Origin};
use crate::settings::defs::{Setting, Takes, all, find};
use crate::settings::values::suggest::hint;

/// The content of a configuration file.
#[derive(Debug)]
pub struct ConfigFile {
    /// Its path.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
}

impl ConfigFile {
    /// Adds its values to `given`. Complaints name the line.
    pub(in crate::settings) fn read(
        &self,
        on: u8,
        given: &mut BTreeMap<&'static str, Given>,
        complaints: &mut Vec<Complaint>,
    ) {
        type Table = BTreeMap<toml::Spanned<String>, toml::Spanned<toml::Value>>;
        let line_at = |offset: usize| 1 + self.text[..offset.min(self.text.len())].matches('\n').count();
        let place = |line: usize| format!("{}:{line}", self.path.display());
        let table: Table = match toml::from_str(&self.text) {
            Ok(table) => table,
            Err(error) => {
                let line = line_at(error.span().map_or(0, |span| span.start));
                let key = self.text.lines().nth(line - 1).and_then(|line| line.split(['=', ':']).next());
                let key = key.map(|key| key.trim().replace('_', "-")).filter(|key| find(key).is_some());
                let key = key.map_or(String::new(), |key| format!("{key}: "));
                let message = format!(
                    "{key}not TOML: {}; quote every value that is not a number, true, false or a list, as in: stop-grace = \"20s\"",
                    error.message().replace('\n', " ")
                );
                complaints.push(Complaint { place: place(line), message });
                return;
            }
        };
        for (key, value) in table {
            let line = line_at(key.span().start);
            let name = key.get_ref().replace('_', "-");
            let Some(setting) = find(&name) else {
                let known: Vec<&str> = all().map(|s| s.name).collect();
                let hint = match value.get_ref() {
                    toml::Value::Table(_) => {
                        "; settings are at the top level, not in a table: remove the [table] line".to_owned()
                    }
                    // Accepts the name of its variable or flag.
                    _ => hint(&name, &known),
                };
                let message = format!("unknown key {:?}{hint}", key.get_ref());
                complaints.push(Complaint { place: place(line), message });
                continue;
            };
            if setting.on & on == 0 {
                continue;
            }
            let values = match (value.into_inner(), setting.takes) {
                (toml::Value::Array(items), Takes::Many(_)) => items.iter().map(scalar).collect(),
                (other, _) => scalar(&other).map(|text| vec![text]),
            };
            match values {
                Some(values) => {
                    let origin = Origin::File(self.path.clone(), line);
                    let before = given.insert(setting.name, Given { values, origin }).map(|given| given.origin);
                    if let Some(Origin::File(_, at)) = before {
                        let message = format!("{name} is already in line {at}; give it once");
                        complaints.push(Complaint { place: place(line), message });
                    }
                }
                None => complaints
                    .push(Complaint { place: place(line), message: format!("{name}: expected {}", expected(setting)) }),
            }
        }
    }
}

fn expected(setting: &Setting) -> String {
    match setting.takes {
        Takes::Switch => "true or false".to_owned(),
        Takes::One(value) => format!("one value ({value})"),
        Takes::Many(value) => format!("a list of {value}"),
    }
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        // A value with several parts is passed on as JSON.
        toml::Value::Table(table) => serde_json::to_string(table).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::defs::on;

    fn complaints_of(text: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        ConfigFile { path: "c.toml".into(), text: text.to_owned() }.read(
            on::RUN,
            &mut BTreeMap::new(),
            &mut complaints,
        );
        complaints.iter().map(Complaint::to_string).collect()
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_key() {
        let complaints = complaints_of("\n# hi\nstop_gracee = \"2s\"\n");
        assert_eq!(complaints[0], "c.toml:3: unknown key \"stop_gracee\"; did you mean stop-grace?");
        for key in ["TRAINIT_STOP_GRACE", "Stop-Grace", "--stop-grace"] {
            let complaints = complaints_of(&format!("{key} = \"2s\"\n"));
            assert_eq!(complaints, [format!("c.toml:1: unknown key {key:?}; did you mean stop-grace?")]);
        }
    }

    #[test]
    fn settings_in_a_table_cause_a_hint() {
        let complaints = complaints_of("keep = 5\n[run]\nstop-grace = \"2s\"\n");
        assert!(
            complaints.len() == 1
                && complaints[0].starts_with("c.toml:2: unknown key \"run\"; settings are at the top level"),
            "{complaints:?}"
        );
    }

    #[test]
    fn a_key_in_two_spellings_is_reported_with_both_lines() {
        let complaints = complaints_of("stop_grace = \"1s\"\nstop-grace = \"2s\"\n");
        assert_eq!(complaints, ["c.toml:1: stop-grace is already in line 2; give it once"]);
    }

    #[test]
    fn broken_toml_names_the_line() {
        let complaints = complaints_of("a = 1\nb = = 2\n");
        assert!(complaints[0].starts_with("c.toml:2: not TOML"), "{complaints:?}");
    }

    #[test]
    fn a_value_that_toml_cannot_hold_is_reported_with_its_key_and_advice() {
        let huge = "99999999999999999999";
        let bare =
            [("keep_last", huge), ("restore-step", "9223372036854775808"), ("stop-grace", "20s"), ("leader", "a:1")];
        for (key, value) in bare {
            let complaints = complaints_of(&format!("\n{key} = {value}\n"));
            let start = format!("c.toml:2: {}: not TOML: ", key.replace('_', "-"));
            assert!(complaints[0].starts_with(&start) && complaints[0].contains("quote every value"), "{complaints:?}");
        }
        assert_eq!(complaints_of(&format!("keep-last = \"{huge}\"\n")), [""; 0]);
    }
}
