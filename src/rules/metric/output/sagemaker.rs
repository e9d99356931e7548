//! Metric definitions in the form of SageMaker's `AlgorithmSpecification.MetricDefinitions`: an object with `Name` and
//! `Regex`, or the whole list of them. An example: `{"Name": "validation:rmse", "Regex": "validation-rmse:([0-9.]+)"}`;
//! in the configuration file also a table.

use serde::Deserialize;

use crate::metric::output::pattern::Pattern;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    #[serde(rename = "Name", alias = "name")]
    name: String,
    #[serde(rename = "Regex", alias = "regex")]
    regex: String,
}

/// `None` for text that is neither an object nor a list of objects.
pub(in crate::metric) fn read(text: &str) -> Option<Result<Vec<Pattern>, String>> {
    let list = text.trim_start().strip_prefix('[').map(str::trim_start);
    let definitions: Result<Vec<Definition>, _> = match list {
        // A tag may begin with a bracket, too.
        Some(items) if items.is_empty() || items.starts_with(['{', ']']) => serde_json::from_str(text),
        None if text.trim_start().starts_with('{') => serde_json::from_str(text).map(|one| vec![one]),
        _ => return None,
    };
    Some(match definitions {
        Ok(all) if all.is_empty() => Err("the list has no metric, so nothing would be found; add one".to_owned()),
        Ok(all) => all.iter().map(|one| Pattern::named(&one.name, &one.regex)).collect(),
        Err(error) => Err(format!(
            "expected an object with Name and Regex, or a list of these on one line, found {text:?}: {error}"
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_of_the_built_in_xgboost_algorithm_is_read() {
        let text = r##"{"Name": "validation:rmse", "Regex": ".*\\[[0-9]+\\].*#011validation-rmse:([-+]?[0-9]*\\.?[0-9]+(?:[eE][-+]?[0-9]+)?).*"}"##;
        let pattern = read(text).expect("this form").expect("a pattern").remove(0);
        let mut values = Vec::new();
        pattern.find(b"[14]#011train-rmse:0.5#011validation-rmse:0.25", |found| values.extend(found.map(|f| f.value)));
        assert_eq!((pattern.tag(), values), (Some("validation:rmse"), vec![0.25]));
    }

    #[test]
    fn missing_and_unknown_parts_are_named() {
        for (text, reason) in [
            ("{\"Name\": \"a\"}", "Regex"),
            ("{\"Name\": \"a\", \"Regex\": \"(x)\", \"Unit\": 1}", "Unit"),
            ("{", "EOF"),
            ("[", "on one line"),
            ("[{\"Name\": \"a\"}]", "Regex"),
            ("[{\"Name\": \"a\", \"Regex\": \"(x)\"}, {\"Name\": \"b\", \"Regex\": \"x\"}]", "no group"),
            ("[]", "the list has no metric"),
        ] {
            let error = read(text).expect("this form").expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(read("a={").is_none() && read("[a]=(x)").is_none());
    }

    #[test]
    fn the_whole_list_of_a_training_job_is_read() {
        let text = r#" [{"Name": "loss", "Regex": "loss: (\\S+)"}, {"Name": "acc", "Regex": "{acc: (.*?)}"}]"#;
        let patterns = read(text).expect("this form").expect("patterns");
        assert_eq!(patterns.iter().map(Pattern::tag).collect::<Vec<_>>(), [Some("loss"), Some("acc")]);
    }
}
