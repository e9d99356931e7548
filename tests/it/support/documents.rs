//! Reads the documentation: pages, manifests, and the command lines in them.

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

/// A command line of trainit in a document, from `trainit` on.
#[derive(Debug)]
pub struct Found {
    pub place: String,
    pub words: Vec<String>,
}

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The files of a folder with this ending, by name.
pub fn files(folder: &str, ending: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let mut found = Vec::new();
    for entry in entries.map(Result::unwrap) {
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            found.extend(files(&path, ending));
        } else if path.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Every document of a YAML file, with anchors and merge keys resolved.
pub fn yaml(path: &str) -> Vec<Value> {
    let documents = YamlLoader::load_from_str(&text(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    documents.iter().map(json).collect()
}

fn json(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::Integer(number) => Value::from(*number),
        Yaml::Real(number) => Value::from(number.parse::<f64>().unwrap()),
        Yaml::Boolean(flag) => Value::from(*flag),
        Yaml::String(text) => Value::from(text.as_str()),
        Yaml::Array(items) => Value::from(items.iter().map(json).collect::<Vec<_>>()),
        Yaml::Hash(pairs) => {
            let mut object = Map::new();
            // A key next to a merge key takes precedence over the merged key.
            for (_, merged) in pairs.iter().filter(|(key, _)| key.as_str() == Some("<<")) {
                object.extend(json(merged).as_object().unwrap().clone());
            }
            for (key, value) in pairs.iter().filter(|(key, _)| key.as_str() != Some("<<")) {
                object.insert(key.as_str().unwrap().to_owned(), json(value));
            }
            Value::from(object)
        }
        Yaml::Null => Value::Null,
        other => panic!("no such thing in our manifests: {other:?}"),
    }
}

/// Calls `visit` on every object in the value, outer ones first.
pub fn objects<'a>(value: &'a Value, visit: &mut dyn FnMut(&'a Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            visit(object);
            object.values().for_each(|value| objects(value, visit));
        }
        Value::Array(items) => items.iter().for_each(|value| objects(value, visit)),
        _ => {}
    }
}

/// The texts in a list.
pub fn words(list: Option<&Value>) -> Vec<String> {
    let items = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|word| word.as_str().unwrap_or_else(|| panic!("{word} is no text")).to_owned()).collect()
}

/// A container's variables: a list of name and value, or an object.
pub fn variables(container: &Map<String, Value>) -> Vec<(String, String)> {
    let scalar = |value: &Value| value.as_str().map(str::to_owned).unwrap_or_else(|| panic!("{value} must be quoted"));
    let listed = container.get("env").and_then(Value::as_array).into_iter().flatten();
    let listed = listed.map(|pair| (scalar(&pair["name"]), scalar(&pair["value"])));
    let named = ["environment", "Environment"].into_iter().filter_map(|key| container.get(key)?.as_object()).flatten();
    listed.chain(named.map(|(name, value)| (name.clone(), scalar(value)))).collect()
}

/// The pieces of a page: fenced blocks with their language, and spans of code outside of them (language "").
pub fn code(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut prose = String::new();
    let mut block: Option<(String, String)> = None;
    for line in page.lines() {
        match (&mut block, line.trim().strip_prefix("```")) {
            (None, Some(language)) => block = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(block.take()),
            (Some((_, text)), None) => *text += &format!("{line}\n"),
            (None, None) => prose += &format!("{line}\n"),
        }
    }
    assert!(block.is_none(), "a fence is not closed");
    found.extend(prose.split('`').skip(1).step_by(2).map(|span| (String::new(), span.replace('\n', " "))));
    found
}

/// Our command lines in a piece of shell.
pub fn in_shell(place: &str, script: &str) -> Vec<Found> {
    let mut found = Vec::new();
    for words in simple_commands(script) {
        for word in words.iter().filter(|word| word.contains("$(trainit")) {
            let inner = word.split_once("$(").unwrap().1.rsplit_once(')').unwrap().0;
            found.extend(in_shell(place, inner));
        }
        // An image may have trainit's name, too.
        let starts_images = words.first().is_some_and(|first| first == "docker");
        let at = words.iter().position(|word| word == "trainit" || word.ends_with("/trainit"));
        if let Some(at) = at.filter(|_| !starts_images) {
            found.push(Found { place: place.to_owned(), words: words[at..].to_vec() });
        }
    }
    found
}

/// Splits shell text into words, cut at operators. Knows quotes, escapes and comments; variables stay as they are.
fn simple_commands(script: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut letters = script.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('\n') | None => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
            },
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                while let Some(inner) = letters.next().filter(|inner| *inner != letter) {
                    match (letter, inner) {
                        ('"', '\\') => word.extend(letters.next()),
                        _ => word.push(inner),
                    }
                }
            }
            '#' if word.is_none() => while letters.next_if(|l| *l != '\n').is_some() {},
            '$' if letters.peek() == Some(&'(') => word.get_or_insert_default().push('$'),
            ' ' | '\t' | '\n' | '|' | '&' | ';' | '(' | ')' | '<' | '>' => {
                let last = commands.last_mut().unwrap();
                last.extend(word.take());
                if !matches!(letter, ' ' | '\t') && !last.is_empty() {
                    commands.push(Vec::new());
                }
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    commands.last_mut().unwrap().extend(word);
    commands.retain(|words| !words.is_empty());
    commands
}

/// Our command lines in a Dockerfile: the instructions in their exec form.
pub fn in_dockerfile(place: &str, text: &str) -> Vec<Found> {
    let joined = text.replace("\\\n", " ");
    let lists = joined.lines().filter_map(|line| {
        let (instruction, rest) = line.trim().split_once(' ')?;
        let list = match instruction {
            "ENTRYPOINT" | "CMD" | "RUN" => rest.trim(),
            "HEALTHCHECK" => rest.split_once("CMD ")?.1.trim(),
            _ => return None,
        };
        let list = Some(list).filter(|list| list.starts_with('['))?;
        Some(words(Some(&serde_json::from_str(list).unwrap_or_else(|e| panic!("{place}: {list}: {e}")))))
    });
    let ours = lists.filter(|words| words.first().is_some_and(|first| first == "trainit"));
    ours.map(|words| Found { place: place.to_owned(), words }).collect()
}

/// Our command lines in a manifest: a command with its arguments.
pub fn in_manifest(place: &str, manifest: &Value) -> Vec<Found> {
    let mut found = Vec::new();
    for (command, arguments) in [("command", "args"), ("ContainerEntrypoint", "ContainerArguments")] {
        objects(manifest, &mut |object| {
            let mut line = words(object.get(command).filter(|list| list.is_array()));
            if line.first().is_some_and(|first| first == "trainit") {
                line.extend(words(object.get(arguments)));
                found.push(Found { place: place.to_owned(), words: line });
            }
        });
    }
    found
}
