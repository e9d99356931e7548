//! Generates `docs/reference/config.schema.json`, the JSON schema of the configuration file, from the list of settings; the
//! test fails if the file differs.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::settings::defs::{Setting, Takes, all};

fn schema() -> String {
    let properties: Map<String, Value> = all().map(|setting| (setting.name.to_owned(), property(setting))).collect();
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "trainit's configuration file",
        "description": "Written from src/settings/defs by TRAINIT_WRITE_DOCS=1 cargo test --lib config_schema",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    });
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

fn property(setting: &Setting) -> Value {
    let scalar = json!(["string", "number", "boolean"]);
    let mut property = match setting.takes {
        Takes::Switch => json!({ "type": "boolean" }),
        Takes::One(words) if is_choice(words) => json!({ "enum": words.split('|').collect::<Vec<_>>() }),
        Takes::One(_) => json!({ "type": scalar }),
        Takes::Many(_) => json!({ "anyOf": [{ "type": scalar }, { "type": "array", "items": { "type": scalar } }] }),
    };
    property["description"] = setting.help.into();
    if !setting.default.is_empty() {
        property["default"] = setting.default.into();
    }
    property
}

/// Whether these are all the words that the setting takes: `auto|on|off`, and not `N|gpu`.
fn is_choice(words: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c == '-');
    words.contains('|') && words.split('|').all(is_word)
}

#[test]
fn the_schema_of_the_configuration_file_agrees_with_the_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/config.schema.json");
    #[allow(clippy::disallowed_methods, reason = "a test's own switch")]
    if std::env::var_os("TRAINIT_WRITE_DOCS").is_some() {
        std::fs::write(&path, schema()).expect("docs/reference/config.schema.json can be written");
    }
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        current == schema(),
        "docs/reference/config.schema.json differs from src/settings/defs; generate it: TRAINIT_WRITE_DOCS=1 cargo test --lib config_schema"
    );
}
